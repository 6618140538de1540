from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError
from streamrec.measure.ceilings import Reading, Resources, memory_needs
from streamrec.measure.figures import Cell, Listing, Sample, Sweep
from streamrec.plan.reading.ranges import KIB, MIB
from streamrec.report.words import rate as rate_text
from tests.measure.worlds import MB, World, a_job, machine, settings_of, stage

if TYPE_CHECKING:
    from streamrec.flow.stages import Bottleneck
    from streamrec.measure.figures import Job


SHARDS = Listing(shards=400, bytes=400 * 2_000_000, requests=1, seconds=1.0)


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({"memory_budget": "16MiB", "max_concurrency": 4, "lanes": 8}, 3.9),
        ({"memory_budget": "16MiB", "max_concurrency": 12, "lanes": 8}, 11.1),
        ({"memory_budget": "16MiB", "lanes": 8}, 36.8),
        ({"memory_budget": "32MiB", "lanes": 16}, 72.7),
        (
            {"memory_budget": "16MiB", "lanes": 8, "shuffle": True, "shuffle_window": "4MiB"},
            24.7,
        ),
    ],
)
def test_as_many_requests_are_under_way_as_were_measured(
    settings: dict[str, Any], measured: float
) -> None:
    """The numbers are of real streams: requests a second, times the seconds of one."""
    reading = Reading.of(settings_of(**settings), SHARDS)
    assert reading.in_flight == pytest.approx(measured, rel=0.1)


def test_the_setting_that_allows_no_more_is_named() -> None:
    few = settings_of(max_concurrency=4)
    assert Reading.of(few, SHARDS).limit == "max_concurrency"
    small = settings_of(memory_budget="16MiB", lanes=8)
    assert Reading.of(small, SHARDS).limit == "memory_budget"


def test_ranges_are_no_larger_than_shards() -> None:
    assert Reading.of(settings_of(), SHARDS).range_bytes == 2_000_000
    assert Reading.of(settings_of(), None).range_bytes == 8 * MIB
    assert Reading.of(settings_of(memory_budget="64MiB"), None).range_bytes == 256 * KIB


def test_empty_shards_have_no_mean() -> None:
    empty = Listing(shards=0, bytes=0, requests=1, seconds=1.0)
    assert Reading.of(settings_of(), empty).range_bytes == 8 * MIB


def test_needs_are_those_of_the_whole_dataset() -> None:
    assert memory_needs(settings_of(), 1000).lanes == 48
    assert memory_needs(settings_of(), 5).lanes == 5
    assert memory_needs(settings_of(shuffle=True), 1000).sublanes == 144
    assert memory_needs(settings_of(source="file:///x"), 1).near
    parts = {"a": "s3://b/a-*", "b": "s3://b/b-*"}
    mixed = settings_of(source=parts, weights={"a": 1.0, "b": 1.0}, lanes=4, epochs=None)
    assert memory_needs(mixed, 1000).sublanes == 8


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="too small"):
        Reading.of(settings_of(memory_budget="8MiB", lanes=4096), None)


def rates(
    world: World, settings: dict[str, Any] | None = None, **more: Any
) -> dict[Bottleneck, float]:
    chosen = settings_of(**settings or {})
    figures = world.figures(chosen).model_copy(update={"job": None, **more})
    resources = Resources(figures, chosen)
    return {one.resource: one.bytes_per_second for one in resources.ceilings()}


def test_requests_under_way_follow_littles_law() -> None:
    world = World(latency=0.2, connection=100.0 * MB, shard=8 * MB)
    found = rates(world, {"max_concurrency": 4})
    assert found["store latency"] == pytest.approx(4 * 8e6 / (0.2 + 0.08))
    world = World(latency=0.01, connection=10.0 * MB, shard=8 * MB)
    found = rates(world, {"max_concurrency": 4})
    assert found["connection bandwidth"] == pytest.approx(4 * 8e6 / (0.01 + 0.8))


def test_a_request_that_stalls_counts_as_one_that_is_sent_again() -> None:
    world = World(latency=0.1)
    figures = world.figures(settings_of(), job=False)
    assert figures.first_byte is not None
    slow = figures.first_byte.model_copy(update={"seconds": [0.1] * 99 + [10.0]})
    resources = Resources(figures.model_copy(update={"first_byte": slow}), settings_of())
    assert resources.first_byte == pytest.approx(0.99 * 0.1 + 0.01 * 0.3)


def test_the_link_is_what_requests_take_from_one_another() -> None:
    assert rates(World(link=50.0 * MB))["link"] == pytest.approx(50e6, rel=0.01)
    assert "link" not in rates(World(loop=20.0))  # the loop is
    assert "link" not in rates(World(latency=1.0, connection=MB))  # it still grows
    assert "link" not in rates(World(requests=10.0))  # the store refuses more


def on_a_full_link(**figures: Any) -> Job:
    """Return a job of 40 requests at a time, each of which took 4 s."""
    samples = [
        Sample(at=at + 1.0, seconds=1.0, bytes=MB, records=1, in_flight=40) for at in range(10)
    ]
    found = {"bytes": 30 * MB, "requests": 100, "waits": {"body": 5.0}, "samples": samples}
    return a_job(**{**found, **figures})


@pytest.mark.parametrize(
    ("figures", "link"),
    [
        ({}, 3 * MB),
        ({"bytes_read": 40 * MB}, 4 * MB),
        ({"waits": {"first_byte": 6.0, "body": 5.0}}, None),  # the store is slow to answer
        ({"waits": {"client": 8.0, "body": 2.0}}, None),
        ({"throttled": 1}, None),  # some waited to be sent again
        ({"requests": 100_000}, None),  # each took what one takes alone
        ({"samples": []}, None),
    ],
)
def test_a_job_fills_a_link_that_the_sweep_did_not(
    figures: dict[str, Any], link: float | None
) -> None:
    """Requests under way get slower by one another, and the job waits for their bodies."""
    world = World(connection=100.0 * MB)
    assert rates(world, {}, sweep=None).get("link") is None
    assert rates(world, {}, job=on_a_full_link(**figures), sweep=None).get("link") == link


def test_a_rate_that_is_always_the_same_is_a_link_however_few_the_requests() -> None:
    """Two requests of a link that one nearly fills get little less than they would get alone."""
    world = World(connection=2.4 * MB, latency=0.1)
    for rate, link in ((2.2 * MB, 2.5 * MB), (2.1 * MB, None)):
        cells = [
            Cell(range_bytes=size, concurrency=count, seconds=1.0, bytes=int(got), requests=9)
            for size, count, got in (
                (MB // 4, 2, 2.5 * MB),
                (MB // 4, 4, 2.3 * MB),
                (MB, 2, rate),
                (MB, 4, 1.5 * MB),
            )
        ]
        sweep = Sweep(cells=cells, connection_bytes_per_second=2.4 * MB, plateau=None)
        assert rates(world, sweep=sweep).get("link") == link
        assert rates(world, sweep=sweep, first_byte=None).get("link") == link


def test_a_job_s_own_link_goes_before_that_of_the_sweep() -> None:
    assert rates(World(link=50.0 * MB), {}, job=on_a_full_link())["link"] == 3 * MB


def test_throttling_is_what_was_answered_meanwhile() -> None:
    found = rates(World(requests=10.0, shard=4 * MB))
    assert found["throttling"] == pytest.approx(10 * 4e6, rel=0.1)
    assert "throttling" not in rates(World())
    job = a_job(seconds=10.0, requests=150, throttled=50)
    assert rates(World(shard=4 * MB), {}, job=job)["throttling"] == pytest.approx(4e7)


def test_the_event_loop_is_one_core() -> None:
    assert rates(World(loop=10.0))["event loop"] == pytest.approx(1e8, rel=0.02)
    assert "event loop" not in rates(World(), sweep=None)


def test_the_event_loop_scans_too() -> None:
    figures, settings = World(loop=10.0).figures(settings_of(), job=False), settings_of()
    whole = Resources(figures, settings).loop_cost
    without = Resources(figures.model_copy(update={"processing": None}), settings).loop_cost
    assert whole is not None
    assert without is not None
    assert whole > without


def test_a_busy_loop_of_the_job_says_more_than_the_sweep() -> None:
    job = a_job(seconds=10.0, bytes=100 * MB, loop_busy=0.95)
    found = rates(World(loop=1.0), {}, job=job)
    assert found["event loop"] == pytest.approx(1e7 / 0.95)


def test_decoding_and_functions_share_threads_and_cores() -> None:
    found = rates(World(decoding=10.0, transform=5.0, cores=64))
    assert found["decoding"] == pytest.approx(4e9 / 15)
    assert found["transform"] == pytest.approx(4e9 / 5)  # without decoding
    found = rates(World(decoding=10.0, transform=0.0, loop=5.0, cores=2))
    assert found["decoding"] == pytest.approx(2e9 / 15, rel=0.01)
    assert "transform" not in found


def test_decompressing_counts_as_decoding_and_widens_the_link() -> None:
    world = World(link=50.0 * MB, decoding=1.0, transform=0.0)
    processing = world.processing().model_copy(
        update={"stored_bytes": 25 * MB, "decompress": stage(3.0)}
    )
    found = rates(world, processing=processing)
    assert found["link"] == pytest.approx(4 * 50e6, rel=0.01)
    assert found["decoding"] == pytest.approx(4e9 / 4, rel=0.01)


def test_a_filter_leaves_fewer_bytes_of_the_link() -> None:
    job = a_job(bytes=100 * MB, bytes_read=400 * MB)
    found = rates(World(link=100.0 * MB), {"filter": "module:function"}, job=job)
    assert found["link"] == pytest.approx(25e6, rel=0.01)


def test_the_trainer_takes_a_batch_a_step() -> None:
    job = a_job(batches=100, bytes=200 * MB, step_seconds=0.05)
    assert rates(World(), {}, job=job)["trainer"] == pytest.approx(2e6 / 0.05)
    for client, step in ((10.0, 0.1), (10.1, 0.05)):  # most of the last is lateness
        late = job.model_copy(update={"waits": {"client": client}})
        assert rates(World(), {}, job=late)["trainer"] == pytest.approx(2e6 / step)


def test_a_step_that_took_longer_than_asked_for_says_so() -> None:
    job = a_job(batches=100, bytes=200 * MB, step_seconds=0.05)
    late = job.model_copy(update={"waits": {"client": 8.0}})
    whys = [
        one.why
        for measured in (job, late)
        for one in Resources(
            World().figures(settings_of()).model_copy(update={"job": measured}), settings_of()
        ).ceilings()
        if one.resource == "trainer"
    ]
    assert whys == [
        "a step takes 50 ms, and a batch has 2.0 MB",
        "a step takes 80 ms, of which 50 ms were asked for, and a batch has 2.0 MB",
    ]


def test_the_listing_comes_before_a_run_that_ends() -> None:
    world = World(page=10.0, shards=100, shard=MB)
    assert rates(world)["listing"] == pytest.approx(1e7)
    assert rates(world, {"epochs": 3})["listing"] == pytest.approx(3e7)
    assert "listing" not in rates(world, {"epochs": None})
    job = a_job(batches=100, bytes=200 * MB, waits={"list": 5.0})
    steps = {"epochs": 2, "steps_per_epoch": 5, "batch_size": 10}
    assert rates(world, steps, job=job)["listing"] == pytest.approx(4e6), "the job's own"


def test_unknown_settings_give_no_ceiling_of_requests() -> None:
    figures = World().figures(settings_of(), job=False)
    found = {one.resource for one in Resources(figures, None).ceilings()}
    assert found == {"decoding", "transform", "event loop"}


def test_each_says_its_law() -> None:
    figures = World(link=50.0 * MB).figures(settings_of(), machine=machine(2))
    for ceiling in Resources(figures, settings_of()).ceilings():
        assert len(ceiling.why) > 20


def test_cells_without_bytes_cost_nothing() -> None:
    empty = Cell(range_bytes=1, concurrency=1, seconds=1.0, bytes=0, requests=0)
    sweep = Sweep(cells=[empty], connection_bytes_per_second=None, plateau=None)
    assert "event loop" not in rates(World(), sweep=sweep)


def test_rates_are_written_in_powers_of_ten() -> None:
    assert rate_text(12_300_000) == "12.3 MB/s"
