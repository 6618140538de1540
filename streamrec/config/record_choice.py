"""The settings that choose and group records: splits, ``exclude``, packs, windows, ``balance``.

A split's text names the parts of a TFDS folder's splits that a stream reads. The form and its
arithmetic are those of ``tensorflow_datasets.core.splits``: names with slices in records, percents
or shards, joined by ``+``, as in ``"train[:90%]+validation"``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from streamrec.config.arguments import plain_integer
from streamrec.config.plain_values import dict_of, either, integer, list_of, text
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from pydantic import ValidationInfo


@dataclass(frozen=True)
class Pack:
    """The settings for packing sequences into rows of one length: ``streamrec.Pack``.

    Args:
        length: The number of values in a pack; or a mapping from each feature to pack to its own
            length.
        split: True: cut a sequence where its pack is full. False: keep each sequence whole, in one
            pack.
        bins: The number of packs that are filled side by side; more of them leave less padding.
        overlong: Cut a sequence that is longer than a pack (``"truncate"``), or leave it out.
        documents: The most sequences in one pack; 1 pads each sequence to the length.
        padding: The value after the last sequence of a pack.

    Raises:
        ConfigError: An argument is wrong, or two contradict each other.
    """

    length: int | dict[str, int]
    split: bool = False
    bins: int = 16
    overlong: Literal["truncate", "drop"] = "truncate"
    documents: int | None = None
    padding: int = 0

    @property
    def held_bytes(self) -> int:
        """The bytes, about, that a lane holds for its packs."""
        lengths = self.length.values() if isinstance(self.length, dict) else [self.length]
        # Twice: the packs being filled, and as many that are ready. A place takes a value of 8
        # bytes, its segment id and its position of 4 each.
        return 2 * (1 if self.split else self.bins) * sum(lengths) * (8 + 4 + 4)

    def __post_init__(self) -> None:
        """Refuse wrong and contradictory arguments."""
        length = self.length
        plain = (
            {name: plain_integer(number) for name, number in length.items()}
            if isinstance(length, dict)
            else plain_integer(length)
        )
        object.__setattr__(self, "length", plain)
        for name in ("bins", "documents", "padding"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
        lengths = self.length.values() if isinstance(self.length, dict) else [self.length]
        numbers = [*lengths, self.bins, 1 if self.documents is None else self.documents]
        if not lengths or not all(isinstance(n, int) and n > 0 for n in numbers):
            raise ConfigError(
                "a Pack takes integers from 1 up as length, bins and documents, "
                f"but this one is {self}; correct them"
            )
        if self.overlong not in ("truncate", "drop"):
            raise ConfigError(
                f'overlong of a Pack is {self.overlong!r}; choose "truncate" or "drop"'
            )
        if self.split and (self.documents is not None or len(set(lengths)) > 1):
            raise ConfigError(
                "a Pack with split=True takes one length for all features, and no documents; "
                "correct these, or set split to False"
            )


class NamingPack(Pack):
    """The same packs, whose batches also name each record of a pack."""

    def __repr__(self) -> str:
        # A fingerprint has this text, and the order is that of the plain Pack.
        return repr(Pack(**vars(self)))


def plain_pack(pack: Any) -> Any:
    """Return a pack, or that of its plain form.

    Raises:
        ValueError: It is something else.
    """
    if type(pack) is Pack:
        return pack
    made = _made(Pack, pack, "length")
    lengths = made.length.values() if isinstance(made.length, dict) else [made.length]
    # True is an int, and pydantic makes one of it.
    numbers = {*map(type, lengths), type(made.bins), type(made.padding)}
    if numbers != {int} or (type(made.split), type(made.documents) is bool) != (bool, False):
        raise ValueError
    return made


def read_pack(pack: object, others: ValidationInfo) -> object:
    """Make it of its plain form, which is strict for a file alone.

    Raises:
        ValueError: It is something else; a ``ConfigError`` if only a value of it is wrong.
    """
    if pack is None or type(pack) is Pack:
        return pack
    check_arguments(Pack, pack, "length", 2048)
    if others.mode == "json":
        return pack
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Pack).validate_python(pack)
    except ValidationError as error:
        fault = error.errors()[0]
        # What else is wrong in it is told by pydantic's check of the field, which comes next.
        if fault["type"] == "value_error":
            raise fault["ctx"]["error"] from None
        return pack


@dataclass(frozen=True)
class Window:
    """The settings for windows of steps, where each record is an episode: ``streamrec.Window``.

    Args:
        length: The number of steps in a window.
        stride: The number of steps from one window of an episode to the next.
        pad: ``"end"``: a window begins at each step (by stride), and those at the end repeat the
            last step. ``"start"``: a window ends at each step, and those at the start repeat the
            first one. ``None``: windows lie inside their episode, and a shorter one has none.
        future: Further steps behind the window, for each feature that needs them, as
            ``{"steps/action": 8}``.

    Raises:
        ConfigError: An argument is wrong.
    """

    length: int
    stride: int = 1
    pad: Literal["end", "start"] | None = "end"
    future: dict[str, int] | None = None

    def __post_init__(self) -> None:
        """Refuse wrong arguments."""
        for name in ("length", "stride"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
        more = self.future or {}
        counts = [self.length, self.stride, *more.values()]
        if not all(type(count) is int and count > 0 for count in counts):
            raise ConfigError(
                "Window takes integers from 1 up as length and stride, and in future, but "
                f"these are {self}; correct them"
            )
        if self.pad not in ("end", "start", None):
            raise ConfigError(f'pad of Window is {self.pad!r}; choose "end", "start" or None')

    def steps_of(self, name: str) -> int:
        """Return the number of steps that a feature has in a window."""
        return self.length + (self.future or {}).get(name, 0)


def plain_window(given: Any) -> Any:
    """Return these settings, or those of their plain form.

    Raises:
        ValueError: It is something else.
    """
    return given if type(given) is Window else _made(Window, given, "length")


def read_window(given: object, others: ValidationInfo) -> object:
    """Make the settings of their plain form, which is strict for a file alone.

    Raises:
        ValueError: It is something else; a ``ConfigError`` if only a value of it is wrong.
    """
    if given is None or type(given) is Window:
        return given
    check_arguments(Window, given, "length", 16)
    return given if others.mode == "json" else plain_window(given)


def _made(kind: type[Any], given: Any, name: str) -> Any:
    """Return settings of their plain form, in which the argument of that name must be."""
    known = kind.__dataclass_fields__.keys()
    if type(given) is not dict or not {name} <= given.keys() <= known:
        raise ValueError
    return kind(**given)


@dataclass(frozen=True)
class Balance:
    """The cost of a record, for rows that are dealt to ranks: ``streamrec.Balance``.

    A record of *n* values of the feature costs ``linear * n + quadratic * n * n``. All ranks count
    with whole numbers, so they come to the same deal.

    Args:
        feature: The feature whose length counts: the number of its values; of bytes, their bytes.
        linear: The cost of a value; from 0 up.
        quadratic: The cost of a pair of values, as of attention; from 0 up.

    Raises:
        ConfigError: An argument is wrong.
    """

    feature: str
    linear: int = 1
    quadratic: int = 0

    def __post_init__(self) -> None:
        """Refuse wrong arguments."""
        for name in ("linear", "quadratic"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
        factors = [self.linear, self.quadratic]
        is_cost = all(type(factor) is int and factor >= 0 for factor in factors) and any(factors)
        if type(self.feature) is not str or not self.feature or not is_cost:
            raise ConfigError(
                "Balance takes the name of a feature, and integers from 0 up as linear and "
                f"quadratic, one of them above 0, but these are {self}; correct them"
            )

    def cost(self, length: int) -> int:
        """Return the cost of a record of so many values."""
        return (self.linear + self.quadratic * length) * length

    def costs(self, lengths: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        """Return the costs of records; the highest of them is below 2^62."""
        counts = lengths.astype("int64")
        costs: npt.NDArray[np.int64] = (self.linear + self.quadratic * counts) * counts
        return costs


def plain_balance(given: Any) -> Any:
    """Return these settings, or those of their plain form; a text is the feature.

    Raises:
        ValueError: It is something else.
    """
    if type(given) is Balance:
        return given
    return _made(Balance, {"feature": given} if type(given) is str else given, "feature")


def read_balance(given: object) -> object:
    """Make the settings of their plain form.

    Raises:
        ValueError: It is something else; a ``ConfigError`` if only a value of it is wrong.
    """
    if given is None or type(given) is Balance:
        return given
    if not isinstance(given, str | dict):
        raise ValueError(  # noqa: TRY004 - pydantic tells of a ValueError
            f'must be the name of a feature, as "tokens", or a Balance, not {given!r}'
        )
    named = {"feature": given} if isinstance(given, str) else given
    check_arguments(Balance, named, "feature", "tokens")
    return plain_balance(named)


def read_rename(given: object) -> object:
    """Refuse what does not map names to names, or components of a mix to such mappings.

    Raises:
        ValueError: It is something else.
    """
    if given is None or _are_names(given):
        return given
    if isinstance(given, dict) and all(map(_are_names, given.values())):
        return given
    raise ValueError(
        "must map stored names to new ones, in a mix for each component, as "
        f'{{"jpg": "image"}} or {{"web": {{"jpg": "image"}}}}, not {given!r}'
    )


def _are_names(given: object) -> bool:
    """Return whether this maps texts to texts."""
    if not isinstance(given, dict):
        return False
    return all(isinstance(name, str) for name in (*given, *given.values()))


def check_arguments(kind: type[Any], given: object, name: str, value: object) -> None:
    """Refuse what is not a mapping of the arguments of a class of settings.

    Args:
        kind: The class, a dataclass.
        given: The mapping.
        name: The argument that must be there.
        value: An example of its value.

    Raises:
        ValueError: It is something else.
    """
    known = kind.__dataclass_fields__
    if isinstance(given, dict) and name in given:
        odd = sorted(map(repr, given.keys() - known.keys()))
        if not odd:
            return
        raise ValueError(f"has {odd[0]}, but {kind.__name__} takes {', '.join(known)}; correct it")
    raise ValueError(
        f"must be {kind.__name__}({name}={value!r}), or its arguments as {{{name!r}: {value!r}}}, "
        f"not {given!r}"
    )


Unit: TypeAlias = Literal["", "%", "shard"]

ALL = "all"
"""The name that stands for all splits, one after the other."""
_PART = re.compile(r"([\w-]+)(?:\[([\w%:.-]+)\])?")
_BOUND = re.compile(r"(?:(-?[\d_.]+)(%|shard)?)?")
_EXAMPLE = "give names with slices, such as 'train', 'train[:90%]+test' or 'train[2shard:]'"


class SplitPart(NamedTuple):
    """A part of one split."""

    name: str
    first: float | None = None
    """The bound before it, in units; below 0: counted from the split's end."""
    last: float | None = None
    """The bound after it."""
    unit: Unit = ""
    """The unit of the bounds: records, percents of the split, or shards."""

    def records(self, shard_lengths: Sequence[int]) -> tuple[int, int]:
        """Return the first of the split's records and the one after the last.

        Args:
            shard_lengths: The records of each shard of the split.

        Raises:
            ValueError: The split has fewer records than the slice names.
        """
        total = sum(shard_lengths)
        first = 0 if self.first is None else self._place(self.first, shard_lengths)
        if self.unit == "shard" and self.last is not None and self.last <= 0:
            last = sum(shard_lengths[: len(shard_lengths) + int(self.last)])
        else:
            last = total if self.last is None else self._place(self.last, shard_lengths)
        if max(abs(first), abs(last)) > total:
            raise ValueError(f"the split {self.name!r} has only {total} records; correct its slice")
        return first % total if first < 0 else first, last % total if last < 0 else last

    def _place(self, bound: float, shard_lengths: Sequence[int]) -> int:
        """Return the number of records before a bound, counted from the end if it is below 0."""
        if self.unit == "%":
            return round(bound * sum(shard_lengths) / 100.0)
        if self.unit == "shard":
            return sum(shard_lengths[: int(bound)])
        return int(bound)


def split_parts(text: str) -> list[SplitPart]:
    """Return the parts that a text names, in its order.

    Raises:
        ValueError: The text has another form.
    """
    return [_part(part) for part in re.split(r"\s*\+\s*", text)]


def _part(text: str) -> SplitPart:
    match = _PART.fullmatch(text)
    if match is None:
        raise ValueError(f"has the part {text!r}, which is not a split; {_EXAMPLE}")
    name, selector = match.groups()
    if selector is None:
        return SplitPart(name)
    if name == ALL:
        raise ValueError("slices 'all', which stands for whole splits; slice each of them by name")
    return _slice(text, name, selector)


def _slice(text: str, name: str, selector: str) -> SplitPart:
    bounds = [_BOUND.fullmatch(bound) for bound in selector.split(":")]
    if len(bounds) > 2 or not all(bounds) or selector in ("", ":"):
        raise ValueError(f"has the slice {text!r}, which has no bounds; {_EXAMPLE}")
    values = [match[1] for match in bounds if match]
    unit: Any = next((match[2] for match in bounds if match and match[2]), "")
    if len(values) == 1 and unit != "shard":
        raise ValueError(
            f"has the slice {text!r}, but only a shard can be named alone; give two bounds with a "
            "colon between them, as in 'train[10:11]'"
        )
    try:
        numbers = [None if v is None else float(v) if unit == "%" else int(v) for v in values]
    except ValueError:
        raise ValueError(
            f"has the slice {text!r}, whose bounds are not numbers; {_EXAMPLE}"
        ) from None
    if unit == "%" and any(abs(number or 0) > 100 for number in numbers):
        raise ValueError(f"has the slice {text!r}, but percents go from -100 to 100; correct it")
    first, last = numbers if len(numbers) == 2 else (numbers[0], (numbers[0] or 0) + 1)
    return SplitPart(name, first, last, unit)


def read_excluded(value: Any) -> Any:
    """Take what is in its plain form: texts, lists and mappings."""
    return _PLAIN(value)


def _plain_record(pair: Any) -> tuple[str, int]:
    if type(pair) not in (list, tuple) or len(pair) != 2:
        raise ValueError
    return text(pair[0]), integer(0)(pair[1])


def excluded_in_full(records: object) -> object:
    """Make pairs of lists, as a file has them, and of places; check values by feature."""
    if isinstance(records, dict):
        return {name: _values(name, values) for name, values in records.items()}
    if not isinstance(records, list | tuple):
        return records
    pairs = [_pair(record) for record in records]
    # NumPy's integers, as batch.origin has them.
    plain = [tuple(map(plain_integer, pair)) if type(pair) is tuple else pair for pair in pairs]
    for pair in plain:
        if not _is_record(pair):
            raise ValueError(
                f"has {pair!r}, but each record must be a pair of a shard and a number from 0 up, "
                "such as ('train-00003.tfrecord', 17)"
            )
    return plain


def _values(feature: object, values: object) -> object:
    """Make a list of a feature's values; a text is the URL of a file of them."""
    if isinstance(values, str):
        return values
    plain = list(map(plain_integer, values)) if isinstance(values, list | tuple | set) else [None]
    if isinstance(feature, str) and all(type(value) in (int, str) for value in plain):
        return plain
    raise ValueError(
        f"has {values!r} for {feature!r}, but it takes a list of numbers or texts, or the URL of a "
        "file with a value on each line"
    )


def _pair(record: Any) -> Any:
    if hasattr(record, "shard") and hasattr(record, "record"):  # as streamrec.which returns it
        return record.shard, record.record
    return tuple(record) if isinstance(record, list | tuple) else record


def _is_record(pair: object) -> bool:
    match pair:
        case (str(), int(number)):
            return type(number) is int and number >= 0
    return False


_PLAIN = either(
    text, list_of(_plain_record), dict_of(either(text, list_of(either(text, integer(-(1 << 63))))))
)
