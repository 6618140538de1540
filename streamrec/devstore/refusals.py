"""The refusals of both APIs, the headers that name a range, and rules that inject faults. No I/O.

Sources: RFC 9110, section 14; AWS, "UploadPartCopy".

A rule matches requests, selects some of those that it matches, and sets the effects on them::

    FaultRule(method="GET", path=r"train-00003", nth=2, status=503, code="SlowDown", retry_after=1)
    FaultRule(ranged=True, probability=0.05, reset_after=100_000)
    FaultRule(first=1, holding=4096, flip_object_at=4096)
"""

from __future__ import annotations

import random
import re
import sys
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from streamrec.config.lazy_settings import validate
from streamrec.config.validation import Settings
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEFAULT_MESSAGES = {
    "AccessDenied": "Access Denied",
    "InvalidAccessKeyId": "The access key ID you provided does not exist in our records.",
    "InvalidRange": "The requested range is not satisfiable",
    "MethodNotAllowed": "The objects of this store cannot be changed.",
    "NoSuchBucket": "The specified bucket does not exist",
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchUpload": "The specified multipart upload does not exist.",
    "NotImplemented": "The store does not implement what the request asks for.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "SlowDown": "Please reduce your request rate.",
}


class Refusal(Exception):
    """A response with a status of 400 or more.

    Args:
        status: The HTTP status.
        code: One of S3's codes, such as ``NoSuchKey``; or one of Google's reasons, such as
            ``notFound``, where it does not follow from the status.
        message: The message; by default the API's own message for the code.
        headers: Further headers, such as Retry-After.
    """

    def __init__(
        self, status: int, code: str, message: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.message = message or _DEFAULT_MESSAGES.get(code, code)
        self.headers = dict(headers or {})
        super().__init__(f"{status} {code}: {self.message}")


# Python refuses to convert more than 4,300 digits; no header needs as many.
_ONE_RANGE = re.compile(
    r"\s*bytes\s*=[ \t]*([0-9]{0,4000})-([0-9]{0,4000})[ \t]*", re.IGNORECASE | re.ASCII
)


def parse_range(header: str | None, size: int) -> range | None:
    """Return the bytes that a Range header selects; they are never none.

    As in S3, a header with several ranges is ignored, and no range of an empty object can be
    satisfied.

    Args:
        header: The header's value; None if the request has none.
        size: The object's size in bytes.

    Returns:
        The bytes; None if the header is absent or to be ignored (another unit, malformed).

    Raises:
        Refusal: The range begins past the end, asks for the last 0 bytes, or the object is empty.
    """
    match = _ONE_RANGE.fullmatch(header or "")
    first, last = match.groups() if match else ("", "")
    # RFC 9110: an invalid Range header is ignored, and the whole object is sent.
    if (not first and not last) or (first and last and int(last) < int(first)):
        return None
    if first:
        span = range(int(first), min(int(last) + 1, size) if last else size)
    else:
        # "bytes=-5" asks for the last five bytes.
        span = range(max(0, size - int(last)), size)
    if not span:
        raise Refusal(416, "InvalidRange", headers={"Content-Range": f"bytes */{size}"})
    return span


def parse_copy_range(header: str | None, size: int) -> range:
    """Return the bytes that x-amz-copy-source-range selects, all without it.

    Unlike a Range header, it names both ends, and they lie in the object.

    Args:
        header: The header's value; None if the request has none.
        size: The source's size in bytes.

    Raises:
        Refusal: It is malformed, or ends past the object's end.
    """
    if header is None:
        return range(size)
    match = re.fullmatch("bytes=([0-9]{1,20})-([0-9]{1,20})", header)
    if match is None:
        message = (
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first "
            "and last are the zero-based offsets of the first and last bytes to copy"
        )
        raise Refusal(400, "InvalidArgument", message)
    first, last = map(int, match.groups())
    if not first <= last < size:
        message = f"Range specified is not valid for source object of size: {size}"
        raise Refusal(400, "InvalidArgument", message)
    return range(first, last + 1)


class FaultEffects(Settings):
    """The effects of faults on one request; positions are bytes of the response's body."""

    latency: NonNegativeFloat = 0.0
    """Seconds before the response, in addition to the store's own latency."""
    bandwidth: Annotated[float, Field(gt=0)] | None = None
    """Bytes a second, in place of the store's own bandwidth."""
    refuse: bool = False
    """True resets the connection before any response."""
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    """A status to send with the API's error document, in place of any other effect on the body."""
    code: str = "SlowDown"
    """The error code of a ``status`` response; for GCS, one of S3's follows from the status."""
    retry_after: NonNegativeInt | None = None
    """Seconds in the Retry-After header of a ``status`` response."""
    reset_after: NonNegativeInt | None = None
    """Bytes of the body after which the connection is reset."""
    truncate_after: NonNegativeInt | None = None
    """Bytes of the body after which the connection is closed in good order, but too early."""
    stall_after: NonNegativeInt | None = None
    """Bytes of the body after which it pauses for ``stall`` seconds."""
    stall: NonNegativeFloat = 3600.0
    flip_object_at: NonNegativeInt | None = None
    """A byte of the object whose bits are all flipped, in every range that holds it."""
    ignore_range: bool = False
    """True sends the whole object with 200, as if there were no Range header."""
    partial_status: Annotated[int, Field(ge=200, le=299)] | None = None
    """The status of a partial response in place of 206; some gateways send 200."""
    ignore_preconditions: bool = False
    content_range: str | None = None
    """The value of Content-Range in place of the right one; empty removes the header."""
    etag: str | None = None
    """The object's ETag (without quotes) or generation from now on, for preconditions too."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers to add to the response, or to replace."""


class FaultRule(FaultEffects):
    """A rule: the requests that it matches, which of them it selects, and the effects."""

    method: str | None = None
    path: str | None = None
    """A regular expression, searched in the decoded path ``/bucket/key``."""
    ranged: bool | None = None
    """True matches requests with a Range header, False those without."""
    holding: NonNegativeInt | None = None
    """A byte of the object, from 0; only ranges that hold it match. Ranges that count from the
    object's end never match, since their position depends on its size."""
    nth: PositiveInt | None = None
    """The number of the only matching request to select, from 1."""
    every: PositiveInt | None = None
    """The n of selecting every n-th matching request."""
    first: NonNegativeInt | None = None
    """The number of matching requests to select, beginning with the first."""
    probability: Annotated[float, Field(ge=0, le=1)] | None = None

    @classmethod
    def from_json(cls, plain: Any) -> list[FaultRule]:
        """Return the rules of a list of JSON objects.

        Raises:
            ConfigError: The JSON is not a list of objects, or names or values are wrong.
        """
        if not isinstance(plain, list) or not all(isinstance(rule, dict) for rule in plain):
            raise ConfigError("faults must be a list of JSON objects; write [] for none")
        return [validate(cls, rule, where=f"fault {n}") for n, rule in enumerate(plain)]


NO_EFFECTS = FaultEffects()
_RULE_FIELDS = frozenset(FaultRule.model_fields) - frozenset(FaultEffects.model_fields)


class Faults:
    """The rules in use, which count the requests that each has matched.

    Args:
        rules: The rules. All that select a request apply; later ones override earlier ones.
        seed: The seed of ``probability``.
    """

    def __init__(self, rules: Sequence[FaultRule] = (), seed: int = 0) -> None:
        self.rules = tuple(rules)
        self.applied = [0] * len(self.rules)
        """The number of requests that each rule has changed."""
        self._matched = [0] * len(self.rules)
        self._paths = [_compile(rule.path) for rule in self.rules]
        self._randomness = random.Random(seed)

    def choose(self, method: str, path: str, range_header: str | None) -> FaultEffects:
        """Count a request, and return the effects on it.

        Args:
            method: The HTTP method.
            path: The path, decoded.
            range_header: The Range header; ``None`` if the request has none.
        """
        if not self.rules:
            return NO_EFFECTS
        effects: dict[str, Any] = {}
        for number, rule in enumerate(self.rules):
            if self._matches(number, method, path, range_header) and self._selects(number):
                self.applied[number] += 1
                # Only what a rule sets: a default must not undo the effect of an earlier rule.
                effects.update(
                    (name, getattr(rule, name)) for name in rule.model_fields_set - _RULE_FIELDS
                )
        # Not validated again: the rules were, and this runs for each request.
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
        # Counted for each rule apart, so that `nth` means the same whatever other rules are there.
        self._matched[number] += 1
        rule, count = self.rules[number], self._matched[number]
        return (
            rule.nth in (None, count)
            and (rule.every is None or count % rule.every == 0)
            and (rule.first is None or count <= rule.first)
            and (rule.probability is None or self._randomness.random() < rule.probability)
        )


def _holds(range_header: str | None, place: int) -> bool:
    """Return whether the range holds this byte of an object."""
    # The object's size is not known here, so it is taken to be as large as possible.
    try:
        span = parse_range(range_header, sys.maxsize)
    except Refusal:
        return False
    return span is not None and place in span


def _compile(path: str | None) -> re.Pattern[str] | None:
    try:
        return None if path is None else re.compile(path)
    except re.error as error:
        raise ConfigError(
            f"fault path {path!r} is not a regular expression ({error}); correct it"
        ) from None


@dataclass(frozen=True, slots=True)
class Step:
    """An action on the connection while a body is sent."""

    act: Literal["send", "stall", "reset", "close"]
    start: int = 0
    """The first byte of the body to ``send``."""
    stop: int = 0
    """One past the last byte to ``send``."""
    seconds: float = 0.0


def sending_steps(size: int, effects: FaultEffects) -> Iterator[Step]:
    """Yield the steps that send a body of ``size`` bytes, with its interruptions.

    A fault at or past the end happens after the last byte, except for ``truncate_after``, which
    then does nothing.
    """
    stops = [
        (effects.stall_after, Step("stall", seconds=effects.stall)),
        (effects.reset_after, Step("reset")),
        (effects.truncate_after, Step("close")),
    ]
    planned = [
        (min(after, size), step)
        for after, step in stops
        if after is not None and (step.act != "close" or after < size)
    ]
    sent = 0
    for place, step in sorted(planned, key=itemgetter(0)):  # at one place, the stall is first
        if place > sent:
            yield Step("send", sent, place)
            sent = place
        yield step
        if step.act != "stall":
            return
    if sent < size:
        yield Step("send", sent, size)


def flip_byte(piece: bytes | memoryview, at: int) -> bytes | memoryview:
    """Return the piece with all bits of byte ``at`` flipped, if it has such a byte."""
    if not 0 <= at < len(piece):
        return piece
    copy = bytearray(piece)
    copy[at] ^= 0xFF
    return bytes(copy)
