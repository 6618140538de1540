"""What a source names: schemes, ranges of shards and globs, as text. Pure."""

from __future__ import annotations

import difflib
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

from streamrec.errors import ConfigError
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["ChainedURL", "expand", "fixed_prefix", "is_glob", "matcher", "scheme_of", "split_chain"]

MAX_SHARDS = 1_000_000
"""More than any dataset has; a range with a typing error asks for more."""

FAMILIES = {
    "file": "file",
    "memory": "memory",
    "http": "http",
    "https": "http",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
}
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}/]*,[^{}/]*)\}")
_SHARDED = re.compile(r"(?P<name>.*)@(?P<count>\d{1,9})(?P<suffix>\.[^/@]*)?", re.DOTALL)
_MAGIC = re.compile(r"[*?[]")
_GCS = re.compile(r"\Agc?s://", re.IGNORECASE)
_CHAIN = re.compile(r"((?:[\w+.-]+::)*)([\w+.-]+://.*?)((?:::.*)?)", re.DOTALL)


class ChainedURL(NamedTuple):
    """The parts of a URL that may be one of fsspec's chains; joined they are the URL again."""

    before: str
    """What has no path of its own: ``simplecache::``."""
    link: str
    """What names the object: ``zip://dir/train.tfrecord``."""
    after: str
    """What that is in: ``::s3://bucket/shards.zip``."""

    def __repr__(self) -> str:
        return f"<ChainedURL {masked(''.join(self))}>"


def split_chain(url: str) -> ChainedURL:
    """Take a chain apart; what is none is its own link."""
    # A ``::`` in S3's key or in an IPv6 address begins nothing: these stores are in no other.
    if "::" not in url or url.partition("://")[0].lower() in FAMILIES:
        return ChainedURL("", url, "")
    found = _CHAIN.fullmatch(url)
    return ChainedURL(*found.groups()) if found else ChainedURL("", url, "")


def scheme_of(url: str) -> str:
    """The kind of store that reads a URL, by the name of its scheme; a plain path's is ``file``.

    A scheme without a store of its own is fsspec's, under the name that fsspec has for it.

    Raises:
        ConfigError: No store reads this scheme, and fsspec knows no filesystem for it.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return "file"
    if scheme.lower() in FAMILIES:
        return FAMILIES[scheme.lower()]
    return _of_fsspec(url, scheme.partition("::")[0].lower())


def _of_fsspec(url: str, scheme: str) -> str:
    from fsspec import available_protocols

    known = sorted({*available_protocols(), *FAMILIES})
    if scheme in known:
        return scheme
    close = difflib.get_close_matches(scheme, known, n=1, cutoff=0.5)
    hint = (
        f"did you mean {close[0]!r}{_provider(close[0])}?"
        if close
        else f"there are {', '.join(known)}"
    )
    place = url.partition("?")[0]  # a scheme that is misspelt may have a signature behind it
    raise ConfigError(f"{place}: there is no store for the scheme {scheme!r}; {hint}")


def _provider(scheme: str) -> str:
    """Which package reads a scheme of fsspec's, where it is another one."""
    from fsspec.registry import known_implementations

    package = known_implementations.get(scheme, {}).get("class", "fsspec").partition(".")[0]
    return "" if package == "fsspec" or scheme in FAMILIES else f", which {package} reads"


def expand(source: str | Sequence[str]) -> list[str]:
    """Spell out ranges: the names and globs that a source stands for, in its own order.

    ``{00000..00127}`` counts (leading zeros give the width), ``{a,b}`` chooses, and ``name@128``,
    with or without a suffix behind it, is TensorFlow's ``name-00000-of-00128``. Globs stay.
    ``gcs://`` becomes ``gs://``: one object has one name.

    Args:
        source: A URL, glob or path, or a list of them.

    Raises:
        ConfigError: A range runs backwards or names too many shards.
    """
    sources = [source] if isinstance(source, str) else list(source)
    return [_GCS.sub("gs://", name) for one in sources for name in _expand_one(one)]


def _expand_one(source: str) -> list[str]:
    before, link, after = split_chain(source)
    return [f"{before}{name}{after}" for name in _expand_link(link)]


def _expand_link(source: str) -> list[str]:
    sharded = _SHARDED.fullmatch(source)
    if sharded:
        return [name for one in _expand_braces(sharded["name"]) for name in _tasks(one, sharded)]
    return _expand_braces(source)


def _tasks(name: str, sharded: re.Match[str]) -> Iterator[str]:
    count = int(sharded["count"])
    _check_count(sharded[0], count)
    suffix = sharded["suffix"] or ""
    return (f"{name}-{task:05}-of-{count:05}{suffix}" for task in range(count))


def _expand_braces(source: str) -> list[str]:
    pieces: list[Sequence[str]] = []
    end = 0
    count = 1
    for found in _BRACES.finditer(source):
        choices = _choices(source, found)
        count *= len(choices)
        _check_count(source, count)
        pieces += [[source[end : found.start()]], choices]
        end = found.end()
    return ["".join(parts) for parts in itertools.product(*pieces, [source[end:]])]


def _choices(source: str, found: re.Match[str]) -> Sequence[str]:
    if found[3] is not None:
        return found[3].split(",")
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise ConfigError(f"{source}: the range {found[0]} runs backwards")
    _check_count(source, last - first + 1)
    padded = any(len(bound) > 1 and bound.startswith("0") for bound in (found[1], found[2]))
    width = max(len(found[1]), len(found[2])) if padded else 0
    return [f"{number:0{width}}" for number in range(first, last + 1)]


def _check_count(source: str, count: int) -> None:
    if not 1 <= count <= MAX_SHARDS:
        raise ConfigError(f"{source}: this names {count} shards; 1 to {MAX_SHARDS:,} can be read")


def is_glob(url: str) -> bool:
    """Whether ``*``, ``?`` or ``[`` makes it a pattern; in http URLs only ``*`` does."""
    if scheme_of(url) == "http":
        return "*" in url.partition("?")[0]
    return _MAGIC.search(split_chain(url).link) is not None


def fixed_prefix(glob: str) -> str:
    """All before the first magic character: every match begins with it."""
    found = _MAGIC.search(glob)
    return glob[: found.start()] if found else glob


def matcher(glob: str) -> Callable[[str], bool]:
    """Which URLs a glob names: ``*`` and ``?`` stay within a ``/``, ``**`` is any number of levels.

    Raises:
        ConfigError: ``**`` stands beside other characters.
    """
    from fsspec.utils import glob_translate

    try:
        pattern = re.compile(glob_translate(glob))
    except (ValueError, re.error) as error:
        raise ConfigError(f"{glob}: {error}") from None
    return lambda url: pattern.match(url) is not None
