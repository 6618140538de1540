"""The check of an audit log against the order that is computed, or against what is read again."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.config import DatasetSettings, validate
from streamrec.config.places import absolute
from streamrec.errors import (
    ConfigError,
    DataError,
    MalformedAudit,
    ObjectNotFound,
    OtherOrder,
    StateError,
)
from streamrec.flow.bridge import Bridge
from streamrec.flow.channel import EndOfStream
from streamrec.masking import masked
from streamrec.pipeline.dataset_places import numbers_of
from streamrec.pipeline.terms.run_plan import leaves_places
from streamrec.plan.order.mixture import lasting_text
from streamrec.plan.state.fingerprint import AS_IT_COMES, settings_of
from streamrec.stores.blocking import BlockingStores
from streamrec.streams.audit_log import SUFFIX, name_of
from streamrec.streams.audit_part import LARGEST, Part, RecordList, Spans, common, digest_of, union
from streamrec.streams.ranks import Rank
from streamrec.streams.session import ThreadSession
from streamrec.streams.start import EXCLUDES, LOGGED
from streamrec.streams.which import RECORDS_AT_ONCE, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from streamrec.pipeline.dataset import Dataset
    from streamrec.pipeline.dataset_places import RankDeliveries
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.streams.audit_part import LoggedStep, Stretch

    Numbers = npt.NDArray[np.int64]
    Expected = tuple[LoggedStep, Numbers, Sequence[str]]
    """A step of a log, the rows that the settings give for it, and the shards."""
    Taken = tuple[LoggedStep, Numbers]

AT_ONCE = 32
"""Objects of a log that are read at the same time."""
FEW = 3
"""Runs of records, or ranks, that a sentence names at most."""
_RANK = re.compile(r"/rank-(\d{1,9})-of-(\d{1,9})/[^/]*")


@dataclass
class RankReport:
    """The steps that a log has of one rank, and how many of them were compared."""

    rank: int
    world_size: int
    objects: int = 0
    nbytes: int = 0
    computed: int = 0
    """Steps whose records are those that the index and the settings give."""
    read: int = 0
    """Steps whose records were read again, and are the same."""
    unchecked: int = 0
    """Steps whose records the log lists, but which were not compared."""
    skipped: int = 0
    """Steps that ``stream.skip`` left out."""
    masked: int = 0
    """Damaged and excluded records, in whose place a masked row was delivered."""
    faults: list[str] = field(default_factory=list)
    """A sentence for each step that differs, and each object that is damaged."""
    spans: Spans = field(default_factory=list)
    """The first step of each stretch, and the step after it."""

    @property
    def steps(self) -> int:
        """Steps that the log has, each once."""
        return sum(end - begin for begin, end in union(self.spans))

    @property
    def again(self) -> int:
        """Steps that the log has once more, as a resumed run delivered them again."""
        return sum(end - begin for begin, end in self.spans) - self.steps

    def has(self, step: int) -> bool:
        """Return whether the log has a step."""
        return any(begin <= step < end for begin, end in self.spans)


@dataclass
class AuditReport:
    """The result of a check."""

    ranks: list[RankReport]
    gaps: list[str]
    """A sentence for each stretch of steps that is missing."""
    strays: list[str] = field(default_factory=list)
    """A sentence for each object that is not in its place."""

    @property
    def agrees(self) -> bool:
        """True if nothing differs, is damaged, is missing or is not in its place."""
        faults = any(rank.faults for rank in self.ranks)
        return not self.gaps and not self.strays and not faults


class OneRun:
    """The order that all objects of a log have: a log of two runs does not prove either of them.

    Each object counts once, in its place and by its name.
    """

    def __init__(self) -> None:
        self._known: list[Fingerprint] = []
        self._names: set[tuple[int, int, str]] = set()

    def check_name(self, part: Part, rank: int, world_size: int, url: str) -> None:
        """Check that an object has its own name, and is not a copy of one before it.

        Raises:
            MalformedAudit: It does not.
        """
        if (part.header["rank"], part.header["world_size"]) != (rank, world_size):
            raise MalformedAudit(
                "the object is of another rank than its name says; put it back into its place",
                url=url,
            )
        name = name_of(part)
        if not url.endswith(f"/{name}"):
            raise MalformedAudit(
                f"this object was written as {name}, so it is a copy, or was renamed, and its "
                "steps do not count; take it out of the log's directory, or give it its name",
                url=url,
            )
        if (rank, world_size, name) in self._names:
            raise MalformedAudit(
                "this is a copy of another object of the log, so its steps do not count; take it "
                "out of the log's directory",
                url=url,
            )
        self._names.add((rank, world_size, name))

    def check(self, order: Fingerprint) -> None:
        """Check that an object has the order of those before it; each other order is told once.

        Raises:
            OtherOrder: It has another one.
        """
        order = replace(order, mix_changes="")
        if order in self._known:
            return
        self._known.append(order)
        first, this = (asdict(one) for one in _without_joined(self._known[0], order))
        differing = [
            f"{name} is {this[name]!r} here, and {first[name]!r} in an object before it"
            + settings_of(name)
            for name in this
            if this[name] != first[name]
        ]
        if differing:
            raise OtherOrder(
                f"the log is of several runs: {'; '.join(differing)}; give each run a directory of "
                "its own, and take the objects of the other run out of this one"
            )


def _without_joined(one: Fingerprint, other: Fingerprint) -> tuple[Fingerprint, Fingerprint]:
    """Return two orders without what components that joined the mix of a run have changed."""
    (text, names), (other_text, other_names) = map(lasting_text, (one.mix, other.mix))
    if names == other_names:
        return one, other
    kind, other_kind = (each.order.partition(":")[0] for each in (one, other))
    return (
        replace(one, mix=text, order=kind, names="", shards=0),
        replace(other, mix=other_text, order=other_kind, names="", shards=0),
    )


def check_audit(
    url: str,
    changes: Mapping[str, Any] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    rank: int | None = None,
    reads: bool = False,
) -> AuditReport:
    """Check an audit log.

    Args:
        url: The directory of the log, as a URL or a path.
        changes: Settings of the stream that replace those in the log, such as another ``source``.
        storage_options: Options of the log's store.
        rank: The only rank to check; ``None``: all.
        reads: Read the shards again where the records of a step do not follow from an index.

    Raises:
        ObjectNotFound: There is no log.
        ConfigError: The settings of the stream are not known, or are wrong.
        StoreError: The log, or what it is compared with, cannot be read.
    """
    place = absolute(url).rstrip("/") + "/"
    again, orders = Again(changes or {}, reads=reads), OneRun()
    reports: dict[tuple[int, int], RankReport] = {}
    strays: list[str] = []
    for item, data in _objects(place, BlockingStores(storage_options or {})):
        numbers = _rank_in(item)
        if numbers is None:
            strays.append(
                f"{masked(item)}: this object is not in the directory of a rank, so it proves "
                "nothing; put it back into its place, or take it out of the log's directory"
            )
        elif rank is None or rank == numbers[0]:
            report = reports.setdefault(numbers, RankReport(*numbers))
            _check_object(item, data, report, again, orders)
    if not reports:
        whose = "" if rank is None else f" of rank {rank}"
        why = f"there is no audit log{whose}; give the directory that the run's audit setting names"
        raise ObjectNotFound(why, url=place)
    ranks = [reports[key] for key in sorted(reports, key=lambda key: (key[1], key[0]))]
    return AuditReport(ranks, [] if rank is not None else list(gaps_in(ranks)), strays)


def _objects(place: str, stores: BlockingStores) -> Iterator[tuple[str, bytes]]:
    """Yield the URL and the bytes of each object of a log."""
    named = (info for info in stores.list_objects(place) if info.url.endswith(SUFFIX))
    infos = sorted(named, key=lambda info: info.url)
    for at in range(0, len(infos), AT_ONCE):
        some = infos[at : at + AT_ONCE]
        for info, answer in zip(some, stores.read_all(some, LARGEST), strict=True):
            if isinstance(answer, Exception):
                raise answer
            yield info.url, answer[0].tobytes()


def _rank_in(url: str) -> tuple[int, int] | None:
    """Return the rank and the world size in whose directory an object is; ``None``: in no one's."""
    match = _RANK.search(url)
    return None if match is None else (int(match[1]), int(match[2]))


def _check_object(url: str, data: bytes, report: RankReport, again: Again, orders: OneRun) -> None:
    report.objects += 1
    report.nbytes += len(data)
    try:
        part = Part.parse(data, url)
        orders.check_name(part, report.rank, report.world_size, url)
        orders.check(part.fingerprint)
        for stretch in part.stretches:
            report.spans.append((stretch.step, stretch.end))
            _check_stretch(part, stretch, report, again)
    except MalformedAudit as error:
        report.faults.append(str(error))
    except (DataError, StateError) as error:
        report.faults.append(f"{masked(url)}: {error}")


def _check_stretch(part: Part, stretch: Stretch, report: RankReport, again: Again) -> None:
    for entry in stretch.entries:
        report.skipped += entry.steps if entry.is_skipped else 0
        report.masked += 0 if entry.masked is None else int(entry.masked.counts.sum())
    steps = sum(entry.steps for entry in stretch.entries if not entry.is_skipped)
    if not again.can_tell(part):
        report.unchecked += steps
        return
    wrong = [
        (entry, difference)
        for entry, rows, names in again.rows(part, stretch)
        if (difference := _difference(entry, rows, names)) is not None
    ]
    if wrong:
        step, rank = wrong[0][0].step, f"rank {report.rank} of {report.world_size}"
        more = f"; later steps that differ, too: {len(wrong) - 1}" if len(wrong) > 1 else ""
        report.faults.append(f"step {step} of {rank} differs: {wrong[0][1]()}{more}")
    good = steps - sum(entry.steps for entry, _ in wrong)
    report.computed += good if part.fingerprint.is_computable else 0
    report.read += 0 if part.fingerprint.is_computable else good


def _difference(entry: LoggedStep, rows: Numbers, names: Sequence[str]) -> Callable[[], str] | None:
    """Return a function that says how an entry differs from given records; ``None``: it agrees."""
    _, shards, records = rows
    digest = digest_of(shards, records)
    logged = [runs for runs in (entry.listed, entry.masked) if runs is not None]
    if not logged:
        return None if entry.digest == digest else partial(_say_digests, entry, digest, rows, names)
    pairs = {*zip(shards.tolist(), records.tolist(), strict=True)}
    listed = {pair for runs in logged for pair in zip(*map(list, runs.pairs()), strict=True)}
    extra, lacking = listed - pairs, pairs - listed if entry.listed is not None else set()
    if extra or lacking:
        both = [("lists", extra), ("does not list", lacking)]
        return lambda: " and ".join(f"the log {how} {_say(who, names)}" for how, who in both if who)
    return None if entry.digest == digest else partial(_say_digests, entry, digest, rows, names)


def _say_digests(entry: LoggedStep, digest: bytes, rows: Numbers, names: Sequence[str]) -> str:
    pairs = zip(*rows[1:].tolist(), strict=True)
    return (
        f"the log has the digest {entry.digest.hex()} of what was delivered, and the settings give "
        f"{rows.shape[1]} records ({_say(pairs, names)}) with the digest {digest.hex()}"
    )


def _say(pairs: Iterable[tuple[int, int]], names: Sequence[str]) -> str:
    """Return some records in words."""
    shards, records = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    runs = RecordList.of(shards, records)
    texts = [
        f"{_name(shard, names)}:{first}" + (f" to {first + count - 1}" if count > 1 else "")
        for shard, first, count in zip(*(column.tolist()[:FEW] for column in runs), strict=True)
    ]
    return ", ".join(texts) + (", ..." if len(runs.shards) > FEW else "")


def _name(shard: int, names: Sequence[str]) -> str:
    return masked(names[shard]).rpartition("/")[2] if shard < len(names) else f"shard {shard}"


# -- steps that are missing ------------------------------------------------------------------------


def gaps_in(ranks: Sequence[RankReport]) -> Iterator[str]:
    """Yield a sentence for each gap between the first and the last step that all ranks have.

    A step is there if all ranks of one world size have it.
    """
    whole: Spans = []
    for world_size in sorted({rank.world_size for rank in ranks}):
        of = {rank.rank: union(rank.spans) for rank in ranks if rank.world_size == world_size}
        # The numbers come from names, and may be large.
        lacking = next((rank for rank in range(len(of)) if rank not in of), len(of))
        if lacking < world_size:
            yield f"the log has nothing of rank {lacking} of {world_size}"
        else:
            whole += common(list(of.values()))
    for (_, begin), (end, _) in pairwise(union(whole)):
        named = [f"{one.rank} of {one.world_size}" for one in ranks if not one.has(begin)]
        steps = f"step {begin} is" if end == begin + 1 else f"steps {begin} to {end - 1} are"
        yield f"{steps} not in the log of rank {', '.join(named[:FEW])}"


OF_THE_ORDER = ("shuffle", "seed", "shuffle_window", "lanes")
"""The settings that a fingerprint tells."""
NO_ROWS = np.zeros((3, 0), np.int64)
"""int64 ``[3, rows]``: the step, the shard's number and the record's number of each row."""


class Again:
    """The records that the settings give for logged steps.

    Args:
        changes: Settings that replace those in the log.
        reads: Read again what is not computed.
    """

    def __init__(self, changes: Mapping[str, Any], *, reads: bool) -> None:
        self._changes, self._reads = changes, reads
        self._datasets: dict[str, Dataset] = {}

    def can_tell(self, part: Part) -> bool:
        """Return whether it can tell the records of an object's steps."""
        fingerprint = part.fingerprint
        is_fixed = not fingerprint.order.endswith(AS_IT_COMES)
        return fingerprint.is_computable or (self._reads and is_fixed)

    def rows(self, part: Part, stretch: Stretch) -> Iterator[Expected]:
        """Yield each step that was not skipped, with its rows.

        Raises:
            ConfigError: The settings are not known, or are wrong.
            StateError: They give another order.
            StreamrecError: The index or the shards cannot be read.
        """
        settings = self._settings(part)
        if part.fingerprint.is_computable:
            yield from self._compute(part, stretch, settings)
        else:
            yield from _read(part, stretch, settings)

    def _settings(self, part: Part) -> DatasetSettings:
        fingerprint, logged = part.fingerprint, part.header["settings"]
        size = fingerprint.global_batch
        plain = {name: logged[name] for name in LOGGED if name in logged}
        plain |= {name: getattr(fingerprint, name) for name in OF_THE_ORDER}
        plain["batch_size"] = size and size // part.header["world_size"]
        # The log of a feeder's client does not tell it.
        plain |= {"index": logged.get("index", True)} if fingerprint.is_computable else {}
        plain |= self._changes
        if "source" not in plain:
            raise ConfigError(
                "a feeder has read for this log, which does not name the shards; give the feeder's "
                "configuration with --config, or a URL and the settings"
            )
        settings = validate(DatasetSettings, plain)
        if logged.get(EXCLUDES) and settings.exclude is None and not leaves_places(settings):
            raise ConfigError(
                "the run has left out records by exclude, whose list the log does not have; give "
                "it, as in --set exclude=removed.jsonl"
            )
        return settings

    def _compute(
        self, part: Part, stretch: Stretch, settings: DatasetSettings
    ) -> Iterator[Expected]:
        dataset, size = self._dataset(settings), settings.batch_size
        rank, world_size = part.header["rank"], part.header["world_size"]
        whose = {"rank": rank, "world_size": world_size, "point": stretch.point}
        if dataset.components is not None:
            from streamrec.pipeline.mix_places import MixDeliveries

            mix = MixDeliveries(dataset, size, **whose)
            mix.fingerprint.check(part.fingerprint, "the log")
            parts = mix.rows(range(stretch.step, stretch.end))
            batches = ((int(rows.steps[-1]) + 1, numbers_of(rows, mix.order)) for rows in parts)
            steps = _steps_of_batches(stretch, batches)
        else:
            from streamrec.pipeline.dataset_places import RankDeliveries

            dataset.fingerprint(size, world_size).check(part.fingerprint, "the log")
            steps = _steps_by_index(stretch, RankDeliveries(dataset, size, **whose), size or 1)
        yield from ((entry, rows, dataset.shards) for entry, rows in steps)

    def _dataset(self, settings: DatasetSettings) -> Dataset:
        key = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
        if key not in self._datasets:
            with Bridge() as loop:
                self._datasets[key] = loop.call(opened(settings))
        return self._datasets[key]


def _steps_by_index(stretch: Stretch, of: RankDeliveries, size: int) -> Iterator[Taken]:
    """Yield each step that was not skipped, with its rows; ``size``: the records of a step."""
    for entries in _groups(stretch.entries, max(1, RECORDS_AT_ONCE // size)):
        steps = range(entries[0].step, entries[-1].step + entries[-1].steps)
        rows = np.concatenate([NO_ROWS, *of.rows_of(steps)], axis=1)
        bounds = [(entry.step, entry.step + entry.steps) for entry in entries]
        for entry, (first, last) in zip(entries, np.searchsorted(rows[0], bounds), strict=True):
            yield entry, rows[:, first:last]


def _groups(entries: Iterable[LoggedStep], most: int) -> Iterator[list[LoggedStep]]:
    """Yield successive entries of so many steps, about; those that were skipped divide them."""
    for is_skipped, some in groupby(entries, lambda entry: entry.is_skipped):
        group: list[LoggedStep] = []
        for entry in () if is_skipped else some:
            group.append(entry)
            if entry.step + entry.steps - group[0].step >= most:
                yield group
                group = []
        if group:
            yield group


def _read(part: Part, stretch: Stretch, settings: DatasetSettings) -> Iterator[Expected]:
    rank = Rank(part.header["rank"], part.header["world_size"])
    # A stretch may be short, and the stream without end.
    few = settings.model_copy(update={"prefetch": 1})
    with closing(ThreadSession(few, rank, stretch.point)) as session:
        session.fingerprint.check(part.fingerprint, "the log")
        shards = session.settings["shards"]
        steps = _steps_of_batches(stretch, _rows_of(session, settings))
        yield from ((entry, rows, shards) for entry, rows in steps)


def _steps_of_batches(stretch: Stretch, batches: Iterator[tuple[int, Numbers]]) -> Iterator[Taken]:
    """Yield each step that was not skipped, with its rows.

    Args:
        stretch: The steps.
        batches: The step after each batch, and its rows.
    """
    rows, step = NO_ROWS, -1
    for entry in stretch.entries:
        end = entry.step + entry.steps
        first = end if entry.is_skipped else entry.step
        while step < end and (batch := next(batches, None)) is not None:
            step = batch[0]
            rows = np.concatenate([rows[:, rows[0] >= first], batch[1]], axis=1)
        if not entry.is_skipped:
            yield entry, rows[:, (rows[0] >= first) & (rows[0] < end)]


def _rows_of(session: ThreadSession, settings: DatasetSettings) -> Iterator[tuple[int, Numbers]]:
    ends = 0
    # A run without a batch is followed by others without end.
    while ends < 2:
        try:
            batch = session.receive()
        except EndOfStream:
            ends += 1
            session.subscribe()
            continue
        ends, step = 0, batch.next_position.step
        shards, records = batch.origin
        steps = np.full(len(shards), step - 1)
        if settings.batch_size is None:
            steps = np.arange(step - len(shards), step)
        yield step, np.stack([steps, shards, records]).astype(np.int64)[:, shards >= 0]
