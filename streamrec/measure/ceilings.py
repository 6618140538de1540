"""The requests of an engine under given settings, and the most that each resource allows. Pure.

All ceilings are rates of frames as a job gets them, decompressed and filtered, so that they can be
compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Literal, Self

from streamrec.config.dataset import DEFAULT_LANES
from streamrec.config.machine import memory_budget
from streamrec.config.schemes import line_of
from streamrec.measure.figures import Ceiling, Cell, read_rate, requests_of, used_part
from streamrec.pipeline.terms.memory_needs import MemoryNeeds
from streamrec.plan.order.shard_order import open_at_once
from streamrec.plan.reading.concurrency import MOST
from streamrec.report.verdict import DECODING_THREADS, LATE
from streamrec.report.words import rate as rate_text
from streamrec.report.words import size
from streamrec.stores.base.source_text import is_glob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamrec.config import DatasetSettings
    from streamrec.flow.stages import Bottleneck
    from streamrec.measure.figures import Figures, Job, Listing, Stage
    from streamrec.plan.reading.ranges import MemoryPlan


LANE_HOLDS = 1.4
"""Ranges of a lane that are not under way: the one in use, and now and then a received one behind
it. Measured with 8 and 16 lanes, as requests under way of all that the budget holds."""
WINDOWS_HELD = 1.5
"""Windows that hold ranges: the one that drains and, on the average, half of the next."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The requests that the engine has under way when nothing but its settings limits them."""

    range_bytes: float
    """Bytes of a request, on the average: shards end in shorter ones."""
    in_flight: float
    """Requests under way."""
    limit: Literal["max_concurrency", "memory_budget"]
    """The setting that allows no more."""

    @classmethod
    def of(cls, settings: DatasetSettings, listing: Listing | None) -> Self:
        """Return the requests of one rank that reads alone.

        Args:
            settings: The dataset's settings.
            listing: The shards; ``None``: many large ones.

        Raises:
            ConfigError: The memory budget is too small.
        """
        needs = memory_needs(settings, listing.shards if listing else DEFAULT_LANES)
        plan = needs.divide(memory_budget(settings))
        size = _mean_range(plan.range_size, listing)
        allowed = settings.max_concurrency
        most = MOST if allowed == "auto" else allowed
        # A range of more than half of the full size takes the memory of a full one.
        piece = plan.range_size if 2 * size > plan.range_size else size
        # One at least: the lane that is waited for may overdraw the budget.
        held = max(1.0, _room(plan) / piece - LANE_HOLDS * plan.lanes)
        if most <= held:
            return cls(size, most, "max_concurrency")
        return cls(size, held, "memory_budget")


def memory_needs(settings: DatasetSettings, shards: int) -> MemoryNeeds:
    """Return what one rank that reads alone needs in memory."""
    auto = min(DEFAULT_LANES, max(1, shards))
    lanes = auto if settings.lanes == "auto" else settings.lanes
    window = int(settings.shuffle_window) if settings.has_windows else 0
    components = len(settings.components)
    sublanes = lanes * components
    if settings.shuffle and settings.weights is None and settings.index is None:
        sublanes = lanes * open_at_once(shards, lanes, int(settings.shuffle_window))
    return MemoryNeeds(
        lanes=lanes,
        sublanes=sublanes,
        packs=lanes * settings.pack.held_bytes if settings.pack else 0,
        windows=window * components,
        near=all(line_of(url).is_local for url in settings.urls),
        has_episodes=settings.window is not None,
    )


def _room(plan: MemoryPlan) -> float:
    """Return the bytes of ranges that are neither in windows nor in use."""
    return plan.for_ranges - WINDOWS_HELD * plan.windows


def _mean_range(largest: int, listing: Listing | None) -> float:
    if listing is None or not listing.shards or not listing.bytes:
        return largest
    # A shard is read by as many requests as it needs, of about equal length.
    shard = listing.bytes / listing.shards
    return shard / -(-shard // largest)


SLOW = 3.0
"""Times the median after which the engine sends a request again, so that none counts for more."""
BUSY = 0.9
"""The part of a core from which on a thread counts as busy all the time."""
IDLE = 0.02
"""The part of a core below which the noise of its measurement is too large to divide by it."""
FREE = 0.8
"""The part of what requests would give alone, below which they share something that is full."""
SAME = 0.85
"""The part of the best rate of a sweep from which on another one is the same."""
POINTS = 3
"""Points of the same rate that make a limit: on a busy machine 24 of 493 sweeps had so many
where no link was limited, and 125 of 154 where one was."""
BODIES = 0.25
"""The least part of its time for which a job waits for bodies where the link holds it back."""
USED = 0.5
"""The part of all cores from which on a job tells what all of them would give."""


@dataclass(frozen=True)
class Resources:
    """The measurements of each resource, and the settings that decide what the engine asks of it.

    Args:
        figures: What was measured; what is missing gives no ceiling.
        settings: The dataset's settings; ``None``: they are not known, as those of a feeder.
    """

    figures: Figures
    settings: DatasetSettings | None

    def ceilings(self) -> list[Ceiling]:
        """Return all ceilings that follow from the figures, the lowest first."""
        laws: tuple[Callable[[], Ceiling | None], ...] = (
            *(self._requests, self._link, self._throttling, self._event_loop),
            *(self._decoding, self._transform, self._cores, self._trainer, self._listing),
        )
        ceilings = [ceiling for ceiling in (law() for law in laws) if ceiling is not None]
        return sorted(ceilings, key=lambda ceiling: ceiling.bytes_per_second)

    @cached_property
    def reading(self) -> Reading | None:
        """The engine's requests; ``None`` where a feeder sends them."""
        if self.settings is None or self.figures.target.kind == "feeder":
            return None
        return Reading.of(self.settings, self.figures.listing)

    @cached_property
    def gain(self) -> float:
        """Bytes that a job gets for each byte that the store sends."""
        processing, job = self.figures.processing, self.figures.job
        inflated = 1.0
        if processing is not None and processing.stored_bytes:
            inflated = processing.bytes / processing.stored_bytes
        # A filter drops bytes that were read, so the job itself tells the gain.
        filters = self.settings is not None and self.settings.filter is not None
        if not (filters and job and job.bytes_read and job.bytes):
            return inflated
        return min(inflated, job.bytes / job.bytes_read)

    @property
    def best_seen(self) -> float:
        """The most that the store was seen to give: more is not known to be there."""
        cells = self.figures.sweep.cells if self.figures.sweep else []
        # A cell that was refused requests tells a limit of the store, and no rate to hope for.
        rates = [cell.bytes_per_second for cell in cells if not cell.throttled]
        return max(rates, default=inf) * self.gain

    # -- the store and the way to it ---------------------------------------------------------------

    @cached_property
    def first_byte(self) -> float | None:
        """The mean time to the first byte, without what the engine would not wait for."""
        measured = self.figures.first_byte
        if measured is None:
            return None
        # The mean and not the median: Little's law is one of means.
        return fmean([min(s, SLOW * measured.p50) for s in measured.seconds] or [measured.p50])

    def seconds_of(self, range_bytes: float) -> float | None:
        """Return the time of one request: to its first byte, and of its body."""
        sweep = self.figures.sweep
        connection = sweep.connection_bytes_per_second if sweep else None
        if self.first_byte is None:
            return None
        return self.first_byte + (range_bytes / connection if connection else 0.0)

    @cached_property
    def lateness(self) -> float | None:
        """Times the seconds of one request alone that those of the job took."""
        requests = requests_of(self.figures.job) if self.figures.job else None
        alone = self.seconds_of(requests.bytes) if requests else None
        return requests.seconds / alone if requests and alone else None

    @cached_property
    def is_capped(self) -> bool:
        """Whether the sweep came to one rate in several ways, as a busy machine does not."""
        rates = [cell.bytes_per_second for cell in self._shared_cells()]
        best = max(rates, default=0.0)
        return sum(rate >= SAME * best for rate in rates) >= POINTS

    @property
    def fills_link(self) -> bool:
        """Whether the job's own requests take the link from one another."""
        return self._link_of_job() is not None

    def _shared_cells(self) -> list[Cell]:
        """Return the cells of several requests: a single one shares its way with none."""
        cells = self.figures.sweep.cells if self.figures.sweep else []
        return [cell for cell in cells if cell.concurrency > 1]

    def _requests(self) -> Ceiling | None:
        """Apply Little's law to the requests under way."""
        reading = self.reading
        seconds = self.seconds_of(reading.range_bytes) if reading else None
        if reading is None or not seconds or self.first_byte is None:
            return None
        rate = reading.in_flight * reading.range_bytes / seconds
        body = seconds - self.first_byte
        return Ceiling(
            # One law with two names: the larger part of a request's time is the one to change.
            resource="store latency" if self.first_byte >= body else "connection bandwidth",
            bytes_per_second=rate * self.gain,
            why=f"{reading.limit} allows {reading.in_flight:.0f} requests at a time of "
            f"{size(reading.range_bytes)}, each {self.first_byte * 1e3:.0f} ms to the first"
            f" byte and {body * 1e3:.0f} ms for its body (Little: requests = rate x time)",
        )

    def _link(self) -> Ceiling | None:
        """Return the rate at which connections begin to take it from one another."""
        # The job first: a sweep that was cut short has not filled the link.
        return self._link_of_job() or self._link_of_sweep()

    def _link_of_job(self) -> Ceiling | None:
        """Take the job as one more cell of the sweep, if it waited for the bodies of many requests.

        A sweep that was cut short has not filled a link that the job's requests fill.
        """
        job = self.figures.job
        if job is None or job.throttled or not _waits_for_bodies(job):
            return None
        requests = requests_of(job)
        if requests is None or (self.lateness or 0.0) < LATE:
            return None
        # Lateness is the one divided by the other, so this is the time of one request alone.
        alone, rate = requests.seconds / (self.lateness or 1.0), read_rate(job)
        return Ceiling(
            resource="link",
            bytes_per_second=rate * self.gain,
            why=f"{requests.under_way:.0f} requests under way at a time got {rate_text(rate)} "
            f"together; each took {requests.seconds:.2g} s, and one alone takes {alone:.2g} s",
        )

    def _link_of_sweep(self) -> Ceiling | None:
        best = max(self._shared_cells(), key=lambda cell: cell.bytes_per_second, default=None)
        # A busy loop or a store that refuses requests gives the same picture as a full link.
        if best is None or not best.bytes or best.throttled or best.loop_busy >= BUSY:
            return None
        seconds = self.seconds_of(best.range_bytes)
        alone = best.concurrency * best.range_bytes / seconds if seconds else None
        if self.is_capped:
            beside = "and other numbers gave the same"
        elif alone is None or best.bytes_per_second > FREE * alone:
            return None
        else:
            beside = f"and would give {rate_text(alone)} if each had a link of its own"
        return Ceiling(
            resource="link",
            bytes_per_second=best.bytes_per_second * self.gain,
            why=f"{best.concurrency} requests at a time gave {rate_text(best.bytes_per_second)} "
            f"together, {beside}; the event loop's thread used {best.loop_busy:.0%} of a core",
        )

    def _throttling(self) -> Ceiling | None:
        answers = max(self._answers_while_throttled(), default=None)
        reading = self.reading
        if answers is None or reading is None:
            return None
        return Ceiling(
            resource="throttling",
            bytes_per_second=answers * reading.range_bytes * self.gain,
            why=f"the store answered {answers:.0f} requests a second and told others to slow down; "
            f"a request is for {size(reading.range_bytes)}",
        )

    def _answers_while_throttled(self) -> Iterator[float]:
        """Yield the rates of requests that were answered while others were refused.

        A job waits after each refusal, so what it was answered is what it can have; the sweep tells
        it only where the job was not refused.
        """
        sweep, job = self.figures.sweep, self.figures.job
        if job and job.throttled and job.seconds:
            yield max(0, job.requests - job.throttled) / job.seconds
            return
        for cell in sweep.cells if sweep else ():
            if cell.throttled and cell.seconds:
                yield cell.requests / cell.seconds

    # -- this machine ------------------------------------------------------------------------------

    @cached_property
    def loop_cost(self) -> float | None:
        """Seconds of the event loop's thread for a byte of frames."""
        job = self.figures.job
        # A loop that was busy all the time shows its cost itself.
        if job is not None and (job.loop_busy or 0.0) >= BUSY and job.bytes:
            return (job.loop_busy or 1.0) * job.seconds / job.bytes
        # Large ranges alone: the cost of a request would hide that of its bytes.
        received = [_cost(cell) for cell in self._largest_cells() if cell.loop_busy >= IDLE]
        if not received:
            return None
        # The least: other programs only add to it.
        return min(received) / self.gain + self._scan_cost()

    def _largest_cells(self) -> list[Cell]:
        cells = (
            [cell for cell in self.figures.sweep.cells if cell.bytes] if self.figures.sweep else []
        )
        largest = max((cell.range_bytes for cell in cells), default=0)
        return [cell for cell in cells if cell.range_bytes == largest]

    def _scan_cost(self) -> float:
        processing, settings = self.figures.processing, self.settings
        if processing is None:
            return 0.0
        return _per_byte(processing.crc if settings and settings.check_crc else processing.scan)

    def _event_loop(self) -> Ceiling | None:
        if not self.loop_cost:
            return None
        return Ceiling(
            resource="event loop",
            bytes_per_second=1 / self.loop_cost,
            why=f"one thread receives, scans and merges: {self.loop_cost * 1e9:.2f} s of a core for"
            " each GB",
        )

    @cached_property
    def _costs(self) -> dict[str, float]:
        """The seconds of a core for a byte of frames, of what threads do."""
        processing = self.figures.processing
        if processing is None:
            return {}
        decoding = (processing.decompress, processing.parse, processing.decode)
        costs = {
            "decoding": sum(map(_per_byte, decoding)),
            "transform": _per_byte(processing.transform),
        }
        return {name: cost for name, cost in costs.items() if cost}

    def _decoding(self) -> Ceiling | None:
        return self._threads("decoding", "decompress, parse and decode")

    def _transform(self) -> Ceiling | None:
        return self._threads("transform", "run filter, map and transform")

    def _threads(self, name: Bottleneck, what: str) -> Ceiling | None:
        """Return the ceiling of work that shares the decoding threads.

        Whatever costs more of their time is held back by both; without it the other has them alone.
        """
        cost = self._costs.get(name, 0.0)
        if not cost:
            return None
        cores = self.figures.machine.cores
        threads = min(DECODING_THREADS, cores)
        # Only the more expensive of the two is told to be the limit.
        shared = sum(self._costs.values()) if cost == max(self._costs.values()) else cost
        by_threads = threads / shared
        # The event loop needs its core beside the decoding threads.
        by_cores = cores / (shared + (self.loop_cost or 0.0))
        return Ceiling(
            resource=name,
            bytes_per_second=min(by_threads, by_cores),
            why=f"{threads} threads on {cores} cores {what}: {cost * 1e9:.2f} s of a core for each "
            "GB",
        )

    def _cores(self) -> Ceiling | None:
        """Return what a job would read that used all cores as well as it used a part of them."""
        job, cores = self.figures.job, self.figures.machine.cores
        used = used_part(job, cores) if job else None
        if job is None or used is None or used < USED or not job.bytes:
            return None
        cost = used * cores * job.seconds / job.bytes
        return Ceiling(
            resource="cores",
            bytes_per_second=cores / cost,
            why=f"the job used {used:.0%} of {cores} cores: {cost * 1e9:.2f} s of a core for each "
            "GB",
        )

    # -- around it ---------------------------------------------------------------------------------

    def _trainer(self) -> Ceiling | None:
        job = self.figures.job
        if job is None or not job.step_seconds or not job.batches:
            return None
        batch = job.bytes / job.batches
        # A machine that is busy wakes the simulated trainer late.
        late = max(job.step_seconds, job.waits.get("client", 0.0) / job.batches)
        step = late if late <= LATE * job.step_seconds else job.step_seconds
        took = f"takes {step * 1e3:.0f} ms"
        if f"{step:.3f}" != f"{job.step_seconds:.3f}":
            took += f", of which {job.step_seconds * 1e3:.0f} ms were asked for"
        return Ceiling(
            resource="trainer",
            bytes_per_second=batch / step,
            why=f"a step {took}, and a batch has {size(batch)}",
        )

    @cached_property
    def run_bytes(self) -> float | None:
        """The bytes of a run; ``None``: it has no end, or is not known."""
        listing, settings, job = self.figures.listing, self.settings, self.figures.job
        if listing is None or settings is None or settings.epochs is None:
            return None
        # The listing has stored bytes, and a job counts frames.
        epoch = listing.bytes * self.gain
        if settings.steps_per_epoch and job and job.batches:
            epoch = settings.steps_per_epoch * job.bytes / job.batches
        return settings.epochs * epoch

    def _listing(self) -> Ceiling | None:
        listing, seconds = self.figures.listing, self.listing_seconds
        if listing is None or not self.run_bytes or not seconds:
            return None
        done = "looked up" if self.is_named else "listed"
        return Ceiling(
            resource="listing",
            bytes_per_second=self.run_bytes / seconds,
            why=f"nothing is read before {listing.shards:,} shards are {done} and the dataset is "
            f"open, in {seconds:.2g} s; the run reads {size(self.run_bytes)}",
        )

    @property
    def listing_seconds(self) -> float:
        """The seconds until a job has opened its dataset, and so has the names of its shards."""
        listing, job = self.figures.listing, self.figures.job
        # The benchmark's own listing came first, and opened the connections.
        if job is not None:
            return job.waits.get("list", 0.0)
        return listing.seconds if listing else 0.0

    @property
    def listed_seconds(self) -> float:
        """The part of these seconds in which stores listed names."""
        job = self.figures.job
        if job is None or job.listed_seconds is None:
            return self.listing_seconds
        return min(job.listed_seconds, self.listing_seconds)

    @property
    def is_named(self) -> bool:
        """Whether the source names its shards, in a list or a counted range, without a glob."""
        return self.settings is not None and not any(map(is_glob, self.settings.urls))


def _waits_for_bodies(job: Job) -> bool:
    """Return whether a job waits much for bodies, and longer than for first bytes."""
    body, first_byte = (job.waits.get(stage, 0.0) for stage in ("body", "first_byte"))
    return body >= BODIES * job.seconds and body > first_byte


def _cost(cell: Cell) -> float:
    return cell.loop_busy * cell.seconds / cell.bytes


def _per_byte(stage: Stage | None) -> float:
    return 1 / stage.bytes_per_second if stage and stage.bytes_per_second else 0.0
