from __future__ import annotations

from typing import Any

import pytest

from streamrec.measure.evidence import find, longest_wait, sentences_of
from streamrec.measure.figures import Ceiling, Cell, Figures, Sample, Sweep
from streamrec.plan.reading.concurrency import Limit
from tests.measure.worlds import MB, World, a_job, machine, settings_of


def ceiling(resource: Any, rate: float) -> Ceiling:
    return Ceiling(resource=resource, bytes_per_second=rate, why="by its law")


def figures(**job: Any) -> Figures:
    return World().figures(settings_of()).model_copy(update={"job": a_job(**job)})


NETWORK = [ceiling("link", 110 * MB), ceiling("store latency", 150 * MB)]


def test_the_lowest_ceiling_of_what_was_waited_for_is_to_blame() -> None:
    found = find(figures(waits={"first_byte": 9.0, "decode": 1.0}), NETWORK)
    assert found is not None
    assert found.bottleneck == "link"
    assert found.rate == pytest.approx(100 * MB, rel=0.01)
    assert found.ceilings[0].bytes_per_second == 110 * MB
    assert [one.resource for one in found.others] == ["store latency"]


def test_a_ceiling_that_explains_the_rate_is_before_a_longer_wait() -> None:
    known = [*NETWORK, ceiling("decoding", 900 * MB)]
    found = find(figures(waits={"decode": 6.0, "body": 4.0}), known)
    assert found is not None
    assert found.bottleneck == "link"


@pytest.mark.parametrize(
    ("decoding", "named"), [(900 * MB, None), (210 * MB, None), (190 * MB, "decoding")]
)
def test_what_no_ceiling_explains_is_nobody_s_fault(decoding: float, named: str | None) -> None:
    known = [ceiling("link", 500 * MB), ceiling("decoding", decoding)]
    found = find(figures(waits={"decode": 6.0, "body": 4.0}), known)
    assert found is not None
    assert found.bottleneck == named
    assert len(found.ceilings) == 2


def test_a_link_is_full_only_if_the_job_comes_near_it() -> None:
    found = find(figures(waits={"body": 10.0}), [ceiling("link", 130 * MB)])
    assert found is not None
    assert found.bottleneck is None


def sweep_of(*rates: int) -> Sweep:
    """Return a sweep of a request alone that got much, and of several that got these rates."""
    cells = [
        Cell(range_bytes=MB, concurrency=1 + at, seconds=1.0, bytes=rate, requests=9)
        for at, rate in enumerate((99 * MB, *rates))
    ]
    return Sweep(cells=cells, connection_bytes_per_second=1e9, plateau=None)


def busy(**job: Any) -> Figures:
    """Return the figures of a job that had to wait for a core half of the time."""
    told = figures(core_seconds=4.0, core_wait_seconds=4.0, **job)
    return told.model_copy(update={"machine": machine(2), "sweep": None})


@pytest.mark.parametrize(
    ("waits", "named"),
    [
        ({"decode": 9.0, "body": 1.0}, "cores"),
        ({"body": 7.0, "order": 3.0}, "cores"),  # all connections had less of the machine
        ({"body": 9.0, "order": 1.0}, "link"),
    ],
)
def test_other_programs_have_the_cores(waits: dict[str, float], named: str) -> None:
    known = [ceiling("link", 110 * MB), ceiling("decoding", 2100 * MB)]
    found = find(busy(waits=waits), known)
    assert found is not None
    assert (found.bottleneck, found.busy) == (named, 0.5)
    if named == "cores":
        assert "other programs" in found.ceilings[0].why


@pytest.mark.parametrize(
    ("under_way", "refused", "named"),
    [
        (2, 0, "memory budget"),
        (3, 0, "cores"),
        (None, 0, "cores"),
        (3, 550, "throttling"),
    ],
)
def test_full_buffers_of_a_job_that_is_held_up_are_those_of_late_requests(
    under_way: int | None, refused: int, named: str
) -> None:
    """A request alone takes 10 ms; here each takes 9 ms for each that is under way."""
    samples = [
        Sample(at=at, seconds=1.0, bytes=MB, records=1, in_flight=under_way) for at in range(1, 11)
    ]
    told = busy(
        waits={"first_byte": 6.0, "order": 4.0},
        requests=1100,
        throttled=refused,
        samples=samples,
        concurrency_seconds={Limit.BUFFERS: 6.0},
    )
    found = find(told, [])
    assert found is not None
    assert found.bottleneck == named


@pytest.mark.parametrize(("points", "named"), [(2, "cores"), (3, "link")])
def test_a_link_is_known_on_a_busy_machine_by_a_rate_that_is_always_the_same(
    points: int, named: str
) -> None:
    """What other programs leave to a sweep differs from point to point."""
    rates = [90 * MB] * points + [60 * MB] * 5 + [100 * MB]
    sweep = sweep_of(*rates[1:])
    told = busy(waits={"body": 5.0, "order": 5.0}).model_copy(update={"sweep": sweep})
    found = find(told, [ceiling("link", 110 * MB)])
    assert found is not None
    assert found.bottleneck == named


def test_a_job_that_read_a_quarter_more_than_the_link_has_another() -> None:
    known = [ceiling("link", 80 * MB), ceiling("connection bandwidth", 105 * MB)]
    for read, named in ((99 * MB, "link"), (101 * MB, "connection bandwidth")):
        found = find(figures(waits={"body": 9.0}, bytes_read=10 * read), known)
        assert found is not None
        assert found.bottleneck == named


@pytest.mark.parametrize("named", ["decoding", "transform"])
def test_a_step_on_a_busy_machine_is_known_by_the_core_time_that_it_took(named: Any) -> None:
    """The job got a fifth of the time of its two cores; a quarter of it makes a step a cause."""
    stage = {"decoding": "decode"}.get(named, named)
    told = busy(waits={stage: 9.0, "body": 1.0})
    for rate, expected in ((110 * MB, named), (1900 * MB, named), (2100 * MB, "cores")):
        found = find(told, [ceiling(named, rate)])
        assert found is not None
        assert (found.bottleneck, found.busy) == (expected, 0.5)


@pytest.mark.parametrize(
    ("wait", "named", "rate"), [("decode", "decoding", 3900), ("order", "event loop", 950)]
)
def test_the_core_time_is_held_against_the_threads_that_a_step_has(
    wait: str, named: Any, rate: float
) -> None:
    """Four threads decode, and one runs the loop, of however many cores."""
    told = busy(waits={wait: 9.0, "body": 1.0}).model_copy(update={"machine": machine(64)})
    for limit, expected in ((rate * MB, named), (1.1 * rate * MB, "cores")):
        found = find(told, [ceiling(named, limit)])
        assert found is not None
        assert found.bottleneck == expected


def test_a_shorter_wait_for_a_step_that_took_the_core_time_is_named() -> None:
    """Records wait for the threads that run the functions of others."""
    told = busy(waits={"decode": 5.0, "transform": 4.0, "body": 1.0})
    found = find(told, [ceiling("transform", 190 * MB), ceiling("decoding", 2100 * MB)])
    assert found is not None
    assert found.bottleneck == "transform"


@pytest.mark.parametrize(
    ("waits", "link", "named"),
    [
        ({"decode": 8.0, "body": 2.0}, 120 * MB, "link"),
        ({"decode": 8.0, "body": 2.0}, 130 * MB, "cores"),
        ({"decode": 9.5, "body": 0.5}, 120 * MB, "cores"),
    ],
)
def test_more_of_the_cores_would_bring_no_more_than_the_link(
    waits: dict[str, float], link: float, named: str
) -> None:
    told = busy(waits=waits).model_copy(update={"sweep": sweep_of(*[100 * MB] * 3)})
    found = find(told, [ceiling("link", link)])
    assert found is not None
    assert found.bottleneck == named


@pytest.mark.parametrize(
    ("waits", "named"),
    [({"body": 6.0, "order": 4.0}, "link"), ({"body": 4.9, "order": 5.1}, "cores")],
)
def test_a_job_that_fills_the_link_waits_longer_for_it_than_for_cores(
    waits: dict[str, float], named: str
) -> None:
    """Each of the forty requests took 4 s, and the sweep was cut short."""
    samples = [Sample(at=at, seconds=1.0, bytes=MB, records=1, in_flight=40) for at in range(1, 11)]
    told = busy(waits=waits, requests=100, samples=samples)
    found = find(told, [ceiling("link", 110 * MB)])
    assert found is not None
    assert found.bottleneck == named


def test_what_explains_the_rate_holds_on_a_busy_machine_too() -> None:
    found = find(busy(waits={"decode": 9.0}), [ceiling("decoding", 105 * MB)])
    assert found is not None
    assert (found.bottleneck, found.busy) == ("decoding", 0.5)


def test_a_job_may_use_all_cores_itself() -> None:
    told = figures(waits={"decode": 5.0, "order": 5.0}, core_seconds=18.0, core_wait_seconds=9.0)
    told = told.model_copy(update={"machine": machine(2)})
    known = [ceiling("cores", 111 * MB), ceiling("decoding", 900 * MB)]
    found = find(told, known)
    assert found is not None
    assert (found.bottleneck, found.busy) == ("cores", None)


def test_a_ceiling_that_the_job_has_exceeded_is_raised_to_it() -> None:
    known = [ceiling("link", 10 * MB), ceiling("decoding", 110 * MB)]
    found = find(figures(waits={"decode": 10.0}), known)
    assert found is not None
    assert found.bottleneck == "decoding"
    assert found.others[0].bytes_per_second == found.rate
    assert found.others[0].why == "by its law; that is 10.0 MB/s, but the job has reached 99.9 MB/s"


@pytest.mark.parametrize(
    ("reason", "waits", "named"),
    [
        (None, {"first_byte": 9.0, "body": 1.0}, "store latency"),
        ("max_concurrency", {"first_byte": 1.0, "body": 9.0}, "connection bandwidth"),
        ("more requests brought no more bytes", {"body": 9.0}, "link"),
        ("the store asked to slow down", {"first_byte": 9.0}, "throttling"),
        (None, {"order": 9.0}, "event loop"),
        (None, {}, None),
        (None, {"decode": 4.0, "first_byte": 3.0, "order": 3.0}, None),
    ],
)
def test_a_job_alone_tells_it_too(
    reason: str | None, waits: dict[str, float], named: str | None
) -> None:
    found = find(figures(waits=waits, concurrency_reason=reason, concurrency=4), [])
    assert found is not None
    assert found.bottleneck == named


def test_the_listing_is_to_blame_where_it_is_longer_than_the_rest() -> None:
    listing = ceiling("listing", 50 * MB)
    found = find(figures(waits={"first_byte": 8.0, "list": 2.0}), [listing, *NETWORK])
    assert found is not None
    assert found.bottleneck == "listing"
    assert found.rate == pytest.approx(100 / 3 * MB, rel=0.01)
    found = find(figures(waits={"first_byte": 10.0}), [*NETWORK, ceiling("listing", 500 * MB)])
    assert found is not None
    assert found.bottleneck == "link"


BEHIND_A_LISTING = {"seconds": 17.0, "first_batch_seconds": 8.0, "bytes": 900 * MB, "batches": 1000}
"""A job of nine seconds, whose listing took eight."""
NEAR_A_LISTING = [ceiling("trainer", 101 * MB), ceiling("listing", 112 * MB)]


@pytest.mark.parametrize(
    ("waits", "named"),
    [
        ({"client": 6.0, "first_byte": 3.0}, "listing"),
        ({"client": 9.0}, "trainer"),
        ({}, None),  # what nothing accounts for is not the listing's
        ({"list": 17.0}, None),  # nothing is left to be compared
    ],
)
def test_the_listing_is_to_blame_where_nothing_else_took_as_long(
    waits: dict[str, float], named: str | None
) -> None:
    """All the rest together may be longer, and most of it no single thing."""
    told = figures(**BEHIND_A_LISTING, step_seconds=0.009, waits={"list": 8.0, **waits})
    found = find(told, NEAR_A_LISTING)
    assert found is not None
    assert found.bottleneck == named


@pytest.mark.parametrize(
    ("step", "waited", "named"),
    [
        (0.009, 0.0, "trainer"),
        (0.005, 0.0, "listing"),
        (0.0005, 0.0, None),
        (0.0005, 9.0, "listing"),  # that the machine is busy is told anyway
    ],
)
def test_a_step_that_a_busy_machine_ended_late_is_not_the_trainer_s(
    step: float, waited: float, named: str | None
) -> None:
    """The lateness stands for itself, and may be longer than the listing."""
    cores = {"core_seconds": 1.0, "core_wait_seconds": waited}
    waits = {"list": 8.0, "client": 9.0}
    told = figures(**BEHIND_A_LISTING, **cores, step_seconds=step, waits=waits)
    found = find(told, NEAR_A_LISTING)
    assert found is not None
    assert found.bottleneck == named


@pytest.mark.parametrize(("refused", "named"), [(50, "throttling"), (49, "memory budget")])
def test_a_store_that_refuses_most_requests_fills_the_buffers(refused: int, named: str) -> None:
    """What is refused keeps its buffer until it is sent again."""
    told = figures(
        waits={"first_byte": 9.0},
        throttled=refused,
        concurrency_seconds={Limit.BUFFERS: 5.4, Limit.THROTTLED: 4.6},
    )
    found = find(told, [])
    assert found is not None
    assert found.bottleneck == named


def test_a_job_from_a_cache_of_batches_tells_nothing_of_the_store() -> None:
    found = find(figures(bytes=0, waits={"cache": 10.0}), NETWORK)
    assert found is not None
    assert (found.bottleneck, found.rate) == ("link", 110 * MB)


def test_the_client_counts_only_with_a_trainer() -> None:
    known = [ceiling("trainer", 105 * MB), ceiling("link", 110 * MB)]
    waits = {"client": 9.0, "body": 1.0}
    with_trainer = find(figures(waits=waits, step_seconds=0.01), known)
    without = find(figures(waits=waits), known[1:])
    assert with_trainer is not None
    assert without is not None
    assert (with_trainer.bottleneck, without.bottleneck) == ("trainer", "link")


def test_a_trainer_that_could_take_more_is_not_to_blame() -> None:
    known = [ceiling("trainer", 200 * MB)]
    waits = {"client": 6.0, "transform": 4.0}
    found = find(figures(waits=waits, step_seconds=0.01), known)
    assert found is not None
    assert found.bottleneck == "transform"


def test_evidence_says_where_the_time_went_and_what_the_store_gives() -> None:
    world = World(link=50.0 * MB)
    said = " ".join(
        sentences_of(
            world.figures(settings_of()).model_copy(
                update={
                    "job": a_job(
                        waits={"body": 8.0, "list": 2.0},
                        first_batch_seconds=2.5,
                        step_seconds=0.02,
                        stalled=0.7,
                        loop_busy=0.1,
                        throttled=3,
                        core_seconds=2.0,
                        core_wait_seconds=1.0,
                        concurrency=64,
                        concurrency_reason="max_concurrency",
                    )
                }
            )
        )
    )
    for words in (
        "bodies 80%, the listing 20%",
        "steps of 20 ms waits for 70%",
        "2 s of the 2.5 s",
        "50.0 MB/s at most",
        "used 10% of a core",
        "ran for 2 s, and waited for a core for 1 s",
        "3 of 100 requests",
        "max_concurrency",
    ):
        assert words in said


def test_evidence_of_nothing_is_nothing() -> None:
    none = dict.fromkeys(("listing", "first_byte", "sweep", "processing", "job"))
    assert sentences_of(World().figures(settings_of()).model_copy(update=none)) == []
    grows = World(latency=1.0, connection=MB)
    assert "still grew" in sentences_of(grows.figures(settings_of(), job=False))[0]


def test_the_longest_wait_is_none_of_the_trainer() -> None:
    assert longest_wait(a_job(waits={"client": 8.0, "decode": 2.0})) == "decoding (20% of its time)"
    assert longest_wait(a_job(waits={})) == "nothing"
