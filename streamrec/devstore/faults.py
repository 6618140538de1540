"""What goes wrong, by rules: which requests, how often, and how. Pure: no I/O.

A rule matches requests, selects some of those that it matches, and says what happens to them::

    Fault(method="GET", path=r"train-00003", nth=2, status=503, code="SlowDown", retry_after=1)
    Fault(ranged=True, probability=0.05, reset_after=100_000)
    Fault(first=1, holding=4096, flip_object_at=4096)
"""

from __future__ import annotations

import random
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from streamrec.config import validate
from streamrec.devstore.ranges import Unsatisfiable, parse_range
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["NO_EFFECTS", "Fault", "FaultEffects", "Faults", "Step", "flip_byte", "sending_steps"]


class FaultEffects(BaseModel):
    """What happens to one request; sizes and places are in bytes of the answer's body."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    latency: NonNegativeFloat = 0.0
    """Seconds before the answer, on top of the store's own."""
    bandwidth: Annotated[float, Field(gt=0)] | None = None
    """Bytes a second, in place of the store's own."""
    refuse: bool = False
    """The connection is reset before any answer."""
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    """Answered with this status and the API's error document, whole; nothing else is done."""
    code: str = "SlowDown"
    """In the API's own words; at GCS's side the default follows from the status."""
    retry_after: NonNegativeInt | None = None
    """Seconds, in the header of a ``status`` answer."""
    reset_after: NonNegativeInt | None = None
    """The connection is reset when this much of the body has left."""
    truncate_after: NonNegativeInt | None = None
    """The connection is closed in good order, too early."""
    stall_after: NonNegativeInt | None = None
    """The body pauses here for ``stall`` seconds."""
    stall: NonNegativeFloat = 3600.0
    flip_at: NonNegativeInt | None = None
    """All bits of this byte of the body are flipped."""
    flip_object_at: NonNegativeInt | None = None
    """All bits of this byte of the object are flipped, in whatever range it is asked for."""
    ignore_range: bool = False
    """The whole object with 200, as if no range had been asked for."""
    partial_status: Annotated[int, Field(ge=200, le=299)] | None = None
    """The status of a partial answer in place of 206; with 200, as some gateways do."""
    ignore_preconditions: bool = False
    content_range: str | None = None
    """Sent in place of the right Content-Range; empty: none is sent."""
    etag: str | None = None
    """The object's ETag (without quotes) or generation from now on, for preconditions too."""
    headers: dict[str, str] = {}
    """Added to the answer, or in place of its own."""


class Fault(FaultEffects):
    """One rule: what it matches, which of the matches it selects, and the effects."""

    method: str | None = None
    path: str | None = None
    """A regular expression, searched in the decoded path ``/bucket/key``."""
    ranged: bool | None = None
    """Only requests with (or without) a Range header."""
    holding: NonNegativeInt | None = None
    """Only ranges that hold this byte of the object, from 0; never those that count from its end,
    whose place depends on its size."""
    nth: PositiveInt | None = None
    """Only this one of the matching requests, from 1."""
    every: PositiveInt | None = None
    """Every so many of them."""
    first: NonNegativeInt | None = None
    """Only the first so many of them."""
    probability: Annotated[float, Field(ge=0, le=1)] | None = None

    @classmethod
    def from_json(cls, plain: Any) -> list[Fault]:
        """Rules from a list of objects.

        Raises:
            ConfigError: It is no list of objects, or names or values are wrong.
        """
        if not isinstance(plain, list) or not all(isinstance(rule, dict) for rule in plain):
            raise ConfigError("faults are a list of objects; [] for none")
        return [validate(cls, rule, where=f"fault {n}") for n, rule in enumerate(plain)]


NO_EFFECTS = FaultEffects()
_RULE_FIELDS = frozenset(Fault.model_fields) - frozenset(FaultEffects.model_fields)


class Faults:
    """The running rules: they count the requests that each has matched.

    Args:
        rules: All rules that match and select a request apply; later ones override earlier ones.
        seed: Of ``probability``.
    """

    def __init__(self, rules: Sequence[Fault] = (), seed: int = 0) -> None:
        self.rules = tuple(rules)
        self.applied = [0] * len(self.rules)
        """How many requests each rule has changed."""
        self._matched = [0] * len(self.rules)
        self._paths = [_compile(rule.path) for rule in self.rules]
        self._randomness = random.Random(seed)

    def choose(self, method: str, path: str, range_header: str | None) -> FaultEffects:
        """The effects on a request; counts it.

        Args:
            method: GET, for example.
            path: Decoded.
            range_header: Its value; ``None`` where the request has none.
        """
        if not self.rules:
            return NO_EFFECTS
        effects: dict[str, Any] = {}
        for number, rule in enumerate(self.rules):
            if self._matches(number, method, path, range_header) and self._selects(number):
                self.applied[number] += 1
                effects.update((name, getattr(rule, name)) for name in _effects_of(rule))
        return FaultEffects.model_construct(**effects) if effects else NO_EFFECTS

    def _matches(self, number: int, method: str, path: str, range_header: str | None) -> bool:
        rule, pattern = self.rules[number], self._paths[number]
        return (
            rule.method in (None, method)
            and rule.ranged in (None, range_header is not None)
            and (rule.holding is None or _holds(range_header, rule.holding))
            and (pattern is None or pattern.search(path) is not None)
        )

    def _selects(self, number: int) -> bool:
        self._matched[number] += 1
        rule, count = self.rules[number], self._matched[number]
        return (
            rule.nth in (None, count)
            and (rule.every is None or count % rule.every == 0)
            and (rule.first is None or count <= rule.first)
            and (rule.probability is None or self._randomness.random() < rule.probability)
        )


def _effects_of(rule: Fault) -> frozenset[str]:
    return frozenset(rule.model_fields_set) - _RULE_FIELDS


def _holds(range_header: str | None, place: int) -> bool:
    """Whether the range holds this byte of an object that is as large as can be."""
    try:
        span = parse_range(range_header, sys.maxsize)
    except Unsatisfiable:
        return False
    return span is not None and span.start <= place < span.stop


def _compile(path: str | None) -> re.Pattern[str] | None:
    try:
        return None if path is None else re.compile(path)
    except re.error as error:
        raise ConfigError(f"fault path {path!r} is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do with the connection while a body is sent."""

    act: Literal["send", "stall", "reset", "close"]
    start: int = 0
    stop: int = 0
    """``send``: bytes ``[start, stop)`` of the body."""
    seconds: float = 0.0


def sending_steps(size: int, effects: FaultEffects) -> Iterator[Step]:
    """How a body of ``size`` bytes is sent: in pieces, with what interrupts it.

    A fault placed at or past the end happens after the last byte, except that a body cannot be cut
    short there: ``truncate_after`` then does nothing.
    """
    sent = 0
    for place, step in _interruptions(size, effects):
        if place > sent:
            yield Step("send", sent, place)
            sent = place
        yield step
        if step.act != "stall":
            return
    if sent < size:
        yield Step("send", sent, size)


def _interruptions(size: int, effects: FaultEffects) -> list[tuple[int, Step]]:
    """Sorted by place; at one place the stall comes first."""
    found: list[tuple[int, Step]] = []
    if effects.stall_after is not None:
        found.append((min(effects.stall_after, size), Step("stall", seconds=effects.stall)))
    if effects.reset_after is not None:
        found.append((min(effects.reset_after, size), Step("reset")))
    if effects.truncate_after is not None and effects.truncate_after < size:
        found.append((effects.truncate_after, Step("close")))
    return sorted(found, key=lambda item: item[0])


def flip_byte(piece: bytes | memoryview, at: int) -> bytes | memoryview:
    """The piece with all bits of byte ``at`` flipped; itself where it does not hold that byte."""
    if not 0 <= at < len(piece):
        return piece
    copy = bytearray(piece)
    copy[at] ^= 0xFF
    return bytes(copy)
