from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config import load_daemon
from streamrec.measure.figures import Bottleneck, Target, Verdict
from streamrec.measure.verdict import judge
from tests.measure.worlds import MB, PLANTED, World, a_job, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config import DatasetSettings

NAMED = [pytest.param(*planted, name, id=name) for name, planted in PLANTED.items()]


def judged(world: World, settings: DatasetSettings, **figures: Any) -> Verdict:
    verdict = judge(world.figures(settings, **figures), settings)
    assert verdict is not None
    return verdict


def followed(verdict: Verdict, settings: DatasetSettings, directory: Path) -> DatasetSettings:
    """Paste what the verdict says into a feeder's file, and return the dataset's settings."""
    kept = settings.model_dump(exclude_unset=True, exclude_none=True, mode="json")
    changed = {change.setting for change in verdict.changes}
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


@pytest.mark.parametrize(
    ("world", "settings", "name"), [planted for planted in NAMED if planted.id != "trainer"]
)
def test_names_it_without_a_job(world: World, settings: dict[str, Any], name: str) -> None:
    assert judged(world, settings_of(**settings), job=False).bottleneck == name


def test_every_bottleneck_is_named_in_some_world() -> None:
    assert {*PLANTED, "feeder"} == set(get_args(Bottleneck))


@pytest.mark.parametrize(("world", "settings", "name"), NAMED)
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
        "trainer": replace(world, step=None),
        "listing": replace(world, page=0.0),
    }.get(name, world)
    rate = after.rate(followed(verdict, before, tmp_path))
    assert verdict.predicted_bytes_per_second == pytest.approx(rate, rel=0.2)
    assert verdict.predicted_bytes_per_second >= 1.1 * verdict.bytes_per_second


@pytest.mark.parametrize(("world", "settings", "name"), NAMED)
def test_its_summary_has_the_cause_the_change_and_what_comes_next(
    world: World, settings: dict[str, Any], name: str
) -> None:
    verdict = judged(world, settings_of(**settings))
    assert "What holds it back is" in verdict.summary
    assert "is the next limit" in verdict.summary
    for change in verdict.changes:
        assert change.why.rstrip(".") in verdict.summary
    assert verdict.evidence


@pytest.mark.parametrize(
    ("waits", "named"),
    [
        ({"decode": 9.0, "body": 1.0}, "feeder"),
        ({"order": 9.0, "body": 1.0}, "feeder"),
        ({"first_byte": 9.0, "order": 1.0}, "store latency"),
        ({"body": 9.0, "order": 1.0}, "connection bandwidth"),
        ({"wire": 9.0, "order": 1.0}, "link"),
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
    if named == "feeder":
        path = tmp_path / "feeder.toml"
        path.write_text(f'[datasets.train]\nsource = "s3://b/x"\n{verdict.paste}')
        assert load_daemon(path).server.workers == "auto"


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
    verdict = judged(world, settings, job=job)
    assert verdict.bytes_per_second <= verdict.predicted_bytes_per_second * 1.0001
    known = {one.resource: one.bytes_per_second for one in verdict.ceilings}
    if verdict.paste.startswith("cache") or verdict.next_bottleneck is None:
        return
    if verdict.next_bottleneck != verdict.bottleneck and verdict.next_bottleneck in known:
        assert verdict.predicted_bytes_per_second <= known[verdict.next_bottleneck] * 1.0001


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
