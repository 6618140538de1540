from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.formats.shards.index import Index, ShardEntry
from streamrec.measure.capacity import CapacityPlan, Workload, plan

JOBS = st.fixed_dictionaries(
    {
        "hosts": st.integers(1, 10_000),
        "ranks": st.integers(1, 8),
        "batch": st.integers(1, 10**9).map("{}B".format),
        "step": st.integers(1, 10_000).map("{}ms".format),
    },
    optional={
        "sent": st.integers(1, 10**9).map("{}B".format),
        "dataset": st.integers(1, 10**15).map("{}B".format),
        "range": st.integers(64 << 10, 64 << 20).map("{}B".format),
        "latency": st.integers(0, 1000).map("{}ms".format),
        "bandwidth": st.integers(10**6, 10**9).map("{}B/s".format),
        "link": st.integers(10**8, 10**11).map("{}B/s".format),
        "headroom": st.integers(0, 90).map("{}%".format),
        "spare": st.integers(0, 9),
        "byte_price": st.floats(0, 1).map("{:.3f}".format),
        "shards": st.integers(1, 10**7),
        "far": st.integers(0, 100).map("{}%".format),
    },
)


def planned(job: dict[str, Any]) -> CapacityPlan:
    return plan(",".join(f"{name}={value}" for name, value in job.items()))


def values(found: CapacityPlan) -> dict[str, float]:
    return {one.name: one.value for one in found.estimates}


def test_the_arithmetic_of_one_job() -> None:
    found = values(
        plan(
            "hosts=40,ranks=8,batch=10MB,step=100ms,sent=20MB,dataset=1TB,"
            "byte_price=0.09,headroom=20%,spare=2"
        )
    )
    requests, mib8 = 32e9 * 1.02 / (8 << 20), 8 << 20
    costs = requests * 86400 * 0.0004 / 1000, 32 * 1.02 * 86400 * 0.09, 28 * 24 * 0.4
    assert found == {
        "rate": 32e9,
        "range": mib8,
        "time of a request": pytest.approx(0.05 + mib8 / 60e6),
        "requests": pytest.approx(requests),
        "requests in flight": 739,  # 3,891 a second for 0.19 s
        "prefixes": 1,
        "connections a host, without feeders": 19,
        "rate of a feeder": 1.25e9,  # its link carries two bytes for each that it reads
        "feeders": 28,  # 32 / 1.25 = 25.6, and two to spare
        "processes of a feeder": 8,
        "connections of a feeder": 29,
        "clients of a feeder": 13,
        "memory of a feeder": (13 + 3) << 30,
        "requests a day": pytest.approx(costs[0]),
        "bytes a day": pytest.approx(costs[1]),
        "feeders a day": pytest.approx(costs[2]),
        "time of an epoch": 31.25,
        "an epoch": pytest.approx(sum(costs) * 31.25 / 86400),
    }


def test_the_defaults_are_those_that_are_told() -> None:
    found = {one.name: one.value for one in plan("batch=10MB,step=100ms").assumptions}
    assert found == {
        "hosts": 1, "ranks": 1, "page": 1000, "chunk": 1 << 20,
        "latency": 0.05, "bandwidth": 60e6,
        "extra": 0.02, "prefix": 5500, "window": 256 << 20, "memory_budget": 1 << 30,
        "cores": 8, "core": 500e6,
        "link": 3.125e9, "headroom": 0.3, "spare": 1, "request_price": 0.0004,
        "byte_price": 0, "far": 0, "zone_price": 0.02, "feeder_price": 0.4,
    }  # fmt: skip


@given(JOBS)
def test_the_requests_in_flight_carry_the_rate(job: dict[str, Any]) -> None:
    found, made = values(planned(job)), Workload(**job)
    connection = found["range"] / found["time of a request"]
    needed = found["rate"] * (1 + made.extra)
    assert found["requests in flight"] * connection >= needed * (1 - 1e-9)
    assert (found["requests in flight"] - 1) * connection < needed * (1 + 1e-9)


@given(JOBS)
def test_feeders_are_enough_but_no_more(job: dict[str, Any]) -> None:
    found, made = values(planned(job)), Workload(**job)
    busy = found["feeders"] - made.spare
    assert busy * found["rate of a feeder"] >= found["rate"] * (1 - 1e-9)
    assert (busy - 1) * found["rate of a feeder"] < found["rate"]
    sent = found["rate"] * max(1.0, (made.sent or made.batch) / made.batch)
    assert sent / busy <= made.link * (1 - made.headroom) * (1 + 1e-9)


@given(JOBS)
def test_what_all_feeders_hold_is_what_the_job_needs(job: dict[str, Any]) -> None:
    found, made = values(planned(job)), Workload(**job)
    busy = found["feeders"] - made.spare
    assert busy * found["connections of a feeder"] >= found["requests in flight"]
    assert busy * found["clients of a feeder"] >= made.hosts * made.ranks
    assert busy * found["memory of a feeder"] >= found["requests in flight"] * found["range"]


@given(JOBS)
def test_twice_the_hosts_are_twice_the_rate_and_the_reads(job: dict[str, Any]) -> None:
    one, two = values(planned(job)), values(planned(job | {"hosts": 2 * job["hosts"]}))
    for name in ("rate", "bytes a day"):
        assert two[name] == pytest.approx(2 * one[name])
    # Of more ranks each has fewer lanes, and so larger ranges.
    for name in ("requests", "requests a day"):
        assert two[name] * two["range"] == pytest.approx(2 * one[name] * one["range"])
    assert two["feeders"] >= one["feeders"]
    if "dataset" in job:
        assert two["time of an epoch"] == pytest.approx(one["time of an epoch"] / 2)


@given(JOBS)
def test_every_default_is_named(job: dict[str, Any]) -> None:
    found, made = planned(job), Workload(**job)
    left_out = {name for name in Workload.model_fields if name not in job}
    unset = {name for name in left_out if getattr(made, name) is None}
    assert {one.name for one in found.assumptions} == left_out - unset
    assert ("an epoch" in values(found)) == ("dataset" in job)
    text = str(found)
    for one in (*found.estimates, *found.assumptions):
        assert one.name in text
        assert one.text in text


def test_the_numbers_of_one_job() -> None:
    found = values(plan("hosts=512,batch=1MB,step=150ms,dataset=140TB,range=8MB"))
    assert found == pytest.approx(
        {
            "rate": 512 * 1e6 / 0.15,
            "range": 8e6,
            "time of a request": 0.05 + 8 / 60,
            "requests": 435.2,
            "requests in flight": 80,
            "prefixes": 1,
            "connections a host, without feeders": 1,
            "rate of a feeder": 3.125e9 * 0.7,
            "feeders": 3,
            "processes of a feeder": 8,
            "connections of a feeder": 40,
            "clients of a feeder": 256,
            "memory of a feeder": (256 + 3) * 2**30,
            "requests a day": 435.2 * 86400 * 4e-7,
            "bytes a day": 0.0,
            "feeders a day": 28.8,
            "time of an epoch": 140e12 / (512 * 1e6 / 0.15),
            "an epoch": (435.2 * 86400 * 4e-7 + 28.8) * 140e12 / (512 * 1e6 / 0.15) / 86400,
        }
    )


def test_the_numbers_of_a_million_shards() -> None:
    job = "hosts=500,ranks=8,batch=10MB,step=150ms,dataset=10PB,shards=1000000,chunk=256MiB"
    found = values(plan(f"{job},far=50%,sent=20MB"))
    chunks = -(-(10**16) // (256 << 20))
    sent = 4000 * 20e6 / 0.15
    expected = {
        "requests of a listing": 1000,
        "time of a listing": 32 * 0.05 + 15.0,
        "memory of the shards' names": 600e6,
        "index": 56e6 + 20 * chunks,
        "memory of the shards with an index": 1450e6 + 44 * chunks,
        "time until all clients are served": found["clients of a feeder"] * 0.02 / 8,
        "bytes between zones a day": sent * 0.5 * 86400 / 1e9 * 0.02,
        "a TB": found["an epoch"] / 10_000,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    days = [value for name, value in found.items() if name.endswith(" a day")]
    assert found["an epoch"] == pytest.approx(sum(days) * found["time of an epoch"] / 86400)


@given(JOBS)
def test_an_index_of_the_least_chunk_can_be_read(job: dict[str, Any]) -> None:
    job |= {"dataset": "10PB", "shards": 10**6}
    least = values(planned(job))["least chunk of an index"]
    found = values(planned(job | {"chunk": f"{least * 1.001:.0f}B"}))
    assert found["index"] <= 1 << 30
    smaller = values(planned(job | {"chunk": f"{least * 0.9:.0f}B"}))
    assert smaller["index"] > 1 << 30


def test_an_index_is_as_large_as_is_said() -> None:
    names = [f"train-{number:07}-of-0000100.tfrecord" for number in range(100)]
    entries = [ShardEntry(name, 96, 3, [0, 32], [0, 1], [1, 2]) for name in names]
    told = values(plan(f"batch=1MB,step=1s,shards=100,dataset={200 * 10}B,chunk=10B"))["index"]
    assert len(Index(tuple(entries)).encode()) == pytest.approx(told, rel=0.02)


@pytest.mark.parametrize(
    ("memory", "size"), [(1 << 30, 8 << 20), (256 << 20, 1 << 20), (64 << 20, 512 << 10)]
)
def test_a_request_is_as_large_as_the_memory_of_a_session_lets_it_be(
    memory: int, size: int
) -> None:
    job = f"hosts=500,ranks=8,batch=100KB,step=150ms,memory_budget={memory}"
    found = values(plan(job))
    assert found["range"] == size
    assert found["requests"] == pytest.approx(found["rate"] * 1.02 / size)
    assert values(plan(f"{job},range=2MB"))["range"] == 2e6
    assert found["memory of a feeder"] == (found["clients of a feeder"] + 3) * memory


def test_the_memory_of_a_session_must_be_enough() -> None:
    with pytest.raises(ConfigError, match="memory_budget of 64 MiB is too small"):
        plan("batch=1MB,step=1s,memory_budget=64MiB")


def test_formulas_have_words_and_numbers() -> None:
    (rate,) = (
        one for one in plan("hosts=512,batch=1MB,step=150ms").estimates if one.name == "rate"
    )
    assert rate.text == "3.41 GB/s"
    assert rate.formula == "hosts x ranks x batch / step = 512 x 1 x 1 MB / 150 ms"


def test_prices_come_from_the_text_then_from_the_caller() -> None:
    job, prices = "batch=1MB,step=1s,request_price=1", {"request_price": 2.0, "byte_price": 0.09}
    found = plan(job, prices=prices)
    assumed = {one.name: one.value for one in found.assumptions}
    assert assumed["byte_price"] == 0.09
    assert "request_price" not in assumed
    assert values(found)["bytes a day"] == pytest.approx(1.02 * 86.4 * 0.09)
    assert values(found)["requests a day"] == pytest.approx(1.02e6 / (4 << 20) * 86.4)


def test_a_plan_is_json_and_back() -> None:
    found = plan("batch=1MB,step=1s")
    assert CapacityPlan.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hosts=512", "^the plan: the setting 'batch' is missing; add it; the setting 'step'"),
        ("batch=1MB,step=150ms,host=1", "there is no setting 'host'; did you mean 'hosts'"),
        ("batch=1MB,step=0s", "'step'.*greater than 0"),
        ("batch=1MB,step=1s,hosts=0", "'hosts'.*greater than 0"),
        ("batch=1MB,step=1s,headroom=100%", "'headroom'.*less than 1"),
    ],
)
def test_a_wrong_text(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan(text)
