from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from streamrec.flow.stages import STAGES
from streamrec.plan.reading.concurrency import Limit
from streamrec.report.verdict import (
    Blame,
    Evidence,
    Rates,
    judge,
    longest_stage,
    on_path,
    waits_by_group,
)

if TYPE_CHECKING:
    from streamrec.flow.stages import Bottleneck


@dataclass(frozen=True)
class OneCeiling:
    resource: Bottleneck
    bytes_per_second: float


def test_stages_stand_on_the_path_of_a_byte() -> None:
    waits = {"client": 1.0, "mine": 2.0, "list": 3.0, "body": 4.0}
    assert [*on_path(waits)] == ["list", "body", "client", "mine"]


@pytest.mark.parametrize(
    ("waits", "stage"),
    [
        ({}, None),
        ({"body": 0.0}, None),
        ({"client": 9.0, "body": 1.0}, "client"),
        ({"client": 8.9, "body": 1.1}, "body"),
        ({"client": 8.0, "body": 1.0, "decode": 1.0}, "body"),  # the first of two alike
        ({"first_byte": 2.0, "body": 2.0, "decode": 3.0}, "decode"),
        ({"mine": 3.0, "body": 1.0}, "mine"),
    ],
)
def test_the_longest_stage(waits: dict[str, float], stage: str | None) -> None:
    assert longest_stage(waits) == stage


def test_waits_are_added_up_by_what_they_wait_for() -> None:
    waits = {"list": 5.0, "first_byte": 1.0, "body": 2.0, "mine": 4.0, "client": 9.0, "scan": 0.0}
    assert waits_by_group(waits, 0.0) == {"network": 3.0}
    assert waits_by_group(waits, 7.0) == {"network": 3.0, "trainer": 7.0}


@pytest.mark.parametrize(
    ("waits", "kept_back", "blame"),
    [
        ({"decode": 6.0, "body": 4.0}, {Limit.BUFFERS: 4.0}, Blame("decode", "decoding")),
        ({"body": 6.0, "decode": 4.0}, {}, Blame("body", "connection bandwidth")),
        ({"body": 6.0, "decode": 4.0}, {Limit.BUFFERS: 4.0}, Blame("body", "memory budget")),
        ({"first_byte": 6.0}, {Limit.MAXIMUM: 4.0}, Blame("first_byte", "max_concurrency")),
        (
            {"first_byte": 6.0},
            {Limit.MAXIMUM: 4.0, Limit.GROWING: 5.0},
            Blame("first_byte", "store latency"),
        ),
        ({"client": 9.5, "body": 0.5}, {Limit.BUFFERS: 4.0}, Blame("client", "trainer")),
        ({"wire": 1.0}, {}, Blame("wire", "link")),
        ({"list": 1.0}, {}, Blame("list", "listing")),
        ({"mine": 1.0}, {}, Blame("mine", None)),
        ({}, {}, Blame(None, None)),
    ],
)
def test_without_a_rate_the_waits_alone_speak(
    waits: dict[str, float], kept_back: dict[str, float], blame: Blame
) -> None:
    assert judge(Evidence(waits=waits, kept_back=kept_back)) == blame


@pytest.mark.parametrize(("ceiling", "resource"), [(110.0, "decoding"), (300.0, None)])
def test_with_a_rate_a_ceiling_must_explain_it(ceiling: float, resource: Bottleneck | None) -> None:
    ceilings = [OneCeiling("decoding", ceiling)]
    rates = Rates(rate=100.0, came=100.0, ceilings=ceilings)
    evidence = Evidence(waits={"decode": 6.0, "body": 4.0}, seconds=10.0, rates=rates)
    assert judge(evidence) == Blame("decode", resource)


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in ("list", "client")])
def test_a_feeder_and_its_client_s_benchmark_agree(stage: str) -> None:
    """What takes a feeder's cores is the feeder, to a client that cannot see inside it."""
    waits = {stage: 10.0}
    of_feeder = judge(Evidence(waits=waits, seconds=10.0)).resource
    rates = Rates(rate=100.0, came=100.0, is_of_feeder=True)
    of_client = judge(Evidence(waits=waits, seconds=10.0, rates=rates)).resource
    on_cores = of_feeder in ("decoding", "transform", "event loop")
    assert of_client == ("feeder" if on_cores else of_feeder)
