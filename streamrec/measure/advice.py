"""The advice on a bottleneck: the settings that lift it, and where none does, what would. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamrec.config.machine import automatic_budget, memory_budget
from streamrec.errors import ConfigError
from streamrec.flow.stages import GROUPS, Bottleneck
from streamrec.measure.ceilings import Resources, memory_needs
from streamrec.measure.evidence import REQUESTS
from streamrec.measure.figures import Change
from streamrec.report.verdict import CONTRADICTS
from streamrec.report.words import memory, size
from streamrec.streams.first_batch import enough

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.config.cache_and_audit import Kept
    from streamrec.measure.evidence import Finding
    from streamrec.measure.figures import Figures

NOTICED = 1.1
"""Times the present rate that a change must bring."""
ENOUGH = 0.97
"""The part of the best prediction with which the smallest change is taken."""
SPARE = 1.2
"""Times the next ceiling that the changed resource should allow, so that it limits no more."""
SPARE_REQUESTS = 2.5
"""Times a store's limit of requests: close to the limit a store refuses some, and each waits."""
UNEXPLAINED = (
    "Measure again for longer, with nothing else on the machine; --trace shows what the job did."
)
AS_IT_SHOULD = "The data waits for the trainer, as it should: only a shorter step helps."
CROWDED = "End the other programs, or give the job more cores, and measure again."
CLEARLY = 2.0
"""Times a request of the store that a listing takes before names instead of it are advised."""
UNKNOWN = 2.0
"""Times the present rate that is predicted at most where no other ceiling is known."""
MIB = 1 << 20
SMALL_SHARD = 4 * MIB
"""Bytes of a request below which its latency weighs."""
CONCURRENCIES: Final = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Values of max_concurrency that are tried."""
BUDGETS: Final = tuple((32 * MIB) << power for power in range(7))
"""Values of memory_budget that are tried, up to 2 GiB: beyond it nothing more is read ahead."""
_CACHED: Final = (*GROUPS["network"], "listing")
"""The resources that do not hold back a job that reads from a cache."""


@dataclass(frozen=True)
class Advice:
    """Changes, and the rate that they lead to."""

    changes: list[Change]
    rate: float | None = None
    """Bytes a second after the changes; ``None``: nothing that was measured tells it."""
    next: Bottleneck | None = None
    """The bottleneck after the changes; ``None``: it is not known."""


def advise(figures: Figures, settings: DatasetSettings | None, finding: Finding) -> Advice:
    """Return the changes to make.

    Args:
        figures: What was measured.
        settings: The dataset's settings; ``None``: they are not known.
        finding: The bottleneck.
    """
    resource = finding.bottleneck
    if resource is None:
        return Advice([_outside(UNEXPLAINED)])
    if resource == "cores" and finding.busy is not None:
        return Advice([_outside(CROWDED)])
    if resource == "trainer":  # there is nothing to change, so nothing to predict
        return Advice([_outside(AS_IT_SHOULD)])
    if settings is not None and resource in (*REQUESTS, "throttling"):
        if _contradicts(figures, settings, finding, resource):
            # The law leaves something out, so what it says of other settings is no prediction.
            return Advice(list(_CHANGES[resource](figures, settings)))
        # First what costs nothing: a setting. Only where none helps, a cache, other shards or
        # another machine.
        best = _best_settings(figures, settings, finding, resource)
        if best is not None:
            return best
    return _elsewhere(figures, settings, finding, resource)


# -- settings of the fetch engine ------------------------------------------------------------------


class _PredictedRate(NamedTuple):
    """The rate with other settings."""

    rate: float
    next: Bottleneck | None
    reach: float
    """The rate that the changed resource allows, as far as it matters."""


def _best_settings(
    figures: Figures, settings: DatasetSettings, finding: Finding, resource: Bottleneck
) -> Advice | None:
    """Try values of the engine's settings; return the smallest change with the best prediction."""
    tried = [
        (update, outcome)
        for update in _updates(figures, settings)
        if (outcome := _predict(figures, settings, update, finding.rate, resource)) is not None
    ]
    # By reach and not by rate: where another ceiling comes next, many values give the same rate.
    farthest = max((outcome.reach for _, outcome in tried), default=0.0)
    good = [one for one in tried if one[1].reach >= ENOUGH * farthest]
    if not good or max(outcome.rate for _, outcome in good) < NOTICED * finding.rate:
        return None
    # The smallest change that is almost as good: one setting before two, little memory before much.
    update, outcome = min(good, key=lambda one: _size(one[0], settings))
    changes = [_engine_change(*one, settings, finding) for one in update.items()]
    most = Resources(figures, settings).best_seen
    # What the sweep saw is a fact; beyond it stands only a law.
    if resource == "throttling" or outcome.rate <= most:
        return Advice(changes, outcome.rate, outcome.next)
    return Advice(changes, most if most >= NOTICED * finding.rate else None)


def _contradicts(
    figures: Figures, settings: DatasetSettings, finding: Finding, resource: Bottleneck
) -> bool:
    """Return whether the job is far from the ceiling of its settings, or that is not known."""
    if finding.job is None:
        return False
    ceilings = [
        one.bytes_per_second
        for one in Resources(figures, settings).ceilings()
        if _key(one.resource) == _key(resource)
    ]
    return not ceilings or finding.rate < CONTRADICTS * ceilings[0]


def _updates(figures: Figures, settings: DatasetSettings) -> Iterator[dict[str, Any]]:
    limit = figures.machine.memory_bytes // 4
    # The trainer has the other memory of the machine.
    budgets = [None, *(budget for budget in BUDGETS if budget <= limit)]
    for requests, budget in product((None, *CONCURRENCIES), budgets):
        update: dict[str, Any] = {}
        if requests is not None and requests != settings.max_concurrency:
            update["max_concurrency"] = requests
        if budget is not None and budget != memory_budget(settings):
            update["memory_budget"] = budget
        if update:
            yield update


def _least_budget(figures: Figures, settings: DatasetSettings) -> int:
    """Return the budget in which batches and requests do not wait for one another."""
    job, listing = figures.job, figures.listing
    if job is None or not job.batches or listing is None:
        return 0
    needs = memory_needs(settings, listing.shards)
    return enough(job.bytes // job.batches, needs.lanes, needs.windows)


def _size(update: dict[str, Any], settings: DatasetSettings) -> tuple[float, ...]:
    budget = update.get("memory_budget", memory_budget(settings))
    return len(update), budget, update.get("max_concurrency", 0)


def _predict(
    figures: Figures,
    settings: DatasetSettings,
    update: dict[str, Any],
    rate: float,
    resource: Bottleneck,
) -> _PredictedRate | None:
    """Return what becomes of the rate; ``None``: such settings are refused, or nothing tells.

    The job may be slower than the arithmetic says. So the bottleneck's ceiling is that of the job,
    times what the change makes of the arithmetic.
    """
    now = {_key(one.resource): one for one in Resources(figures, settings).ceilings()}
    try:
        changed = Resources(figures, settings.model_copy(update=update)).ceilings()
    except ConfigError:  # the budget is too small
        return None
    then = {_key(one.resource): one for one in changed if one.resource != "listing"}
    key = _key(resource)
    if key not in now or key not in then:
        return None
    ceiling = then.pop(key)
    # In proportion: what makes the job slower than the law does so afterwards, too.
    lifted = rate * ceiling.bytes_per_second / now[key].bytes_per_second
    # No other ceiling can be below the rate that the job has reached.
    others = [(max(one.bytes_per_second, rate), one.resource) for one in then.values()]
    limit, following = min(others, default=(UNKNOWN * rate, None))
    spare = SPARE_REQUESTS if resource == "throttling" else SPARE
    reach = min(lifted, spare * limit)
    return _PredictedRate(
        min(lifted, limit), following if lifted >= limit else ceiling.resource, reach
    )


def _key(resource: Bottleneck) -> str:
    return "requests" if resource in REQUESTS else resource


def _engine_change(name: str, value: Any, settings: DatasetSettings, finding: Finding) -> Change:
    if name == "max_concurrency":
        why = "requests needed = rate x time of a request (Little)"
        if settings.max_concurrency != "auto":
            why += "; without the setting the engine finds the number"
        return Change(setting=name, value=value, why=why)
    larger = "larger ranges need fewer requests for the same bytes"
    bounds = "it bounds the size of the ranges, and how many are under way"
    why = larger if finding.bottleneck == "throttling" else bounds
    return _set_budget(value, why, settings)


def _set_budget(budget: int, why: str, settings: DatasetSettings) -> Change:
    auto = automatic_budget()
    if settings.memory_budget != "auto" and auto > budget:
        why += f"; without the setting it is {memory(auto)} on this machine"
    return Change(setting="memory_budget", value=f"{budget // MIB}MiB", why=why)


# -- what helps where no setting of the engine does ------------------------------------------------


_TAKES_CORES: Final = ("decoding", "transform")
"""The work that leaves cores free where it is gone: how many, was not measured."""


def _elsewhere(
    figures: Figures, settings: DatasetSettings | None, finding: Finding, resource: Bottleneck
) -> Advice:
    """Return what lifts the bottleneck otherwise, and the rate where it is gone."""
    changes = list(_CHANGES[resource](figures, settings))
    if resource == "listing" and changes[0].setting is None:  # it stays as it is
        return Advice(changes)
    gone = {
        resource,
        "listing",
        *(_CACHED if any(one.setting == "cache" for one in changes) else ()),
        *(("cores",) if resource in _TAKES_CORES else ()),
    }
    left = [
        (max(finding.rate, one.bytes_per_second), one.resource)
        for one in finding.ceilings
        if one.resource not in gone
    ]
    if resource == "listing":
        named = list(_without_sizes(figures, settings))
        left += [one for one in named if one[0] >= NOTICED * finding.rate]
        if named and named[0] not in left:  # names would cost more than the listing does
            changes = changes[1:]
    if not left:
        return Advice(changes)
    rate, following = min(left)
    if changes[0].setting == "source":
        # What else is opened, and a counted range's one request, come before all other things, so
        # the times add up.
        resources = Resources(figures, settings)
        opening = resources.listing_seconds - resources.listed_seconds
        opening += 0.0 if changes[0].value is None else _round_trip(figures)
        rate = 1 / (opening / (resources.run_bytes or inf) + 1 / rate)
    # What a feeder's own machine could give is not measured from here.
    if resource == "feeder" and rate > UNKNOWN * finding.rate:
        return Advice(changes, UNKNOWN * finding.rate, resource)
    return Advice(changes, rate, following)


def _without_sizes(
    figures: Figures, settings: DatasetSettings | None
) -> Iterator[tuple[float, Bottleneck]]:
    """Yield the rate of shards that are named and not listed: a lane learns a size at a time."""
    listing, resources = figures.listing, Resources(figures, settings)
    if listing is None or settings is None or resources.reading is None:
        return
    seconds = resources.seconds_of(resources.reading.range_bytes)
    if seconds:
        lanes = memory_needs(settings, listing.shards).lanes
        yield lanes * listing.bytes / listing.shards / seconds * resources.gain, "store latency"


def _for_requests(figures: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    yield from _cache(figures, settings)
    reading = Resources(figures, settings).reading
    if reading is not None and reading.range_bytes < SMALL_SHARD:
        yield _outside(
            f"Shards are read by requests of {size(reading.range_bytes)}: write fewer and "
            "larger ones, of 100 MB or more."
        )
    yield _outside("A machine in the zone of the bucket has a shorter way to it.")


def _for_link(figures: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    if figures.target.kind == "feeder":
        yield _outside(
            "A client on the feeder's host (unix://), narrower columns (dtypes) or a feeder nearer "
            "by need less bandwidth; TLS takes a part of a core at either end."
        )
        return
    yield from _cache(figures, settings)
    yield _outside(
        "A machine with a faster network or in the zone of the bucket has a faster link; several "
        "hosts have a link each."
    )
    processing = figures.processing
    if processing is not None and (processing.zstd_ratio or 0.0) >= NOTICED:
        yield _outside(
            f'Shards written with compression="zstd" need less of the link: a sample became '
            f"{processing.zstd_ratio:.1f} times smaller."
        )


def _for_throttling(figures: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    yield from _cache(figures, settings)
    yield _outside(
        "The store limits requests: write larger shards, spread them over more prefixes, or ask for"
        " a higher limit."
    )


def _for_memory_budget(figures: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    if settings is not None:
        least = max(2 * memory_budget(settings), _least_budget(figures, settings))
        # A round number where there is one.
        budget = next((one for one in BUDGETS if one >= least), least)
        yield _set_budget(budget, "the buffers were full; measure again then", settings)
    yield _outside("Smaller batches, a smaller shuffle_window and fewer lanes need less memory.")


def _for_max_concurrency(_: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    if settings is None or settings.max_concurrency == "auto":
        yield _outside("Larger shards and a larger memory_budget get more bytes by each request.")
        return
    yield Change(setting="max_concurrency", value="auto", why="the engine then finds the number")


def _for_event_loop(figures: Figures, _: DatasetSettings | None) -> Iterator[Change]:
    if figures.machine.kernel == "python":
        yield _outside("Install a wheel or a C compiler: the kernel in Python is slow.")
    yield _outside(
        "One rank is one event loop, and that is one core: more ranks on this machine, or feeders,"
        " have one each."
    )


def _for_decoding(figures: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    if (cache := _choose_decoded(figures, settings)) is not None:
        yield Change(
            setting="cache",
            value={"of": cache},
            why=f"from the second epoch or job on, {cache} are neither read nor decoded",
        )
    processing = figures.processing
    if processing is not None and processing.decompress is not None:
        ratio = processing.bytes / max(1, processing.stored_bytes)
        yield _outside(
            f"Shards without compression need no decompressing, and {ratio:.1f} times the link."
        )
    yield _outside("More cores decode more: of this machine, or of feeders on other ones.")


def _choose_decoded(figures: Figures, settings: DatasetSettings | None) -> Kept | None:
    """Return what a cache may keep decoded; ``None``: nothing, or there is a cache."""
    if settings is None or settings.cache is not None:
        return None
    functions = settings.filter is not None or settings.map is not None
    # Whole batches can be kept only where each epoch has the same ones.
    if settings.ordered and not (settings.shuffle or functions):
        return "batches"
    processing = figures.processing
    return "pictures" if processing is not None and processing.decode is not None else None


def _for_transform(_: Figures, __: DatasetSettings | None) -> Iterator[Change]:
    yield _outside(
        "Make filter, map and transform cheaper, with vectorised functions that let go of the "
        "interpreter's lock; or run them in feeders."
    )


def _for_cores(_: Figures, __: DatasetSettings | None) -> Iterator[Change]:
    yield _outside("More cores read more: of this machine, or of feeders on other ones.")


def _for_listing(figures: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    listing, resources = figures.listing, Resources(figures, settings)
    if resources.is_named:
        yield _outside(
            "The shards are named already: what is left is opened and looked up once in a job."
        )
        return
    seconds, trip = resources.listed_seconds, _round_trip(figures)
    if listing is None or seconds < CLEARLY * trip:
        yield _outside(
            "The listing took about as long as one request to the store, and a counted range takes"
            " one, too: there is nothing to gain by naming the shards."
        )
        return
    if listing.counted:
        yield Change(
            setting="source",
            value=listing.counted,
            why=f"a counted range takes one request in place of the listing, and saves about "
            f"{seconds - trip:.2g} s",
        )
    else:
        yield Change(
            setting="source",
            why=f"Name the {listing.shards:,} shards in source, as a list: it saves the listing, "
            f"about {seconds:.2g} s.",
        )
    yield _outside("Fewer and larger shards have a shorter listing.")


def _round_trip(figures: Figures) -> float:
    """Return the seconds of a small request; infinite, so that nothing is promised: unknown."""
    return figures.first_byte.p50 if figures.first_byte else inf


def _for_feeder(_: Figures, __: DatasetSettings | None) -> Iterator[Change]:
    yield Change(
        setting="server.workers",
        value="auto",
        why="each core of the feeder's machine serves clients; one client keeps to one worker",
    )
    yield _outside("Give the feeder more cores, or clients the addresses of more feeders.")


_CHANGES: Final[dict[Bottleneck, Callable[[Figures, DatasetSettings | None], Iterator[Change]]]] = {
    "listing": _for_listing,
    "store latency": _for_requests,
    "connection bandwidth": _for_requests,
    "link": _for_link,
    "throttling": _for_throttling,
    "memory budget": _for_memory_budget,
    "max_concurrency": _for_max_concurrency,
    "event loop": _for_event_loop,
    "decoding": _for_decoding,
    "transform": _for_transform,
    "feeder": _for_feeder,
    "cores": _for_cores,
}


def _cache(figures: Figures, settings: DatasetSettings | None) -> Iterator[Change]:
    """Yield a cache for the whole dataset, if there is no cache and the dataset may be kept."""
    listing = figures.listing
    if listing is None or not listing.bytes or settings is None or settings.cache is not None:
        return
    # In whole GiB, rounded up by the sign: -(-a >> b).
    gib = max(1, -(-int(listing.bytes * SPARE) >> 30))
    yield Change(
        setting="cache",
        value=f"{gib}GiB",
        why="the second epoch, and the next job here, read from the disk and not from the store",
    )


def _outside(why: str) -> Change:
    return Change(setting=None, why=why)


# -- to paste --------------------------------------------------------------------------------------


def paste_of(changes: Sequence[Change]) -> str:
    """Return the settings among the changes as TOML for a feeder's file.

    Those of a dataset have no table's head: they belong into its own.
    """
    lines = []
    for change in changes:
        if change.setting is None or change.value is None:
            continue
        table, _, name = change.setting.rpartition(".")
        lines += [f"[{table}]"] if table else []
        lines.append(f"{name} = {_toml(change.value)}")
    return "".join(f"{line}\n" for line in lines)


def _toml(value: Any) -> str:
    """Return a value of TOML; strings, numbers and booleans look the same in JSON."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{name} = {_toml(one)}" for name, one in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(value)
