"""The text of a split: the parts of a TFDS folder's splits that a stream reads.

The form and its arithmetic are those of ``tensorflow_datasets.core.splits``: names with slices in
records, percents or shards, joined by ``+``, as in ``"train[:90%]+validation"``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

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
