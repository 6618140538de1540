from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config import DatasetSettings
from streamrec.config.daemon import load_daemon
from streamrec.flow.stages import GROUPS, RESOURCES, STAGES, TABLE, Bottleneck
from streamrec.measure.ceilings import Resources
from streamrec.measure.figures import Figures, Sample, Target, Verdict, steady_rate
from streamrec.measure.verdict import judge
from streamrec.measure.view import advice_of
from streamrec.plan.reading import concurrency
from streamrec.plan.reading.concurrency import Limit
from streamrec.report.verdict import CAUSES, CONTRADICTS, EXPLAINS, LEAST
from streamrec.report.words import rate
from streamrec.report.words import rate as rate_text
from tests.measure.worlds import MB, PLANTED, World, a_job, settings_of

if TYPE_CHECKING:
    from streamrec.measure.figures import Job

RESOURCES_OF: dict[str, tuple[Bottleneck, ...]] = {
    **dict.fromkeys(("first_byte", "body", "quarantine"), (*GROUPS["network"], "cores")),
    **dict.fromkeys(("scan", "order", "queue"), ("event loop", "cores")),
    **dict.fromkeys(("decompress", "decode", "pack", "cache"), ("decoding", "cores")),
    **dict.fromkeys(("filter", "transform"), ("transform", "cores")),
    "list": ("cores",),
    "wire": ("link", "cores"),
    "client": ("trainer", "cores"),
}
"""The resources that each stage of a wait may belong to."""
TOLD_BY_A_JOB = ("trainer", "cores", "memory budget", "max_concurrency")
KEPT = json.loads(Path(__file__).with_name("kept.json").read_text())
"""Figures of jobs whose cause is known, because it was planted."""
NAMED = [pytest.param(*planted, name, id=name) for name, planted in PLANTED.items()]


def judged(world: World, settings: DatasetSettings, **figures: Any) -> Verdict:
    verdict = judge(world.figures(settings, **figures), settings)
    assert verdict is not None
    return verdict


def followed(verdict: Verdict, settings: DatasetSettings, directory: Path) -> DatasetSettings:
    """Paste what the verdict says into a feeder's file, and return the dataset's settings."""
    kept = settings.model_dump(exclude_defaults=True, exclude_none=True, mode="json")
    changed = {change.setting for change in verdict.changes if change.value is not None}
    lines = [f"{name} = {value!r}" for name, value in kept.items() if name not in changed]
    path = directory / "feeder.toml"
    path.write_text("\n".join(["[datasets.train]", *lines, verdict.paste]))
    return load_daemon(path).datasets["train"]


@pytest.mark.parametrize(("world", "settings", "name"), NAMED)
def test_names_what_is_planted(world: World, settings: dict[str, Any], name: str) -> None:
    verdict = judged(world, settings_of(**settings))
    assert verdict.bottleneck == name
    assert verdict.changes
    assert verdict.ceilings[0].resource == name


@pytest.mark.parametrize("kept", KEPT, ids=[kept["name"] for kept in KEPT])
def test_names_what_was_planted_on_a_busy_machine(kept: dict[str, Any]) -> None:
    """The figures are those of runs of ``bench.verdicts``, several at a time."""
    figures = Figures.model_validate(kept["figures"])
    settings = None if kept["settings"] is None else settings_of(**kept["settings"])
    verdict = judge(figures, settings)
    assert verdict is not None
    assert verdict.bottleneck == kept["planted"], verdict.summary


@pytest.mark.parametrize(
    ("world", "settings", "name"),
    [planted for planted in NAMED if planted.id not in TOLD_BY_A_JOB],
)
def test_names_it_without_a_job(world: World, settings: dict[str, Any], name: str) -> None:
    assert judged(world, settings_of(**settings), job=False).bottleneck == name


def test_every_bottleneck_is_named_in_some_world() -> None:
    assert {*PLANTED, "feeder"} == set(get_args(Bottleneck))


@pytest.mark.parametrize(
    ("world", "settings", "name"), [planted for planted in NAMED if planted.id != "trainer"]
)
def test_advice_brings_what_is_predicted(
    world: World, settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    before = settings_of(**settings)
    verdict = judged(world, before)
    # What no setting changes, somebody changes in the world.
    after = {
        "event loop": replace(world, loop=0.5),
        "decoding": replace(world, decoding=0.5),
        "transform": replace(world, transform=0.1),
        "listing": replace(world, page=0.0),
        "cores": replace(world, other=0.0),
    }.get(name, world)
    rate = after.rate(followed(verdict, before, tmp_path))
    assert verdict.predicted_bytes_per_second == pytest.approx(rate, rel=0.2)
    assert verdict.predicted_bytes_per_second is not None
    assert verdict.predicted_bytes_per_second >= 1.1 * verdict.bytes_per_second


@pytest.mark.parametrize(("world", "settings", "name"), NAMED)
def test_its_summary_has_the_cause_the_change_and_what_comes_next(
    world: World, settings: dict[str, Any], name: str
) -> None:
    verdict = judged(world, settings_of(**settings))
    assert "What holds it back is" in verdict.summary
    assert ("its limit is" if name == "trainer" else "the next limit is") in verdict.summary
    for change in verdict.changes:
        assert change.why.rstrip(".") in verdict.summary
    assert verdict.evidence


@pytest.mark.parametrize(("world", "settings", "name"), NAMED)
def test_no_word_for_people_changes_a_verdict(
    world: World, settings: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = judged(world, settings_of(**settings))
    entries = [vars(entry) for entry in (*TABLE.values(), *RESOURCES.values())]
    for number, entry in enumerate(entries):
        for field in {"noun", "awaited", "meaning", "words", "headline", "meanwhile"} & {*entry}:
            monkeypatch.setitem(entry, field, f"reworded {number} {field}")
    for limit in Limit:
        monkeypatch.setitem(concurrency._TEXTS, limit, f"reworded {limit.value}")
    after = judged(world, settings_of(**settings))
    assert after.summary != before.summary
    assert advice_of(after).headline.startswith("reworded")
    assert after.bottleneck == before.bottleneck == name
    assert after.next_bottleneck == before.next_bottleneck
    assert after.predicted_bytes_per_second == before.predicted_bytes_per_second
    assert [one.setting for one in after.changes] == [one.setting for one in before.changes]


@pytest.mark.parametrize("limit", Limit)
def test_a_reworded_cause_of_the_engine_is_the_same_cause(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bottleneck() -> str | None:
        job = a_job(waits={"first_byte": 9.0}, concurrency_reason=limit.text, concurrency=4)
        figures = World().figures(settings_of(), job=False).model_copy(update={"job": job})
        none = dict.fromkeys(("listing", "first_byte", "sweep", "processing"))
        verdict = judge(figures.model_copy(update=none), settings_of())
        return verdict.bottleneck if verdict else None

    before = bottleneck()
    monkeypatch.setitem(concurrency._TEXTS, limit, "reworded")
    assert bottleneck() == before is not None


@pytest.mark.parametrize(
    ("job", "ended", "longer"),
    [
        ({"seconds": 0.06, "batches": 63}, "stream", "--set epochs=167"),
        ({"seconds": 20.0, "batches": 2}, "stream", "--set epochs=3"),
        ({"seconds": 0.9, "batches": 63}, "budget", "--max-bytes"),
        ({"seconds": 10.0, "batches": 0}, "seconds", "--seconds 20"),
    ],
)
def test_a_job_that_was_over_at_once_is_not_judged(
    job: dict[str, Any], ended: str, longer: str
) -> None:
    settings = settings_of()
    figures = World(step=0.01).figures(settings)
    assert judged(World(step=0.01), settings).bottleneck is not None
    short = a_job(ended=ended, **{"bytes": 240_000, "waits": {"list": 0.02}, **job})
    verdict = judge(figures.model_copy(update={"job": short}), settings)
    assert verdict is not None
    assert (verdict.is_short, verdict.bottleneck) == (True, None)
    assert verdict.predicted_bytes_per_second is None
    assert verdict.paste == ""
    assert longer in verdict.summary
    advice = advice_of(verdict)
    assert (advice.headline, advice.then) == ("The job was too short to judge.", "")


@pytest.mark.parametrize(
    ("seconds", "batches", "cause", "named"),
    [
        (10.0, 1, Limit.BUFFERS, "memory budget"),
        (10.0, 2, Limit.MAXIMUM, "max_concurrency"),
        (10.0, 0, Limit.BUFFERS, None),
        (9.0, 1, Limit.BUFFERS, None),
        (60.0, 2, Limit.EXHAUSTED, None),
    ],
)
def test_what_the_engine_notes_needs_no_rate(
    seconds: float, batches: int, cause: Limit, named: str | None
) -> None:
    """A budget that holds one batch takes many seconds for each where the store is slow."""
    settings = settings_of(memory_budget="64MiB")
    figures = World(latency=0.3).figures(settings)
    job = a_job(
        seconds=seconds,
        batches=batches,
        bytes=batches * 6 * MB,
        waits={"first_byte": seconds},
        concurrency_seconds={cause: seconds},
    )
    verdict = judge(figures.model_copy(update={"job": job}), settings)
    assert verdict is not None
    assert (verdict.bottleneck, verdict.is_short) == (named, named is None)


def test_a_computed_rate_is_not_told_as_a_measured_one() -> None:
    world, settings = PLANTED["trainer"]
    chosen = settings_of(**settings)
    computed = "(computed, not measured); its limit is"
    whole = judged(world, chosen)
    assert computed in whole.summary
    cut = world.sweep().model_copy(update={"cells": world.sweep().cells[:1], "plateau": None})
    short = judged(world, chosen, sweep=cut)
    assert computed in short.summary
    seen = rate_text(cut.cells[0].bytes_per_second)
    assert f"The sweep measured {seen} at most: more --seconds may show more." in short.summary


def test_where_nothing_is_to_be_changed_nothing_is_predicted() -> None:
    world, settings = PLANTED["trainer"]
    verdict = judged(world, settings_of(**settings))
    assert verdict.predicted_bytes_per_second is None
    assert verdict.next_bottleneck is None
    advice = advice_of(verdict)
    assert (advice.is_good, advice.then, advice.gain, advice.next) == (True, "", "", "")


def test_a_listing_of_little_time_is_not_to_blame() -> None:
    """A ceiling that takes a slow listing says nothing of a job whose listing was quick."""
    world = World(requests=20.0, step=0.005, shards=24, shard=16 * MB)
    cold = replace(world, page=100.0).listing()
    verdict = judged(world, settings_of(memory_budget="64MiB"), listing=cold)
    assert verdict.bottleneck == "throttling"


def test_what_is_read_ahead_takes_its_part_of_the_link() -> None:
    """A short job on a slow link has most of its bytes in buffers, and not yet in batches."""
    world, plain = PLANTED["link"]
    settings = settings_of(**plain)
    figures = replace(world, cause=Limit.BUFFERS).figures(settings)
    assert figures.job is not None
    ramp = figures.job.model_copy(update={"bytes": figures.job.bytes // 3})
    verdict = judge(figures.model_copy(update={"job": ramp}), settings)
    assert verdict is not None
    assert verdict.bottleneck == "link"


def test_one_request_at_a_time_fills_no_link() -> None:
    """A sweep that was cut short says nothing of a link that a job got more of."""
    world, plain = PLANTED["max_concurrency"]
    settings = settings_of(**plain)
    figures = world.figures(settings)
    assert figures.sweep is not None
    assert figures.job is not None
    slow = [
        cell.model_copy(update={"bytes": int(figures.job.bytes / 10 * part * cell.seconds)})
        for cell, part in zip(figures.sweep.cells, (0.9, 0.3), strict=False)
    ]
    sweep = figures.sweep.model_copy(update={"cells": slow, "plateau": None})
    verdict = judge(figures.model_copy(update={"sweep": sweep}), settings)
    assert verdict is not None
    assert verdict.bottleneck == "max_concurrency"


@pytest.mark.parametrize("cause", [Limit.BUFFERS, Limit.MAXIMUM])
def test_a_full_link_is_named_whatever_bounds_the_requests(cause: Limit) -> None:
    world, settings = PLANTED["link"]
    verdict = judged(replace(world, cause=cause), settings_of(**settings))
    assert verdict.bottleneck == "link"


def test_a_job_far_below_all_ceilings_is_explained_by_the_engine() -> None:
    """A budget that holds a batch lets the ranges come one after the other."""
    world = World(cause=Limit.BUFFERS, latency=0.2)
    settings = settings_of(memory_budget="64MiB")
    figures = world.figures(settings)
    assert figures.job is not None
    slow = figures.job.model_copy(update={"bytes": figures.job.bytes // 16})
    verdict = judge(figures.model_copy(update={"job": slow}), settings)
    assert verdict is not None
    assert verdict.bottleneck == "memory budget"
    assert "100% of its wait" in verdict.summary
    assert 'memory_budget = "128MiB"' in verdict.paste
    # The law of requests does not explain the rate, so it predicts none.
    assert verdict.predicted_bytes_per_second is None
    assert verdict.ceilings[0].bytes_per_second == verdict.bytes_per_second
    assert "measure again" in verdict.summary


@pytest.mark.parametrize(
    ("waits", "named"),
    [
        ({"decode": 9.0, "body": 1.0}, "feeder"),
        ({"order": 9.0, "body": 1.0}, "feeder"),
        ({"first_byte": 9.0, "order": 1.0}, "store latency"),
        ({"body": 9.0, "order": 1.0}, "connection bandwidth"),
        ({"wire": 9.0, "order": 1.0}, "link"),
        # A busy machine: both ends of the way wait for cores, and so does the feeder's work.
        ({"wire": 5.2, "transform": 4.4, "decode": 0.4}, "feeder"),
        ({"wire": 5.2, "body": 4.8}, "link"),
        ({"client": 9.0, "order": 1.0}, "trainer"),
    ],
)
def test_a_feeder_tells_what_its_clients_wait_for(
    waits: dict[str, float], named: str, tmp_path: Path
) -> None:
    figures = (
        World()
        .figures(settings_of(), job=False)
        .model_copy(
            update={
                "target": Target(kind="feeder", urls=["tcp://host:7070/train"]),
                "job": a_job(waits=waits, step_seconds=0.01),
                **dict.fromkeys(("listing", "first_byte", "sweep", "processing")),
            }
        )
    )
    verdict = judge(figures, None)
    assert verdict is not None
    assert verdict.bottleneck == named
    if named == "link":
        assert "unix://" in verdict.summary
        assert "bucket" not in verdict.summary
    if named == "feeder":
        path = tmp_path / "feeder.toml"
        path.write_text(f'[datasets.train]\nsource = "s3://b/x"\n{verdict.paste}')
        assert load_daemon(path).server.workers == "auto"


def test_a_feeder_without_a_batch_tells_nothing() -> None:
    target = Target(kind="feeder", urls=["tcp://host:7070/train"])
    job = a_job(seconds=30.0, batches=0, bytes=0, waits={"wire": 30.0})
    none = dict.fromkeys(("listing", "first_byte", "sweep", "processing"))
    told = {"target": target, "job": job, **none}
    verdict = judge(World().figures(settings_of()).model_copy(update=told), None)
    assert verdict is not None
    assert verdict.is_short


def test_without_figures_there_is_no_verdict() -> None:
    none = dict.fromkeys(("listing", "first_byte", "sweep", "processing", "job"))
    figures = World().figures(settings_of()).model_copy(update=none)
    assert judge(figures, settings_of()) is None


def test_two_ceilings_of_one_height_are_both_named() -> None:
    world = World(link=100.0 * MB, step=0.0099)
    verdict = judged(world, settings_of())
    assert "As near is" in verdict.summary


WORLDS = st.builds(
    World,
    latency=st.floats(0.001, 1),
    connection=st.floats(MB, 1000 * MB),
    link=st.floats(MB, 10_000 * MB),
    requests=st.floats(1, 10_000),
    loop=st.floats(0.1, 100),
    decoding=st.floats(0.01, 100),
    transform=st.floats(0.01, 100),
    step=st.none() | st.floats(0.0001, 1),
    page=st.floats(0.01, 100),
    cores=st.integers(1, 64),
    shards=st.integers(1, 10_000),
    shard=st.integers(10_000, 10**9),
)
SETTINGS = st.builds(
    settings_of,
    max_concurrency=st.sampled_from(["auto", 1, 8, 64, 512]),
    memory_budget=st.sampled_from(["64MiB", "256MiB", "1GiB"]),
    lanes=st.sampled_from(["auto", 1, 16, 48]),
    shuffle=st.booleans(),
    shuffle_window=st.sampled_from(["0", "16MiB"]),
)


@given(WORLDS, SETTINGS, st.booleans())
def test_no_prediction_exceeds_the_next_ceiling(
    world: World, settings: DatasetSettings, job: bool
) -> None:
    figures = world.figures(settings, job=job)
    verdict = judge(figures, settings)
    assert verdict is not None
    if verdict.predicted_bytes_per_second is None:
        assert verdict.next_bottleneck is None
        return
    assert verdict.bytes_per_second <= verdict.predicted_bytes_per_second * 1.0001
    if verdict.next_bottleneck in (None, verdict.bottleneck):
        return
    changed = {**settings.model_dump(exclude_defaults=True), **tomllib.loads(verdict.paste)}
    after = Resources(figures, DatasetSettings.model_validate(changed)).ceilings()
    # A change may lift other ceilings, too: larger ranges need fewer requests. Those of before
    # are corrected by what the job has reached.
    known: dict[str, float] = {}
    for one in [*verdict.ceilings, *after]:
        known[one.resource] = max(known.get(one.resource, 0.0), one.bytes_per_second)
    if verdict.next_bottleneck in known:
        assert verdict.predicted_bytes_per_second <= known[verdict.next_bottleneck] * 1.0001


SPENT = st.just(0.0) | st.floats(1e-9, 10)  # no clock tells less than a nanosecond
STAGES_WAITED = st.dictionaries(st.sampled_from(STAGES), SPENT, min_size=1)
JOBS = st.builds(
    a_job,
    bytes=st.integers(1, 100_000 * MB),
    batches=st.integers(1, 10_000),
    first_batch_seconds=st.floats(0, 5),
    waits=STAGES_WAITED,
    step_seconds=st.none() | st.floats(0.001, 10),
    throttled=st.sampled_from([0, 50]),
    loop_busy=st.none() | st.floats(0, 1),
    core_seconds=st.none() | st.floats(0, 80),
    core_wait_seconds=st.none() | st.floats(0, 80),
    concurrency_reason=st.sampled_from([None, "max_concurrency", "the store asked to slow down"]),
)


@given(WORLDS, SETTINGS, JOBS)
def test_a_cause_agrees_with_the_rate_and_the_waits(
    world: World, settings: DatasetSettings, job: Job
) -> None:
    """Or the summary says that nothing explains the rate, whatever contradictions are measured."""
    figures = world.figures(settings).model_copy(update={"job": job})
    known = {one.resource: one for one in Resources(figures, settings).ceilings()}
    verdict = judge(figures, settings)
    assert verdict is not None
    assert verdict.is_short == (job.batches < 3 and verdict.bottleneck not in CAUSES.values())
    if verdict.is_short:
        return
    if verdict.bottleneck is None:
        assert "Nothing that was measured explains this rate" in verdict.summary
        assert "Measure again" in verdict.summary
        assert verdict.predicted_bytes_per_second is None
        return
    assert "What holds it back" in verdict.summary
    own = known.get(verdict.bottleneck)
    # What the engine itself notes needs no ceiling.
    is_refused = verdict.bottleneck == "throttling" and 2 * job.throttled >= job.requests
    if own is not None and verdict.busy is None and not is_refused:
        least = {"link": EXPLAINS, "listing": LEAST}.get(verdict.bottleneck, CONTRADICTS)
        assert verdict.bytes_per_second >= 0.999 * least * own.bytes_per_second
    if verdict.bottleneck != "listing":
        assert verdict.bytes_per_second == steady_rate(job)
        waited = {resource for stage in job.waits for resource in RESOURCES_OF[stage]}
        assert verdict.bottleneck in waited
    if verdict.busy is not None:
        assert verdict.summary.startswith("This machine was busy")


def test_a_job_that_cannot_have_been_held_back_by_decoding() -> None:
    """Decoding takes 0.16 s of a core for a GB, and most of the time of a job of 14 MB/s."""
    world = World(cores=2, decoding=0.16)
    job = a_job(bytes=144 * MB, waits={"decode": 6.0, "first_byte": 4.0})
    verdict = judged(world, settings_of(), job=False)
    told = world.figures(settings_of()).model_copy(update={"job": job})
    quiet = judge(told, settings_of())
    job = job.model_copy(update={"core_seconds": 2.0, "core_wait_seconds": 6.0})
    busy = judge(told.model_copy(update={"job": job}), settings_of())
    assert quiet is not None
    assert busy is not None
    assert not verdict.from_job
    assert quiet.bottleneck is None
    assert "decoding (60% of its time)" in quiet.summary
    assert (busy.bottleneck, busy.busy) == ("cores", 0.75)
    assert busy.summary.startswith("This machine was busy with other programs: they had its cores")
    assert "for 75% of the time" in busy.summary


def test_a_simulated_store_is_one_of_the_other_programs() -> None:
    job = a_job(waits={"decode": 9.0}, core_seconds=2.0, core_wait_seconds=2.0)
    target = Target(kind="simulation", urls=["s3://simulation/shard-*"])
    figures = World(cores=2).figures(settings_of()).model_copy(update={"job": job})
    verdict = judge(figures.model_copy(update={"target": target}), settings_of())
    assert verdict is not None
    assert "the simulated store among them" in verdict.summary


def test_parts_alone_are_no_job() -> None:
    verdict = judged(World(link=50.0 * MB), settings_of(), job=False)
    assert "No job was measured" in verdict.summary
    assert "The job reads" not in verdict.summary


def judged_job(job: Job) -> Verdict:
    figures = World().figures(settings_of()).model_copy(update={"job": job})
    verdict = judge(figures, settings_of())
    assert verdict is not None
    return verdict


def job_with_samples(*sizes: int, **figures: Any) -> Job:
    samples = [
        Sample(at=at + 1.0, seconds=1.0, bytes=size, records=1) for at, size in enumerate(sizes)
    ]
    total = sum(sizes)
    return a_job(
        **{"seconds": float(len(sizes)), "bytes": total, "samples": samples, **figures},
        batches=total // MB,
    )


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (job_with_samples(*[8 * MB] * 4, *[10 * MB] * 8), "of its last two thirds, after the eng"),
        (job_with_samples(90 * MB, seconds=12.0, first_batch_seconds=3.0), "after its first batch"),
    ],
)
def test_why_the_rate_is_not_that_of_the_whole_job_is_told(job: Job, words: str) -> None:
    verdict = judged_job(job)
    assert f"{rate(job.bytes / job.seconds)}." in verdict.summary
    assert words in verdict.summary
    assert verdict.bytes_per_second == pytest.approx(10 * MB, rel=0.02)


def test_one_rate_needs_no_reason() -> None:
    verdict = judged_job(job_with_samples(*[10 * MB] * 12))
    assert "This rate is" not in verdict.summary


@pytest.mark.parametrize(("seconds", "is_short"), [(4.0, True), (12.0, False)])
def test_a_job_of_few_seconds_is_told_to_read_more(seconds: float, is_short: bool) -> None:
    job = a_job(seconds=seconds, ended="stream")
    verdict = judged_job(job)
    assert ("weighs more than in a training" in verdict.summary) == is_short
    assert ("--set epochs=3" in verdict.summary) == is_short


def test_a_listing_that_stays_is_no_change_to_measure() -> None:
    world = World(page=100.0, shard=MB, step=0.01)
    listed = judged(world, settings_of())
    stays = judged(world, settings_of(source="s3://bucket/train-{000..999}"))
    assert "the next limit is" in listed.summary
    assert stays.bottleneck == "listing"
    assert "named already" in stays.summary
    assert "after the change" not in stays.summary


def test_an_unsteady_rate_is_told() -> None:
    sizes = [60 * MB] * 2 + [MB] * 4
    samples = [
        Sample(at=at + 1.0, seconds=1.0, bytes=size, records=1) for at, size in enumerate(sizes)
    ]
    job = a_job(seconds=6.0, batches=124, bytes=124 * MB, samples=samples)
    figures = World().figures(settings_of()).model_copy(update={"job": job})
    verdict = judge(figures, settings_of())
    assert verdict is not None
    assert "was not steady" in verdict.summary


@given(WORLDS, SETTINGS, st.floats(1, 100), st.booleans())
def test_what_does_not_hold_a_job_back_may_be_faster(
    world: World, settings: DatasetSettings, times: float, job: bool
) -> None:
    figures = world.figures(settings, job=job)
    verdict = judge(figures, settings)
    assert verdict is not None
    processing, listing = figures.processing, figures.listing
    assert processing is not None
    assert listing is not None
    assert processing.parse is not None
    costs = World(loop=world.loop, decoding=world.decoding / times, transform=world.transform)
    faster: dict[Bottleneck, dict[str, Any]] = {
        "listing": {"listing": listing.model_copy(update={"seconds": listing.seconds / times})},
        "decoding": {"processing": costs.processing()},
    }
    for resource, update in faster.items():
        if resource != verdict.bottleneck and not (
            resource == "decoding" and verdict.bottleneck == "transform"
        ):
            again = judge(figures.model_copy(update=update), settings)
            assert again is not None
            assert again.bottleneck == verdict.bottleneck
