"""The figures of one benchmark: what was measured, and what follows from it.

They are the JSON of ``streamrec bench --json``, whose form has the version :data:`VERSION`: names
may be added to it; where one goes or changes its meaning, the version changes. Rates are bytes or
records a second, times are seconds, and ``None`` stands for what was not measured.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from streamrec.config.named_files import check_file
from streamrec.errors import ConfigError
from streamrec.flow.stages import Bottleneck
from streamrec.report.verdict import FULL

if TYPE_CHECKING:
    import os

MOST_BYTES = 64 << 20
"""The most bytes of a file; no benchmark writes more."""
REMEDY = "name a file that streamrec bench --json wrote"


def read_figures(path: str | os.PathLike[str]) -> Figures:
    """Return the figures of a file.

    Raises:
        ConfigError: The file cannot be read, or holds something else, or another version's form.
    """
    # The version is looked at before the form: another version's form would give a message about a
    # field.
    text = _text(Path(path))
    try:
        version = from_json(text)["version"]
    except (ValueError, TypeError, LookupError):
        raise ConfigError(f"{path} does not hold the figures of a benchmark; {REMEDY}") from None
    if version != VERSION:
        raise ConfigError(
            f"{path} holds figures of version {version!r}, and this release reads version "
            f"{VERSION}; compare them with the release that wrote them, or measure anew"
        )
    try:
        return Figures.model_validate_json(text)
    except ValidationError as error:
        wrong = _first(error)
    raise ConfigError(f"{path} does not have the form of figures ({wrong}); {REMEDY}")


def _text(path: Path) -> bytes:
    check_file(path, "the command")
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); {REMEDY}") from None
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{path} is larger than any benchmark's figures; {REMEDY}")
    return text


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


VERSION: Final = 1


class _FigureModel(BaseModel):
    # JSON has no infinity and no NaN.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Limits(_FigureModel):
    """Amounts of what a benchmark may spend, or has spent."""

    seconds: float
    bytes: int
    """Bytes of objects that stores were asked for."""
    requests: int
    """Requests to stores, each page of a listing among them."""


class Target(_FigureModel):
    """The target of a benchmark."""

    kind: Literal["store", "feeder", "simulation"]
    urls: list[str]
    """URLs or addresses, without secrets."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The dataset's settings that differ from the defaults, without secrets."""
    simulation: str | None = None
    """The text of the simulation."""


class Machine(_FigureModel):
    """The machine and the software."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str
    streamrec: str
    kernel: Literal["native", "python"]


class Listing(_FigureModel):
    """The listing of the shards."""

    shards: int
    bytes: int
    """The sum of the shards' sizes; an estimate if the source names the shards."""
    requests: int
    seconds: float
    counted: str | None = None
    """A counted range that stands for exactly the shards that a glob found; ``None``: there is
    none."""


class FirstByte(_FigureModel):
    """The times from a request to the first byte of its answer, over connections that are open."""

    seconds: list[float]
    """The time of each request, sorted."""
    p50: float
    p99: float
    p999: float


class Cell(_FigureModel):
    """One point of the sweep: a number of requests at a time, and their size."""

    range_bytes: int
    concurrency: int
    seconds: float
    bytes: int
    requests: int
    throttled: int = 0
    """Answers that asked to slow down (429, 503)."""
    loop_busy: float = 0.0
    """The part of the time (0 to 1) for which the event loop's thread used a core."""

    @property
    def bytes_per_second(self) -> float:
        """The rate."""
        return self.bytes / self.seconds if self.seconds else 0.0


class Sweep(_FigureModel):
    """Rates by size of a range and number of requests at a time."""

    cells: list[Cell]
    connection_bytes_per_second: float | None
    """The rate of one connection after its first byte."""
    plateau: int | None
    """The index of the cell with the fewest requests at a time whose rate is within 5 % of the best
    rate; ``None`` if the rate still grew at the last cell."""


class Stage(_FigureModel):
    """The rate of one step of the processing, on one core."""

    bytes_per_second: float
    """Bytes of frames, as they are decompressed."""
    records_per_second: float


class Processing(_FigureModel):
    """The rates of the CPU for each step, measured over bytes in memory."""

    records: int
    """Records of the sample."""
    bytes: int
    """Bytes of the sample's frames."""
    stored_bytes: int
    """Bytes that the sample takes in the store: fewer if it is compressed."""
    zstd_ratio: float | None = None
    """The factor by which zstd makes the sample smaller; ``None`` if it is compressed already."""
    decompress: Stage | None = None
    scan: Stage
    """Framing, without CRC."""
    crc: Stage
    """Framing and both CRCs."""
    parse: Stage | None = None
    """From records to columns; ``None`` without features."""
    decode: Stage | None = None
    """Pictures among the columns."""
    transform: Stage | None = None
    """The user's ``filter``, ``map`` and ``transform``."""


class Sample(_FigureModel):
    """The amounts that a job got in one interval."""

    at: float
    """Seconds from the job's start to the end of the interval."""
    seconds: float
    bytes: int
    records: int
    in_flight: int | None = None
    """Requests under way at the end of the interval."""


class Job(_FigureModel):
    """The whole stream, read as a training job reads it."""

    seconds: float
    ended: Literal["seconds", "stream", "budget", "interrupt"]
    """The cause of the job's end: its time, the stream's end, the budget, or Ctrl-C."""
    first_batch_seconds: float
    """Seconds until the first batch, with the opening; if no batch came, all seconds."""
    batches: int
    records: int
    bytes: int
    """Bytes of frames that left in batches; from a feeder, bytes of the batches."""
    bytes_read: int
    """Bytes that came from the store or the feeder."""
    requests: int
    retries: int = 0
    throttled: int = 0
    hedges: int = 0
    step_seconds: float | None = None
    """The simulated trainer's time for a batch."""
    unfinished_step_seconds: float = 0.0
    """Seconds of a step that had not ended when the job did."""
    stalled: float
    """The part of the time (0 to 1) for which the trainer waited, after the first batch."""
    listed_seconds: float | None = None
    """The part of the time to open the dataset in which stores listed names; ``None``: not known.
    """
    waits: dict[str, float]
    """Seconds by stage, as in ``stream.statistics()``; they add up to ``seconds``."""
    concurrency: int | None = None
    concurrency_reason: str | None = None
    concurrency_seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds by the cause for which no more requests were in flight."""
    loop_busy: float | None = None
    """The part of the time (0 to 1) for which the event loop's thread used a core."""
    core_seconds: float | None = None
    """Seconds for which the process's threads ran on a core, all together; ``None`` if the system
    does not say it (Linux does)."""
    core_wait_seconds: float | None = None
    """Seconds for which these threads could have run, but waited for a core."""
    samples: list[Sample] = Field(default_factory=list)


class Costs(_FigureModel):
    """The charges of stores."""

    currency: str
    prices: str
    """The source of the prices, and their day."""
    spent: float
    """For this benchmark."""
    epoch: float | None
    """For one epoch of the whole dataset, as the job read it."""
    epoch_requests: float | None
    """The part of ``epoch`` for requests; the rest is for bytes."""


class Ceiling(_FigureModel):
    """The most that one resource allows."""

    resource: Bottleneck
    bytes_per_second: float
    why: str
    """The law and its numbers, as a sentence."""


class Change(_FigureModel):
    """One change that the verdict asks for."""

    setting: str | None
    """The name of a setting; ``None``: something outside streamrec."""
    value: Any = None
    """``None``: ``why`` says in words what to set."""
    why: str


class Verdict(_FigureModel):
    """The bottleneck of a job, and the changes to make."""

    bottleneck: Bottleneck | None
    """``None``: nothing that was measured explains the rate."""
    summary: str
    """One paragraph."""
    evidence: list[str]
    ceilings: list[Ceiling]
    """All known ceilings, the lowest first."""
    changes: list[Change]
    paste: str = ""
    """The settings to change, as TOML for a feeder's file; empty if no setting helps."""
    bytes_per_second: float
    """The job's rate now; without a job, the rate that the parts allow."""
    predicted_bytes_per_second: float | None
    """The rate after the change; ``None``: nothing that was measured tells it."""
    next_bottleneck: Bottleneck | None
    """The bottleneck after the changes."""
    from_job: bool = True
    """False: no job was measured, and the verdict follows from the parts."""
    is_short: bool = False
    """True: the job was too short to judge."""
    busy: float | None = None
    """The part (0 to 1) of the time in which the job's threads could have run, but other programs
    had the cores; ``None``: little."""


class Figures(_FigureModel):
    """All figures of one benchmark."""

    version: Literal[1] = VERSION
    taken: str
    """The date and time at which the benchmark started, ISO 8601."""
    target: Target
    machine: Machine
    limits: Limits
    """The most that the benchmark might spend."""
    spent: Limits
    unfinished: list[str] = Field(default_factory=list)
    """Measurements that were left out or cut short, each with the reason."""
    listing: Listing | None = None
    first_byte: FirstByte | None = None
    sweep: Sweep | None = None
    processing: Processing | None = None
    job: Job | None = None
    costs: Costs | None = None
    verdict: Verdict | None = None


MUCH = 0.2
"""The part of the time in which threads could run from which on the wait for a core is told."""
FELT = 0.1
"""The least wait for a core of all threads, in parts of the job's time; less slows nothing down."""


def busy_part(job: Job, cores: int) -> float | None:
    """Return for which part of the time in which a job's threads could run others had the cores.

    Args:
        job: The job.
        cores: Those that it may use.

    Returns:
        A part of 1; ``None``: others had them for little time, or the system does not tell it.
    """
    ran, waited = job.core_seconds, job.core_wait_seconds
    if ran is None or waited is None or (used_part(job, cores) or 0.0) >= FULL:
        return None
    part = waited / (ran + waited) if ran + waited else 0.0
    return part if part >= MUCH and waited >= FELT * job.seconds else None


def used_part(job: Job, cores: int) -> float | None:
    """Return the part of all cores' time that a job used; ``None``: it is not known."""
    if job.core_seconds is None or not job.seconds:
        return None
    return job.core_seconds / (cores * job.seconds)


RAMP = 1 / 3
"""The part of a job's samples in which the engine still finds its number of requests."""
FEWEST_SAMPLES = 6
FEWEST_BATCHES = 4
"""Batches behind the ramp below which samples tell no rate: the moment at which the job ended may
add or take one."""
UNSTEADY = 1.5
"""Times by which a job's rate after the ramp and its mean may differ."""


def steady_rate(job: Job) -> float:
    """Return the bytes a second after the first batch and the ramp.

    The waits are those of the whole job. So where its rate was not steady, it is the mean.
    """
    behind = _behind_ramp(job)
    return behind if behind is not None and is_steady(job) else mean_rate(job)


def has_ramp(job: Job) -> bool:
    """Return whether a job is long enough to tell its rate after the ramp."""
    return _behind_ramp(job) is not None


def is_steady(job: Job) -> bool:
    """Return whether the rate after the ramp is about that of the whole job."""
    mean, behind = mean_rate(job), _behind_ramp(job)
    return behind is None or mean / UNSTEADY <= behind <= mean * UNSTEADY


def _behind_ramp(job: Job) -> float | None:
    # Whole samples after the first batch: the wait for it is the start's.
    behind = [one for one in job.samples if one.at - one.seconds >= job.first_batch_seconds]
    # Until then the engine is still looking for its number of requests.
    samples = behind[math.ceil(len(behind) * RAMP) :]
    nbytes = sum(sample.bytes for sample in samples)
    has_few = nbytes * job.batches < FEWEST_BATCHES * job.bytes
    if len(behind) < FEWEST_SAMPLES or not nbytes or has_few:
        return None
    return nbytes / sum(sample.seconds for sample in samples)


def read_rate(job: Job) -> float:
    """Return the bytes a second that came from the store, after the listing."""
    seconds = job.seconds - job.waits.get("list", 0.0)
    return job.bytes_read / seconds if seconds > 0 else 0.0


def mean_rate(job: Job) -> float:
    """Return the bytes a second after the first batch, without an unfinished step."""
    seconds = job.seconds - job.first_batch_seconds - job.unfinished_step_seconds
    if job.batches < 2 or seconds <= 0:
        return job.bytes / job.seconds
    # The first batch had its own time, and leaves with it.
    return job.bytes * (1 - 1 / job.batches) / seconds


class Requests(NamedTuple):
    """The requests of a job, as they were on the average."""

    under_way: float
    """Requests at a time."""
    seconds: float
    """Seconds of each."""
    bytes: float
    """Bytes of each."""


def requests_of(job: Job) -> Requests | None:
    """Return the requests of a job; ``None``: too few were seen under way."""
    listed = job.waits.get("list", 0.0)
    counts = [one.in_flight for one in job.samples if one.in_flight is not None and one.at > listed]
    if len(counts) < FEWEST_SAMPLES or not job.requests:
        return None
    count = fmean(counts)
    # Little: requests under way = requests a second x seconds of each.
    seconds = count * (job.seconds - listed) / job.requests
    return Requests(count, seconds, job.bytes_read / job.requests)
