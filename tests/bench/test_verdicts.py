from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, get_args

import pytest

from bench.verdicts import CASES, Outcome, as_markdown, first_look, serve_case, settings_of
from streamrec.flow.bridge import new_event_loop
from streamrec.flow.stages import Bottleneck
from streamrec.measure.figures import Verdict

if TYPE_CHECKING:
    from bench.verdicts import Planted

NAMES = {case.name: case for case in CASES}


async def named(case: Planted) -> str | None:
    async with serve_case(case) as source:
        verdict = (await first_look(case, settings_of(case, source))).verdict
        assert verdict is not None
        return verdict.bottleneck


@pytest.mark.night
@pytest.mark.parametrize("name", ["memory budget", "max_concurrency", "throttling", "trainer"])
def test_what_is_planted_is_named(name: str) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(named(NAMES[name])) == name


def test_each_bottleneck_is_planted_but_those_of_the_machine() -> None:
    # The engine says which setting bounds its requests; without a job it is called by what is slow.
    without_a_job = {"store latency", "connection bandwidth"}
    assert {*NAMES, *without_a_job, "event loop", "cores"} == set(get_args(Bottleneck))


def test_the_table_says_how_far_off_a_prediction_was() -> None:
    verdict = Verdict(
        bottleneck="link",
        summary="It is the link.",
        evidence=[],
        ceilings=[],
        changes=[],
        paste='cache = "1GiB"\n',
        bytes_per_second=1e6,
        predicted_bytes_per_second=2e6,
        next_bottleneck="trainer",
    )
    text = as_markdown([Outcome(NAMES["link"], verdict, 1.9e6)])
    assert 'cache = "1GiB"' in text
    assert "-5%" in text
