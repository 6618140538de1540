from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from streamrec.config import machine as config_machine
from streamrec.flow.stages import Bottleneck
from streamrec.measure import advice as advice_module
from streamrec.measure.advice import Advice, _for_memory_budget, advise, paste_of
from streamrec.measure.ceilings import Resources
from streamrec.measure.evidence import Finding, find
from streamrec.measure.figures import Change
from streamrec.plan.reading.concurrency import Limit
from tests.measure.worlds import GIB, MB, PLANTED, World, machine, settings_of, stage

if TYPE_CHECKING:
    from streamrec.flow.stages import Bottleneck


def changes(world: World, settings: dict[str, Any], **more: Any) -> dict[str | None, Any]:
    chosen = settings_of(**settings)
    figures = world.figures(chosen, **more)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    return {one.setting: one.value for one in advise(figures, chosen, finding).changes}


PREDICTED: dict[Bottleneck, tuple[float | None, float, dict[str | None, Any]]] = {
    "store latency": (500.150, 1275.096, {"max_concurrency": 16}),
    "connection bandwidth": (100.130, 595.393, {"max_concurrency": 24}),
    "link": (200.0, 1996.008, {"cache": "144GiB", None: ANY}),
    "throttling": (200.581, 800.0, {"memory_budget": "1024MiB"}),
    "memory budget": (500.006, 513.184, {"memory_budget": "512MiB"}),
    "max_concurrency": (500.150, 1275.096, {"max_concurrency": 16}),
    "event loop": (100.0, 388.331, {None: ANY}),
    "decoding": (100.150, 1996.008, {"cache": {"of": "batches"}, None: ANY}),
    "transform": (100.003, 1996.008, {None: ANY}),
    "trainer": (None, 6666.667, {None: ANY}),
    "listing": (100.0, 1996.008, {"source": None, None: ANY}),
    "cores": (100.418, 1996.008, {None: ANY}),
}
"""The MB/s behind the changes with a job and without one (``None``: not known), and the changes.

With a job the trainer is next; it takes 1 MB in each of its steps.
"""


@pytest.mark.parametrize("name", PREDICTED)
def test_the_rate_that_changes_lead_to(name: Bottleneck) -> None:
    world, settings = PLANTED[name]
    chosen = settings_of(**settings)
    *rates, expected = PREDICTED[name]
    assert changes(world, settings) == expected
    for job, rate in zip((True, False), rates, strict=True):
        figures = world.figures(chosen, job=job)
        finding = find(figures, Resources(figures, chosen).ceilings())
        assert finding is not None
        expected_rate = None if rate is None else pytest.approx(rate * MB, rel=1e-4)
        assert advise(figures, chosen, finding).rate == expected_rate


def test_the_link_is_next_where_it_was_seen_full() -> None:
    world, chosen = World(latency=0.2, link=250.0 * MB), settings_of(max_concurrency=4)
    figures = world.figures(chosen)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    advice = advise(figures, chosen, finding)
    assert (advice.rate, advice.next) == (250.0 * MB, "link")


def test_no_more_is_predicted_than_the_store_was_seen_to_give() -> None:
    """At 300 MB/s the link is not seen to be full: 64 requests would give little more."""
    world, chosen = World(latency=0.2, link=300.0 * MB), settings_of(max_concurrency=4)
    # Of 1 MiB, and 1 to 64 at a time: more points would show that the rate stays the same.
    sweep = world.sweep().model_copy(update={"cells": world.sweep().cells[:4], "plateau": None})
    figures = world.figures(chosen, sweep=sweep)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    advice = advise(figures, chosen, finding)
    assert (advice.rate, advice.next) == (300.0 * MB, None)


@pytest.mark.parametrize(("seen", "times"), [(1.09, None), (1.11, 1.11), (2.0, 2.0)])
def test_little_more_is_no_promise(seen: float, times: float | None) -> None:
    """One cell was seen, so nothing tells where a link would be full."""
    world, chosen = World(latency=0.2), settings_of(max_concurrency=4)
    rate = world.rate(chosen)
    cell = world.cell(MB, 1).model_copy(update={"bytes": int(10 * seen * rate)})
    sweep = world.sweep().model_copy(update={"cells": [cell], "plateau": None})
    figures = world.figures(chosen, sweep=sweep)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    advice = advise(figures, chosen, finding)
    assert advice.rate == (None if times is None else pytest.approx(times * rate, rel=1e-2))
    assert advice.next is None


def test_latency_needs_as_many_requests_as_little_says() -> None:
    # 1 MB each 200 ms; 100 MB/s need 20 requests, and a fifth more so that they are no limit.
    world = World(latency=0.2, shard=MB, step=0.01)
    assert changes(world, {"max_concurrency": 4}) == {"max_concurrency": 24}


def test_no_more_memory_is_taken_than_is_needed() -> None:
    world = World(latency=1.0, step=0.01)
    found = changes(world, {"memory_budget": "64MiB", "lanes": 16})
    assert found == {"memory_budget": "256MiB"}


@pytest.mark.parametrize(
    ("budget", "advised"),
    [("64MiB", "128MiB"), ("48MiB", "128MiB"), ("65MiB", "256MiB"), ("1536MiB", "3072MiB")],
)
def test_twice_the_memory_is_advised_where_buffers_are_full(budget: str, advised: str) -> None:
    settings = settings_of(memory_budget=budget)
    figures = World().figures(settings, job=False)
    [change, _] = _for_memory_budget(figures, settings)
    assert (change.setting, change.value) == ("memory_budget", advised)


@pytest.mark.parametrize(("budget", "is_told"), [("64MiB", True), ("1GiB", False), ("auto", False)])
def test_a_machine_with_more_memory_needs_no_budget(
    budget: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (advice_module, config_machine):
        monkeypatch.setattr(module, "automatic_budget", lambda: GIB)
    settings = settings_of(memory_budget=budget)
    [change, _] = _for_memory_budget(World().figures(settings, job=False), settings)
    assert ("without the setting it is 1.0 GiB on this machine" in change.why) == is_told


def test_a_number_of_requests_may_be_left_to_the_engine() -> None:
    world, chosen = World(latency=0.2), settings_of(max_concurrency=4)
    figures = world.figures(chosen)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    change, *_ = advise(figures, chosen, finding).changes
    assert change.setting == "max_concurrency"
    assert "without the setting the engine finds the number" in change.why


def test_throttling_needs_larger_ranges() -> None:
    world = World(requests=100.0, step=0.005)
    found = changes(world, {"memory_budget": "64MiB"})
    assert found.keys() == {"memory_budget"}


def test_no_more_than_a_quarter_of_the_machine_is_advised() -> None:
    world = World(latency=5.0, step=0.001)
    found = changes(world, {"memory_budget": "64MiB"}, machine=machine(memory_bytes=GIB))
    assert found == {"memory_budget": "256MiB"}


def test_where_requests_cannot_be_more_a_cache_or_larger_shards_are() -> None:
    world = World(latency=2.0, shard=10_000, shards=1000, step=0.001)
    found = changes(world, {"max_concurrency": 512})
    assert found["cache"] == "1GiB"
    assert None in found


def test_a_cache_that_is_there_is_not_advised_again() -> None:
    found = changes(World(link=10.0 * MB), {"cache": "memory"})
    assert "cache" not in found


def test_decoded_batches_are_kept_where_they_come_again() -> None:
    slow = World(decoding=100.0, step=0.01)
    assert changes(slow, {})["cache"] == {"of": "batches"}
    assert "cache" not in changes(slow, {"shuffle": True})


@pytest.mark.parametrize(
    "more",
    [
        {"shuffle": True},
        {"map": "module:function"},
        {"filter": "module:function"},
        {"ordered": False},
    ],
)
def test_no_batches_are_kept_where_a_cache_refuses_them(more: dict[str, Any]) -> None:
    """Decoded pictures are, below what is done to them."""
    slow = World(decoding=100.0, step=0.01)
    assert "cache" not in changes(slow, more)
    settings = settings_of(**more)
    figures = slow.figures(settings)
    assert figures.processing is not None
    pictures = figures.processing.model_copy(update={"decode": stage(50.0)})
    figures = figures.model_copy(update={"processing": pictures})
    finding = find(figures, Resources(figures, settings).ceilings())
    assert finding is not None
    found = {one.setting: one.value for one in advise(figures, settings, finding).changes}
    assert found["cache"] == {"of": "pictures"}
    settings_of(**more, cache=found["cache"])


def test_decompressing_costs_what_compression_saves() -> None:
    world = World(decoding=100.0)
    processing = world.processing().model_copy(
        update={"stored_bytes": 25 * MB, "decompress": stage(100.0)}
    )
    chosen = settings_of(shuffle=True)
    figures = world.figures(chosen, processing=processing)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    assert "4.0 times the link" in advise(figures, chosen, finding).changes[0].why


def test_the_python_kernel_is_named_where_the_loop_is_busy() -> None:
    world, chosen = World(loop=50.0), settings_of()
    figures = world.figures(chosen, machine=machine(kernel="python"))
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    assert "kernel" in advise(figures, chosen, finding).changes[0].why


def listing_advice(world: World, counted: str | None = None, **settings: Any) -> Advice:
    chosen = settings_of(**settings)
    listing = world.listing().model_copy(update={"counted": counted})
    figures = world.figures(chosen, listing=listing, job=False)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    assert finding.bottleneck == "listing"
    return advise(figures, chosen, finding)


def test_a_counted_range_stands_for_the_glob() -> None:
    world = World(page=1000.0, shards=250, shard=MB, latency=0.5)
    counted = "s3://bucket/train-{00000..00249}.tfrecord"
    change, _ = listing_advice(world, counted).changes
    assert (change.setting, change.value) == ("source", counted)
    assert "about 1e+03 s" in change.why
    assert paste_of([change]) == f'source = "{counted}"\n'


def test_what_a_counted_range_saves_is_the_listing_less_a_request() -> None:
    world = World(page=1.0, shards=250, shard=MB, latency=0.1)
    counted = "s3://bucket/train-{00000..00249}.tfrecord"
    advice = listing_advice(world, counted)
    assert "about 0.9 s" in advice.changes[0].why
    as_list = listing_advice(world)
    assert "as a list: it saves the listing, about 1 s" in as_list.changes[0].why
    assert advice.rate
    assert as_list.rate
    assert as_list.rate > advice.rate
    assert 1 / advice.rate - 1 / as_list.rate == pytest.approx(0.1 / (250 * MB))


def test_names_in_words_are_nothing_to_paste() -> None:
    change, _ = listing_advice(World(page=1000.0, shards=250, shard=MB)).changes
    assert (change.setting, change.value) == ("source", None)
    assert paste_of([change]) == ""


def test_a_listing_of_one_request_is_left_as_it_is() -> None:
    world = World(page=0.9, latency=0.5, shards=8, shard=MB)
    advice = listing_advice(world, "s3://bucket/train-{0..7}.tfrecord")
    assert [one.setting for one in advice.changes] == [None]
    assert "nothing to gain" in advice.changes[0].why
    assert advice.next is None


def test_only_what_was_listed_is_saved_and_not_what_else_was_opened() -> None:
    """The manifest is read before the first record, too, whatever the source says."""
    world, chosen = World(page=1.0, latency=0.1, shards=250, shard=MB), settings_of()
    counted = "s3://bucket/train-{00000..00249}.tfrecord"
    listing = world.listing().model_copy(update={"counted": counted})
    whole = world.figures(chosen, listing=listing)
    assert whole.job is not None
    said, rates = [], []
    for listed in (0.15, 0.6):
        job = whole.job.model_copy(update={"listed_seconds": listed, "seconds": 4.0})
        figures = whole.model_copy(update={"job": job})
        finding = Finding("listing", 100.0 * MB, [], job)
        advice = advise(figures, chosen, finding)
        said.append(advice.changes[0].why)
        rates.append(advice.rate)
    assert "nothing to gain" in said[0]
    assert "about 0.5 s" in said[1]
    # 250 MB with half a second of what else is opened, at 480 MB/s of the lanes.
    assert rates == [None, pytest.approx(250 * MB / (0.4 + 0.1 + 250 / 480), rel=0.02)]


@pytest.mark.parametrize(
    "source", ["s3://bucket/train-{00000..00249}.tfrecord", ["s3://bucket/a", "s3://bucket/b"]]
)
def test_shards_that_are_named_are_not_told_to_be_named(source: str | list[str]) -> None:
    world = World(page=1000.0, shards=250, shard=MB)
    advice = listing_advice(world, source=source)
    assert [one.setting for one in advice.changes] == [None]
    assert "named already" in advice.changes[0].why
    assert advice.next is None


def test_the_ceiling_of_a_named_source_is_of_a_look_up() -> None:
    world = World(page=1000.0, shards=250, shard=MB)
    for source, word in {"s3://b/x-{0..249}": "looked up", "s3://b/x-*": "listed"}.items():
        chosen = settings_of(source=source)
        ceilings = Resources(world.figures(chosen), chosen).ceilings()
        (why,) = [one.why for one in ceilings if one.resource == "listing"]
        assert f"before 250 shards are {word} " in why


@pytest.mark.parametrize(("ratio", "told"), [(3.14, True), (1.02, False), (None, False)])
def test_a_full_link_is_told_what_compression_brings(ratio: float | None, told: bool) -> None:
    world, chosen = World(link=10.0 * MB), settings_of()
    processing = world.processing().model_copy(update={"zstd_ratio": ratio})
    figures = world.figures(chosen, processing=processing)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    said = " ".join(one.why for one in advise(figures, chosen, finding).changes)
    assert ("3.1 times smaller" in said) == told


@pytest.mark.parametrize(
    ("bottleneck", "busy", "words"),
    [(None, None, "Measure again"), ("cores", 0.4, "End the other"), ("cores", None, "More cores")],
)
def test_nothing_is_promised_where_nothing_is_known(
    bottleneck: Any, busy: float | None, words: str
) -> None:
    chosen = settings_of()
    figures = World().figures(chosen)
    finding = Finding(bottleneck, 10.0 * MB, [], figures.job, busy)
    advice = advise(figures, chosen, finding)
    assert words in advice.changes[0].why
    assert (advice.rate, advice.next) == (None, None)


def test_named_shards_tell_their_sizes_one_after_the_other() -> None:
    world, chosen = World(page=100.0, latency=0.1, shards=500, shard=10_000), settings_of()
    figures = world.figures(chosen)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    assert advise(figures, chosen, finding).rate == pytest.approx(48 * 10_000 / 0.1, rel=0.01)


def test_few_lanes_are_told_to_list_on() -> None:
    world = World(page=2.0, latency=1.0, shards=2, shard=10_000)
    chosen = settings_of(lanes=1)
    figures = world.figures(chosen)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    advice = advise(figures, chosen, finding)
    assert "Fewer and larger" in advice.changes[0].why
    assert advice.rate
    assert advice.rate > finding.rate


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("max_concurrency", 64), "max_concurrency = 64\n"),
        (("memory_budget", "1024MiB"), 'memory_budget = "1024MiB"\n'),
        (("check_crc", False), "check_crc = false\n"),
        (("cache", {"of": "batches"}), 'cache = { of = "batches" }\n'),
        (("server.workers", "auto"), '[server]\nworkers = "auto"\n'),
        ((None, None), ""),
    ],
)
def test_changes_are_written_as_toml(change: tuple[str | None, Any], line: str) -> None:
    assert paste_of([Change(setting=change[0], value=change[1], why="")]) == line


def test_what_the_law_does_not_know_is_not_predicted() -> None:
    """A benchmark that was cut short before its sweep has no ceiling of the requests."""
    world, chosen = World(latency=0.5, cause=Limit.BUFFERS), settings_of(memory_budget="64MiB")
    figures = world.figures(chosen, first_byte=None, sweep=None)
    finding = find(figures, Resources(figures, chosen).ceilings())
    assert finding is not None
    assert finding.bottleneck == "memory budget"
    advice = advise(figures, chosen, finding)
    assert (advice.rate, advice.next) == (None, None)
    assert advice.changes[0].setting == "memory_budget"
