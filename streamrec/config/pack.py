"""The settings for packing sequences into rows of one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamrec.errors import ConfigError


@dataclass(frozen=True)
class Pack:
    """The settings for packing sequences into rows of one length: ``streamrec.Pack``.

    Args:
        length: The number of values in a pack; or a mapping with that of each feature to pack.
        split: Cut a sequence where its pack is full; else each sequence stays whole in one pack.
        bins: The number of packs that are filled side by side; more of them leave less padding.
        overlong: Cut a sequence that is longer than a pack (``"truncate"``), or leave it out.
        documents: The most sequences in one pack; 1 pads each sequence to the length.
        padding: The value behind the last sequence of a pack.

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
