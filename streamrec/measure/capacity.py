"""The capacity that a training job needs: arithmetic on paper, with its formulas. Pure: no I/O."""

from __future__ import annotations

import math
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from streamrec.config.dataset import DEFAULT_LANES
from streamrec.config.validation import Settings
from streamrec.formats.shards.index import LARGEST
from streamrec.measure.simulation import ByteRate, Bytes, Part, Rate, Seconds, parse_settings
from streamrec.plan.reading.ranges import MOST_AT_ONCE, MemoryPlan
from streamrec.report.words import duration, money, number, percent, rate, seconds, size
from streamrec.stores.base.pages import MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DAY = 86400
DIGITS = 3
"""The digits of an amount: enough to check the next result by hand."""
LONG = 120.0
"""Seconds from which on a time is told in minutes, hours or days."""
NO_PRICES: Mapping[str, float] = MappingProxyType({})
RANGES_A_REQUEST = 2
"""Ranges in memory for each request in flight: the one on its way, and one that is used up."""
KEPT_FREE = 3
"""Budgets that a feeder has free beside those of its clients: each gets a quarter of what is free,
so the last one gets its whole budget only if three others would fit."""
QUEUED_BATCHES = 4
"""Batches of each rank in memory: being decoded, waiting, on the way, and in use."""
SHARD_ENTRY, CHUNK_ENTRY = 56, 20
"""Bytes of an index for each shard, with a name of 32 characters, and for each chunk."""
SHARD_BYTES = 600
"""Bytes of memory for each shard that is listed: its name, size and ETag. Measured."""
INDEXED_BYTES, INDEXED_CHUNK = 1450, 44
"""The same with an index, while this is read, and the bytes for each chunk. Measured."""
LISTED_SECONDS = 15e-6
"""Seconds of CPU time for each name of a listing. Measured."""
OPENING = 0.02
"""Seconds of CPU time for which a feeder opens a session. Measured."""
_Positive = Annotated[Seconds, Field(gt=0)]
_Share = Annotated[Part, Field(lt=1)]


class Workload(Settings):
    """A training job, its store and its feeders; the descriptions say what a default assumes."""

    batch: Bytes = Field(description="stored bytes of a rank's batch")
    step: _Positive = Field(description="time of a training step")
    hosts: PositiveInt = Field(1, description="training hosts")
    ranks: PositiveInt = Field(1, description="ranks a host, each with its own batches")
    sent: Bytes | None = Field(None, description="bytes of a batch as feeders send it; the batch's")
    dataset: Bytes | None = Field(None, description="bytes of the dataset")
    shards: PositiveInt | None = Field(None, description="shards of the dataset")
    page: PositiveInt = Field(
        1000, description="names on a page of a listing, as S3 and GCS have it"
    )
    chunk: Bytes = Field(1 << 20, description="bytes of a chunk of an index, as it has by default")
    range: Bytes | None = Field(
        None, description="bytes of a request; as ranges grow to with memory_budget"
    )
    latency: Seconds = Field(0.05, description="time to the first byte")
    bandwidth: ByteRate = Field(60_000_000, description="rate of a connection")
    extra: Part = Field(0.02, description="part of the requests that is sent again")
    prefix: Rate = Field(5500.0, description="reads a second of one prefix, as S3 states it")
    window: Bytes = Field(256 << 20, description="shuffle window of the whole stream")
    memory_budget: Bytes = Field(1 << 30, description="memory_budget of the dataset, for each rank")
    cores: PositiveInt = Field(8, description="cores of a feeder")
    # Measured: 1.69 s of CPU time for a GB of pictures, rounded up.
    core: ByteRate = Field(
        500_000_000, description="stored bytes a second that one core serves: pictures, not decoded"
    )
    link: ByteRate = Field(3_125_000_000, description="rate of a feeder's link, each way")
    headroom: _Share = Field(0.3, description="part of a feeder that is left free")
    spare: NonNegativeInt = Field(1, description="feeders that may fail")
    request_price: Annotated[float, Field(ge=0)] = Field(
        0.0004, description="price of 1,000 reads, USD"
    )
    byte_price: Annotated[float, Field(ge=0)] = Field(
        0.0, description="price of a GB that leaves the store, USD; nothing in its region"
    )
    far: Part = Field(0.0, description="part of the batches from feeders in another zone")
    zone_price: Annotated[float, Field(ge=0)] = Field(
        0.02, description="price of a GB between zones, for both directions, USD"
    )
    feeder_price: Annotated[float, Field(ge=0)] = Field(
        0.4, description="price of a feeder's machine for an hour, USD"
    )


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Amount(_Frozen):
    name: str
    value: float
    text: str
    """The value with its unit."""


class Assumption(_Amount):
    """A value that was not given."""

    meaning: str


class CapacityEstimate(_Amount):
    """One result."""

    formula: str
    """The formula in words, and with numbers."""


class CapacityPlan(_Frozen):
    """The needs of a job, and the assumptions behind them."""

    given: str
    estimates: list[CapacityEstimate]
    assumptions: list[Assumption]

    def __str__(self) -> str:
        rows = [(one.name, one.text, f"= {one.formula}") for one in self.estimates]
        assumed = [(one.name, one.text, one.meaning) for one in self.assumptions]
        wide = [max(len(row[column]) for row in rows + assumed) for column in (0, 1)]

        def lines(table: list[tuple[str, str, str]]) -> list[str]:
            return [f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c}" for a, b, c in table]

        return "\n".join([*lines(rows), "", "Assumed, as it was not given:", *lines(assumed)])


class _CapacityTerms:
    def __init__(self, job: Workload) -> None:
        self.job = job

    @cached_property
    def rate(self) -> CapacityEstimate:
        job = self.job
        value = job.hosts * job.ranks * job.batch / job.step
        formula = f"hosts x ranks x batch / step = {job.hosts} x {job.ranks} x {_b(job.batch)}"
        return _estimate("rate", value, "B/s", f"{formula} / {_time(job.step)}")

    @cached_property
    def range_size(self) -> CapacityEstimate:
        """The bytes of a request, as a stream chooses them in its memory."""
        job = self.job
        if job.range is not None:
            return _estimate("range", job.range, "B", "as given")
        ranks = job.hosts * job.ranks
        window, lanes = job.window // ranks, max(1, DEFAULT_LANES // ranks)
        divided = MemoryPlan.divide(job.memory_budget, lanes=lanes, windows=window)
        formula = f"about (memory_budget - reserve) / {MOST_AT_ONCE}, a power of two, 8 MiB at most"
        numbers = f"({_b(job.memory_budget)} - {_b(divided.reserve)}) / {MOST_AT_ONCE}"
        return _estimate("range", divided.range_size, "B", f"{formula} = {numbers}")

    @cached_property
    def request_time(self) -> CapacityEstimate:
        job, one = self.job, self.range_size
        value = job.latency + one.value / job.bandwidth
        numbers = f"{_time(job.latency)} + {one.text} / {_r(job.bandwidth)}"
        return _estimate(
            "time of a request", value, "s", f"latency + range / bandwidth = {numbers}"
        )

    @cached_property
    def requests(self) -> CapacityEstimate:
        job = self.job
        value = self.rate.value * (1 + job.extra) / self.range_size.value
        numbers = f"{self.rate.text} x {1 + job.extra:g} / {self.range_size.text}"
        return _estimate("requests", value, "/s", f"rate x (1 + extra) / range = {numbers}")

    @cached_property
    def in_flight(self) -> CapacityEstimate:
        value = self.requests.value * self.request_time.value
        numbers = f"{self.requests.text} x {self.request_time.text}"
        law = "requests a second x time of a request (Little's law)"
        return _estimate("requests in flight", math.ceil(value), "", f"{law} = {numbers}")

    @cached_property
    def connections_a_host(self) -> CapacityEstimate:
        hosts = self.job.hosts
        value = math.ceil(self.in_flight.value / hosts)
        formula = f"requests in flight / hosts = {self.in_flight.text} / {hosts}"
        return _estimate("connections a host, without feeders", value, "", formula)

    @cached_property
    def prefixes(self) -> CapacityEstimate:
        value = math.ceil(self.requests.value / self.job.prefix)
        numbers = f"{self.requests.text} / {_per_second(self.job.prefix)}"
        return _estimate("prefixes", value, "", f"requests / prefix = {numbers}")

    @cached_property
    def feeder_rate(self) -> CapacityEstimate:
        job = self.job
        # The link carries stored bytes in and sent bytes out; the larger of the two fills it first.
        growth = max(1.0, (job.sent or job.batch) / job.batch)
        value = min(job.cores * job.core, job.link / growth) * (1 - job.headroom)
        numbers = f"min({job.cores} x {_r(job.core)}, {_r(job.link)} / {growth:.3g})"
        formula = "min(cores x core, link / (sent / batch)) x (1 - headroom)"
        numbers += f" x {1 - job.headroom:g}"
        return _estimate("rate of a feeder", value, "B/s", f"{formula} = {numbers}")

    @cached_property
    def feeders(self) -> CapacityEstimate:
        spare = self.job.spare
        # Spare feeders carry nothing in this arithmetic: they are for those that fail.
        value = math.ceil(self.rate.value / self.feeder_rate.value) + spare
        numbers = f"{self.rate.text} / {self.feeder_rate.text} + {spare}"
        return _estimate("feeders", value, "", f"rate / rate of a feeder + spare = {numbers}")

    @property
    def _busy(self) -> int:
        # What each feeder must bear when the spare ones have failed.
        return max(1, int(self.feeders.value) - self.job.spare)

    @cached_property
    def connections(self) -> CapacityEstimate:
        value = math.ceil(self.in_flight.value / self._busy)
        formula = "requests in flight / (feeders - spare)"
        numbers = f"{self.in_flight.text} / {self._busy}"
        return _estimate("connections of a feeder", value, "", f"{formula} = {numbers}")

    @cached_property
    def sessions(self) -> CapacityEstimate:
        ranks = self.job.hosts * self.job.ranks
        value = math.ceil(ranks / self._busy)
        formula = f"hosts x ranks / (feeders - spare) = {ranks} / {self._busy}"
        return _estimate("clients of a feeder", value, "", formula)

    @cached_property
    def memory(self) -> CapacityEstimate:
        job, ranks = self.job, self.job.hosts * self.job.ranks
        ranges = (
            RANGES_A_REQUEST * self.in_flight.value * self.range_size.value + job.window
        ) / ranks
        batches = QUEUED_BATCHES * max(job.batch, job.sent or 0)
        value = (self.sessions.value + KEPT_FREE) * max(job.memory_budget, ranges + batches)
        formula = (
            f"(clients of a feeder + {KEPT_FREE}) x "
            "max(memory_budget, (2 ranges a request + window) / ranks + 4 batches)"
        )
        numbers = (
            f"({self.sessions.text} + {KEPT_FREE}) x max({_b(job.memory_budget)}, {_b(ranges)}"
        )
        return _estimate(
            "memory of a feeder", value, "B", f"{formula} = {numbers} + {_b(batches)})"
        )

    @cached_property
    def workers(self) -> CapacityEstimate:
        formula = 'cores, by `workers = "auto"`: with one process, one core sends and receives all'
        return _estimate("processes of a feeder", self.job.cores, "", formula)

    @cached_property
    def opening(self) -> CapacityEstimate:
        value = self.sessions.value * OPENING / self.job.cores
        formula = "clients of a feeder x 20 ms / cores"
        numbers = f"{self.sessions.text} x 20 ms / {self.job.cores}"
        return _estimate("time until all clients are served", value, "s", f"{formula} = {numbers}")

    @cached_property
    def pages(self) -> CapacityEstimate:
        shards, page = self.job.shards or 0, self.job.page
        value = math.ceil(shards / page)
        numbers = f"{number(shards)} / {number(page)}"
        return _estimate("requests of a listing", value, "", f"shards / page = {numbers}")

    @cached_property
    def listing(self) -> CapacityEstimate:
        # A store that lists in no order gives one page after the other.
        shards = self.job.shards or 0
        value = math.ceil(self.pages.value / MOST) * self.job.latency + shards * LISTED_SECONDS
        numbers = (
            f"{self.pages.text} / {MOST} x {_time(self.job.latency)} + {number(shards)} x 15 us"
        )
        formula = f"requests of a listing / {MOST} at once x latency + shards x 15 us"
        return _estimate("time of a listing", value, "s", f"{formula} = {numbers}")

    @property
    def _chunks(self) -> int:
        job = self.job
        return max(job.shards or 0, math.ceil((job.dataset or 0) / job.chunk))

    @cached_property
    def index(self) -> CapacityEstimate:
        shards, chunks = self.job.shards or 0, self._chunks
        formula = "shards x 56 B + max(shards, dataset / chunk) x 20 B"
        numbers = f"{number(shards)} x 56 B + {number(chunks)} x 20 B"
        value = shards * SHARD_ENTRY + chunks * CHUNK_ENTRY
        return _estimate("index", value, "B", f"{formula} = {numbers}")

    @cached_property
    def least_chunk(self) -> CapacityEstimate:
        job = self.job
        room = LARGEST - (job.shards or 0) * SHARD_ENTRY
        value = (job.dataset or 0) * CHUNK_ENTRY / max(room, 1)
        formula = "dataset x 20 B / (1 GiB - shards x 56 B)"
        numbers = f"{_b(job.dataset or 0)} x 20 B / {_b(room)}"
        return _estimate("least chunk of an index", value, "B", f"{formula} = {numbers}")

    @cached_property
    def names(self) -> CapacityEstimate:
        shards = self.job.shards or 0
        formula = f"shards x {SHARD_BYTES} B = {number(shards)} x {SHARD_BYTES} B"
        return _estimate("memory of the shards' names", shards * SHARD_BYTES, "B", formula)

    @cached_property
    def indexed(self) -> CapacityEstimate:
        shards, chunks = self.job.shards or 0, self._chunks
        formula = "shards x 1,450 B + max(shards, dataset / chunk) x 44 B"
        numbers = f"{number(shards)} x {INDEXED_BYTES:,} B + {number(chunks)} x {INDEXED_CHUNK} B"
        value = shards * INDEXED_BYTES + chunks * INDEXED_CHUNK
        return _estimate("memory of the shards with an index", value, "B", f"{formula} = {numbers}")

    @cached_property
    def epoch(self) -> CapacityEstimate:
        dataset = self.job.dataset or 0
        value = dataset / self.rate.value
        numbers = f"{_b(dataset)} / {self.rate.text}"
        return _estimate("time of an epoch", value, "s", f"dataset / rate = {numbers}")

    @cached_property
    def read_cost(self) -> CapacityEstimate:
        price, a_day = self.job.request_price, self.requests.value * DAY
        formula = "requests x day x request_price / 1,000"
        numbers = f"{self.requests.text} x {DAY:,} s x {price:g} / 1,000"
        return _estimate("requests a day", a_day * price / 1000, "USD", f"{formula} = {numbers}")

    @cached_property
    def byte_cost(self) -> CapacityEstimate:
        job = self.job
        value = self.rate.value * (1 + job.extra) * DAY / 1e9 * job.byte_price
        formula = "rate x (1 + extra) x day x byte_price"
        numbers = f"{self.rate.text} x {1 + job.extra:g} x {DAY:,} s x {job.byte_price:g} / GB"
        return _estimate("bytes a day", value, "USD", f"{formula} = {numbers}")

    @cached_property
    def zone_cost(self) -> CapacityEstimate:
        job = self.job
        sent = self.rate.value * (job.sent or job.batch) / job.batch
        value = sent * job.far * DAY / 1e9 * job.zone_price
        formula = "rate x sent / batch x far x day x zone_price"
        numbers = f"{_r(sent)} x {job.far:g} x {DAY:,} s x {job.zone_price:g} / GB"
        return _estimate("bytes between zones a day", value, "USD", f"{formula} = {numbers}")

    @cached_property
    def feeder_cost(self) -> CapacityEstimate:
        price, feeders = self.job.feeder_price, self.feeders
        formula = f"feeders x 24 h x feeder_price = {feeders.text} x 24 h x {price:g}"
        return _estimate("feeders a day", feeders.value * 24 * price, "USD", formula)

    @cached_property
    def epoch_cost(self) -> CapacityEstimate:
        parts = self._costs
        value = sum(part.value for part in parts) * self.epoch.value / DAY
        sums = " + ".join(part.text for part in parts)
        formula = f"cost a day x time of an epoch / day = ({sums}) x {self.epoch.text} / {DAY:,} s"
        return _estimate("an epoch", value, "USD", formula)

    @property
    def _costs(self) -> list[CapacityEstimate]:
        between = [self.zone_cost] if self.job.far else []
        return [self.read_cost, self.byte_cost, *between, self.feeder_cost]

    @cached_property
    def terabyte_cost(self) -> CapacityEstimate:
        terabytes = (self.job.dataset or 0) / 1e12
        formula = f"cost of an epoch / dataset = {self.epoch_cost.text} / {terabytes:g} TB"
        return _estimate("a TB", self.epoch_cost.value / max(terabytes, 1e-12), "USD", formula)

    def estimates(self) -> list[CapacityEstimate]:
        """Return all results, each after those that it rests on."""
        of_store = [
            self.rate,
            self.range_size,
            self.request_time,
            self.requests,
            self.in_flight,
            self.prefixes,
        ]
        of_hosts = [self.connections_a_host]
        of_feeders = [self.feeder_rate, self.feeders, self.workers, self.connections]
        of_feeders += [self.sessions, self.memory]
        of_shards = [self.opening, *self._of_shards()] if self.job.shards is not None else []
        of_epoch = [self.epoch, self.epoch_cost] if self.job.dataset is not None else []
        of_bytes = [self.terabyte_cost] if of_shards and of_epoch else []
        return [*of_store, *of_hosts, *of_feeders, *of_shards, *self._costs, *of_epoch, *of_bytes]

    def _of_shards(self) -> list[CapacityEstimate]:
        listed = [self.pages, self.listing, self.names]
        return [*listed, self.index, self.least_chunk, self.indexed] if self.job.dataset else listed


_UNITS = {
    "step": "s",
    "latency": "s",
    "bandwidth": "B/s",
    "core": "B/s",
    "link": "B/s",
    "prefix": "/s",
    "range": "B",
    "window": "B",
    "memory_budget": "B",
    "extra": "%",
    "headroom": "%",
    "chunk": "B",
    "far": "%",
    **dict.fromkeys(("request_price", "byte_price", "zone_price", "feeder_price"), "USD"),
}


def plan(text: str, *, prices: Mapping[str, float] = NO_PRICES) -> CapacityPlan:
    """Return what a job needs.

    Args:
        text: The job, such as ``"hosts=512,batch=1MB,step=150ms"``, as :class:`Workload` names it.
        prices: Prices by their names in :class:`Workload`, in place of its defaults.

    Raises:
        ConfigError: The text is wrong.
    """
    job = parse_settings(Workload, text, where="the plan")
    defaults = {name: price for name, price in prices.items() if name not in job.model_fields_set}
    named, job = job.model_fields_set, job.model_copy(update=defaults)
    assumed = {name: getattr(job, name) for name in Workload.model_fields if name not in named}
    return CapacityPlan(
        given=text,
        estimates=_CapacityTerms(job).estimates(),
        assumptions=[
            _assumption(name, value) for name, value in assumed.items() if value is not None
        ],
    )


def _assumption(name: str, value: float) -> Assumption:
    meaning = Workload.model_fields[name].description or ""
    text = _TEXTS[_UNITS.get(name, "")](value)
    return Assumption(name=name, value=value, text=text, meaning=meaning)


def _estimate(name: str, value: float, unit: str, formula: str) -> CapacityEstimate:
    return CapacityEstimate(name=name, value=value, text=_TEXTS[unit](value), formula=formula)


def _b(value: float) -> str:
    return size(value, DIGITS)


def _r(value: float) -> str:
    return rate(value, DIGITS)


def _time(value: float) -> str:
    return seconds(value) if value < LONG else duration(value)


def _per_second(value: float) -> str:
    return f"{number(value)}/s"


_TEXTS: Final[Mapping[str, Callable[[float], str]]] = {
    "B": _b,
    "B/s": _r,
    "s": _time,
    "/s": _per_second,
    "%": percent,
    "USD": lambda value: money(value, "USD"),
    "": number,
}
"""The words for a value, by its unit."""
