"""Checks of a dataset's settings against those before them: none may contradict another.

The messages go on after "the setting 'name' ", as all of :mod:`streamrec.config` do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, TypeAlias

from streamrec.config.places import command_for
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from streamrec.config import DatasetSettings
    from streamrec.config.cache_and_audit import CacheSettings
    from streamrec.config.record_choice import Balance

Schedule: TypeAlias = list[tuple[int, dict[str, float]]]
Known: TypeAlias = Mapping[str, Any]
"""The values of the settings before the one that is checked, as far as they are valid."""

_NO_MIX = "has no effect, since the source has no components to mix; leave it out"


def _split(split: str | dict[str, str] | None, others: Known) -> None:
    """Refuse a split of anything but one folder, or of components that the mix does not have.

    Raises:
        ValueError: The source does not go with it.
    """
    source = others.get("source")
    if split is None or source is None:
        return
    parts = source.values() if isinstance(source, dict) else [source]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(
            "is of one folder, but the source is a list; name one folder, or mix several with "
            "streamrec.mix"
        )
    if isinstance(split, dict) and (not isinstance(source, dict) or split.keys() != source.keys()):
        names = ", ".join(sorted(source)) if isinstance(source, dict) else ""
        raise ValueError(
            f"has a text by name, but the components are {names}; name each of them"
            if names
            else "has a text by name, and the source has no components; give one text"
        )


def _rename(rename: Mapping[str, Any] | None, others: Known) -> None:
    """Refuse names of raw records, or of components that the mix does not have.

    Raises:
        ValueError: The other settings do not go with them.
    """
    source = others.get("source")
    if not rename or source is None:
        return
    if others.get("features", "infer") is None and others.get("split") is None:
        raise ValueError("has no effect on raw records; give features, or leave it out")
    by_component = [name for name, new in rename.items() if isinstance(new, Mapping)]
    if not isinstance(source, dict):
        if by_component:
            raise ValueError(
                f"has names for {by_component[0]!r} alone, and the source has no components; give "
                "one mapping of names"
            )
        _check_new_names(rename)
        return
    if odd := [name for name in rename if name not in source or name not in by_component]:
        raise ValueError(
            f"has {odd[0]!r}, which is not a component with names of its own; the components are "
            f"{', '.join(sorted(source))}: give a mapping of names for some of them"
        )
    for names in rename.values():
        _check_new_names(names)


def _check_new_names(names: Mapping[str, str]) -> None:
    if "" in names or "" in names.values():
        raise ValueError("has an empty name; name features")
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise ValueError(f"gives several features the name {twice[0]!r}; give each its own")


def _dtypes(dtypes: object, others: Known) -> None:
    is_raw = others.get("features", "infer") is None and others.get("split") is None
    if dtypes is not None and is_raw:
        raise ValueError("has no effect on raw records; give features, or leave it out")


def _weights(weights: Schedule | None, others: Known) -> None:
    source = others.get("source")
    if not isinstance(source, dict):
        # A wrong source is not among them, and is told by itself.
        if source is not None and weights is not None:
            raise ValueError(_NO_MIX)
        return
    if not weights:
        raise ValueError(f"is missing; give a weight to each component: {', '.join(source)}")
    if isinstance(others.get("index"), str):
        raise ValueError(  # noqa: TRY004 - pydantic passes on no other
            "makes a mix, and index names one index, but each component has its own; set index to "
            "True, for those beside the shards"
        )
    _check_schedule(weights, set(source))


def _check_schedule(weights: Schedule, names: set[str]) -> None:
    """Refuse weights that do not say, for every record, how much of each component is read.

    Raises:
        ValueError: The stages do not begin at record 0 and rise, or one of them has other
            components than ``names``, or no finite sum above 0.
    """
    starts = [start for start, _ in weights]
    # Each record must be of exactly one stage.
    if starts[0] or starts != sorted(set(starts)):
        raise ValueError(
            f"has stages that begin at the records {starts}; let the first begin at 0, and each "
            "other after the one before it"
        )
    for start, parts in weights:
        if fault := _fault_of_weights(f"record {start}", parts, names):
            raise ValueError(fault)


def _fault_of_weights(
    start: str, parts: Mapping[str, float], names: AbstractSet[str]
) -> str | None:
    """Return the fault of some weights; ``None``: they divide all components."""
    if parts.keys() != names:
        return (
            f"names {', '.join(sorted(parts)) or 'nothing'} from {start} on; name every "
            f"component: {', '.join(sorted(names))}"
        )
    if not 0 < sum(parts.values()) < math.inf or min(parts.values()) < 0:
        return (
            f"is {parts} from {start} on, which cannot be divided; give finite weights "
            "from 0 up, and at least one above 0"
        )
    return None


def check_change(settings: DatasetSettings | None, step: int, weights: Mapping[str, float]) -> None:
    """Check that the weights of a mix may change to these from a step on.

    Args:
        settings: The settings of the mix; ``None``: they are not known here.
        step: The step.
        weights: The weights by component.

    Raises:
        ConfigError: The settings allow no change, or the weights do not fit the components.
    """
    reason = None if settings is None else _hindrance(settings)
    schedule = None if settings is None else settings.weights
    names = weights.keys() if schedule is None else _needed(schedule, weights)
    if reason is None and (fault := _fault_of_weights(f"step {step}", weights, names)):
        reason = f"the mapping {fault}"
    if reason is not None:
        raise ConfigError(f"the weights cannot change from step {step} on: {reason}")


def _needed(schedule: Schedule, weights: Mapping[str, float]) -> set[str]:
    """Return the components that a change must name: those with a weight, and others it names."""
    return {
        name
        for name in schedule[0][1]
        if name in weights or any(parts[name] for _, parts in schedule)
    }


def _hindrance(settings: DatasetSettings) -> str | None:
    """Return why the weights of a stream cannot change; ``None``: they can."""
    if settings.weights is None:
        return "the stream has one source only; open several with streamrec.mix"
    if settings.exhausted != "repeat":
        return (
            f"exhausted is {settings.exhausted!r}, and then each epoch counts its own records; "
            'set exhausted to "repeat"'
        )
    if settings.batch_size is None:
        return "the stream has single records, whose steps depend on the ranks; set batch_size"
    for stage in ("filter", "pack", "window"):
        if getattr(settings, stage) is not None:
            return (
                f"with {stage} the step of a record is known only when it has been read; give the "
                "weights by record, as weights=[(0, {...}), (1_000_000, {...})]"
            )
    return None


def _ends(choice: str, others: Known) -> None:
    """Refuse a mix whose settings do not say where an epoch ends.

    Raises:
        ValueError: The other settings do not go with this ``choice``.
    """
    if not isinstance(others.get("source"), dict):
        if choice != "repeat":
            raise ValueError(_NO_MIX)
        return
    # A wrong value is not among the others: its default stands for it, and it is told by itself.
    epochs, steps = others.get("epochs", 1), others.get("steps_per_epoch")
    if choice == "repeat" and epochs is not None and steps is None:
        raise ValueError(
            'is "repeat", so the mix has no end by itself; set steps_per_epoch, or epochs to None, '
            'or exhausted to "stop" or "rest"'
        )
    if choice != "repeat" and (epochs != 1 or steps is not None):
        raise ValueError(
            f"is {choice!r}, so a run is one epoch that ends with the components' records; leave "
            "out epochs and steps_per_epoch and iterate again for the next epoch, or set exhausted "
            'to "repeat"'
        )
    weights: Schedule = others.get("weights") or []
    # A component that is never drawn never ends, and the lane would wait for its end.
    if choice == "rest" and not all(all(parts.values()) for _, parts in weights):
        raise ValueError(
            'is "rest", but a component of weight 0 would never end; give it a weight above 0, or '
            "leave it out of the mix"
        )


def _ordered(ordered: bool, others: Known) -> None:
    if not ordered and isinstance(others.get("source"), dict):
        raise ValueError(
            "is False, but a mix takes its components in a fixed order; leave ordered out"
        )


def _window(window: object, others: Known) -> None:
    """Refuse windows of steps beside what works on whole records.

    Raises:
        ValueError: The other settings do not go with them.
    """
    if window is None:
        return
    if others.get("pack") is not None:
        raise ValueError("cuts windows of one length, which need no pack; leave pack out")
    if others.get("features", "infer") is None and others.get("split") is None:
        raise ValueError("needs the features of the steps; give features")


def _length_buckets(buckets: int | None, others: Known) -> None:
    if buckets is not None and others.get("window") is not None:
        raise ValueError(
            "has no effect on windows of episodes, which are all of one length; leave it out"
        )
    if buckets is not None and others.get("pack") is not None:
        raise ValueError(
            "has no effect on packs, which are all of one length; leave out length_buckets or pack"
        )
    if buckets is not None and not others.get("ordered", True):
        raise ValueError(
            "needs all lanes in step, but ordered is False; leave out length_buckets or ordered"
        )


def _balance(balance: Balance | None, others: Known) -> None:
    """Refuse to deal rows where the records of a step do not follow from an index.

    Raises:
        ValueError: The other settings do not go with it.
    """
    if balance is None:
        return
    for name in ("filter", "pack", "window", "length_buckets"):
        if others.get(name) is not None:
            raise ValueError(
                f"deals the records of a step, which with {name} are not known before they are "
                f"read; leave out balance or {name}"
            )
    if isinstance(others.get("source"), dict) or others.get("split") is not None:
        raise ValueError(
            "is for the shards of one source, not for a mix or a TFDS folder; leave it out"
        )
    if not others.get("ordered", True):
        raise ValueError("needs an order, but ordered is False; leave out balance or ordered")
    if others.get("remainder") == "pad":
        raise ValueError(
            'deals whole batches, but remainder is "pad"; set remainder to "drop", or leave out '
            "balance"
        )
    if others.get("index") is None:
        raise ValueError(
            f"needs the lengths of {balance.feature!r} in an index; write it with "
            f"{command_for('index', others, '--lengths', balance.feature)}, and set index=True"
        )


def _on_corrupt(choice: str, others: Known) -> None:
    if choice != "raise" and others.get("check_crc") is False:
        raise ValueError(
            f"is {choice!r}, but with check_crc=False no damage would be noticed; set "
            'check_crc to True, or on_corrupt to "raise"'
        )


def _exclude(records: object, others: Known) -> None:
    if records and others.get("check_crc") is False:
        raise ValueError(
            "names records that must not be delivered, but with check_crc=False a damaged length "
            "gives the records behind it other numbers; leave check_crc out"
        )


def _corrupt_budget(budget: float, others: Known) -> None:
    choice = others.get("on_corrupt", "raise")
    if choice == "raise" and budget:
        raise ValueError(
            'has no effect while on_corrupt is "raise"; set on_corrupt to "skip" or '
            '"quarantine", or leave corrupt_budget out'
        )
    if choice != "raise" and not budget:
        raise ValueError(
            f"is 0, so that on_corrupt={choice!r} may skip nothing; give a number of records, "
            "or a fraction such as 0.001"
        )


def _quarantine(url: str | None, others: Known) -> None:
    is_used = others.get("on_corrupt", "raise") == "quarantine"
    if is_used and not url:
        raise ValueError(
            "is missing, but on_corrupt is 'quarantine'; give a URL to write damaged records to"
        )
    if url and not is_used:
        raise ValueError(
            "has no effect unless on_corrupt is 'quarantine'; set that, or leave quarantine out"
        )


def _cache(cache: CacheSettings | None, others: Known) -> None:
    """Refuse a cache that would keep nothing, or could not tell whether that is still right.

    Raises:
        ValueError: The other settings do not go with it.
    """
    if cache is None:
        return
    if cache.key is not None and cache.of != "mapped":
        raise ValueError('has a key, which is for what map makes; leave it out, or set of="mapped"')
    if cache.of == "mapped" and others.get("map") is None:
        raise ValueError(
            'keeps what map makes, and there is no map; give one, or use a cache of "pictures" or '
            'of "ranges"'
        )
    if cache.of != "batches":
        return
    if others.get("exclude") is not None:
        raise ValueError(
            "keeps batches, which may hold records that exclude leaves out; use a cache of "
            '"pictures" or of "ranges"'
        )
    if others.get("balance") is not None:
        raise ValueError(
            "keeps batches, whose rows balance deals anew for each number of ranks; use a cache of "
            '"pictures" or of "ranges"'
        )
    for name in ("filter", "map"):
        if others.get(name) is not None:
            raise ValueError(
                f"keeps batches, and a {name} runs before it and may change without notice; use "
                'transform, which runs after it, or a cache of "mapped", "pictures" or "ranges"'
            )
    if not others.get("ordered", True):
        raise ValueError(
            "keeps batches, which ordered=False never makes again; use a cache of "
            '"pictures" or of "ranges"'
        )


CHECKS: dict[str, Callable[[Any, Known], None]] = {
    "split": _split,
    "rename": _rename,
    "dtypes": _dtypes,
    "weights": _weights,
    "exhausted": _ends,
    "ordered": _ordered,
    "window": _window,
    "length_buckets": _length_buckets,
    "balance": _balance,
    "on_corrupt": _on_corrupt,
    "corrupt_budget": _corrupt_budget,
    "exclude": _exclude,
    "quarantine": _quarantine,
    "cache": _cache,
}
"""The check of each setting, which raises ValueError."""
