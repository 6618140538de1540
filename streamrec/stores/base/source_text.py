"""Names of stores, ranges of shards, globs and escapes in the text of a source. Pure: no I/O.

A text is a name or a pattern. A character class of one special character (``[[]``, ``[*]``,
``[?]``, ``[{]``, ``[}]``, ``[@]``, ``[]]``) always stands for that character.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from streamrec.config.places import (
    ESCAPE,
    FILE,
    SPECIAL,
    SPECIAL_OF_HTTP,
    check_url,
    escape,
    is_file_url,
    is_http,
    local_path,
    split_chain,
    unescape,
)
from streamrec.config.schemes import SCHEMES, is_own, line_of
from streamrec.errors import ConfigError
from streamrec.plan.state.fingerprint import digest, relative_names
from streamrec.stores.base.protocol import bare_url
from streamrec.suggestions import close_names
from streamrec.surroundings import home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


MAX_SHARDS = 1_000_000
"""Most shards that one name may stand for; more is a mistyped range."""

_BRACES = re.compile(
    # Not the brace of an escape.
    r"(?!(?<=\[)\{\])\{(?:(\d+)\.\.(\d+)\}|([^{}/]*,[^{}/]*)\})"
)
_SHARDED = re.compile(r"(?P<name>.*)@(?P<count>\d{1,9})(?P<suffix>\.[^/@]*)?", re.DOTALL)
_MAGIC = re.compile(r"[*?[]")
_MORE = ("@", "?", "#", "::")
"""What a URL has of these if it holds a user, a query or a chain."""
_FIXED = re.compile(r"(?:[^*?[]|\[[][*?{}@]\])*", re.DOTALL)


def is_pattern(text: str) -> bool:
    """Return whether a text may stand for something else than the object of this name."""
    link = ESCAPE.sub("", split_chain(text).link)
    special = SPECIAL_OF_HTTP if is_http(text) else SPECIAL
    return special.search(link) is not None


def is_counted(text: str) -> bool:
    """Return whether a text holds ``{00000..00127}`` or ``{a,b}``, or ends like ``name@128``."""
    link = split_chain(text).link
    return _BRACES.search(link) is not None or _SHARDED.fullmatch(link) is not None


def with_one_name(url: str) -> str:
    """Return ``gs://`` in place of ``gcs://``, and ``file://`` without what ``as_uri`` encodes."""
    _, separator, place = url.partition("://")
    if not separator:
        return url
    if is_file_url(url):
        return FILE + local_path(url)
    written = line_of(url).written
    return f"{written}://{place}" if written else url


def held_in(url: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of the object that holds a chain's first link, and the options to read it.

    For ``zip://x::s3://bucket/*.zip`` it is ``s3://bucket/*.zip``; without a chain it is empty.

    Args:
        url: A text of a source.
        options: fsspec's options; those of a chain are by the schemes of its links.
    """
    holder = split_chain(url).after.removeprefix("::")
    if "::" in holder:
        return holder, dict(options)
    return holder, dict(options.get(holder.partition("://")[0] if "://" in holder else "file", {}))


def with_holder(url: str, holder: str) -> str:
    """Return a chain with another object, by its name, in place of the one that holds its link."""
    return "".join(split_chain(url)._replace(after=f"::{escape(holder)}"))


def has_more(text: str) -> bool:
    """Return whether a URL, or one in a text of many, has more than a scheme and a path."""
    return any(mark in text for mark in _MORE)


def content_name(url: str) -> str:
    """Return a shard's name for what outlives its place, such as an index or a state.

    Below the directory that shards share it is the same for all copies of them: a signature does
    not count, and what is in an archive counts as what was unpacked from it.
    """
    if not has_more(url):  # most of a million
        return url
    before, link, after = split_chain(url)
    if after:
        member = link.partition("://")[2].lstrip("/")
        return f"{content_name(after.removeprefix('::'))}/{member}"
    return bare_url(link if before else url).removesuffix("?...")


def names_apart(urls: Sequence[str]) -> list[str]:
    """Return a name for each shard below the directory that all share, with no secret in it.

    Where a query alone tells shards apart, a digest of its URL is a part of a shard's name.
    """
    contents = {url: content_name(url) for url in urls}
    names = [contents[url] for url in urls]
    times = Counter(contents.values())
    return [
        name if times[content] == 1 else _with_digest(name, url)
        for name, content, url in zip(relative_names(names), names, urls, strict=True)
    ]


def names_alone(name: str, url: str) -> tuple[str, str]:
    """Return the names that a shard may have among others: its own, and that with a digest."""
    return name, _with_digest(name, url)


def _with_digest(name: str, url: str) -> str:
    return f"{name}.{digest(url)}"


def scheme_of(url: str) -> str:
    """Return the scheme under which a URL's store is known; a plain path's is ``file``.

    A scheme without a store of its own keeps fsspec's name.

    Raises:
        ConfigError: Neither streamrec nor fsspec knows the scheme.
    """
    line = line_of(url)
    if line.name != "file":
        check_url(url)
    return line.name if line.is_own else _of_fsspec(url, line.name)


def store_kind(url: str) -> str:
    """Return the kind of a URL's store for counting: its name in the table, or ``other``."""
    line = line_of(url)
    return line.name if line.is_own else "other"


def _of_fsspec(url: str, scheme: str) -> str:
    from fsspec import available_protocols

    ours = {prefix for prefix, line in SCHEMES.items() if line.is_own}
    known = sorted({*available_protocols(), *ours})
    if scheme in known:
        return scheme
    close = close_names(scheme, known, cutoff=0.5)
    meant = [f"did you mean {name!r}{_provider(name)}?" for name in close]
    hint = "".join(meant) or f"the schemes are {', '.join(known)}"
    place = url.partition("?")[0]  # the query may hold a signature
    raise ConfigError(f"{place}: there is no store for the scheme {scheme!r}; {hint}")


def _provider(scheme: str) -> str:
    """Return the package that reads a scheme of fsspec's, which may have another name."""
    from fsspec.registry import known_implementations

    package = known_implementations.get(scheme, {}).get("class", "fsspec").partition(".")[0]
    is_ours = package == "fsspec" or is_own(f"{scheme}://")
    return "" if is_ours else f", which {package} reads"


def fsspec_is_configured() -> bool:
    """Return whether fsspec has options of its own for filesystems."""
    module, at_home = sys.modules.get("fsspec.config"), home()
    is_set = module is not None and bool(module.conf)
    return is_set or (at_home is not None and (at_home / ".config" / "fsspec").exists())


def expand(source: str | Sequence[str]) -> list[str]:
    """Return the names and globs that a source stands for, in its order.

    ``{00000..00127}`` counts (leading zeros give the width), ``{a,b}`` lists alternatives, and
    ``name@128``, with or without a suffix after it, is TensorFlow's ``name-00000-of-00128``. Globs
    stay as they are. ``gcs://`` becomes ``gs://``, so that each object has one name.

    Args:
        source: A URL, glob or path, or a list of them.

    Raises:
        ConfigError: A range runs backwards or names too many shards.
    """
    sources = [source] if isinstance(source, str) else list(source)
    return [with_one_name(name) for one in sources for name in _expand_one(one)]


def _expand_one(source: str) -> list[str]:
    before, link, after = split_chain(source)
    # What is behind a link is the one object that holds it, and names no range.
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
        raise ConfigError(f"{source}: the range {found[0]} runs backwards; swap its bounds")
    # Before the names are made: a mistyped bound may name more than fit into memory.
    _check_count(source, last - first + 1)
    # As in a shell: a zero in front of either bound sets the width.
    padded = any(len(bound) > 1 and bound.startswith("0") for bound in (found[1], found[2]))
    width = max(len(found[1]), len(found[2])) if padded else 0
    return [f"{number:0{width}}" for number in range(first, last + 1)]


def _check_count(source: str, count: int) -> None:
    if not 1 <= count <= MAX_SHARDS:
        raise ConfigError(
            f"{source}: this names {count} shards; correct the range to 1 to {MAX_SHARDS:,} shards"
        )


def is_glob(url: str) -> bool:
    """Return whether a URL holds ``*``, ``?`` or ``[``, or for http a ``*`` before its query.

    Escapes do not count.
    """
    if _MAGIC.search(url) is None:  # most of a million
        return False
    if is_http(url):
        return "*" in ESCAPE.sub("", url).partition("?")[0]
    return _MAGIC.search(ESCAPE.sub("", split_chain(url).link)) is not None


def fixed_prefix(glob: str) -> str:
    """Return the name before the first ``*``, ``?`` or ``[``, with which every match begins."""
    found = _FIXED.match(glob)
    return unescape(found[0]) if found else ""


def matcher(glob: str) -> Callable[[str], bool]:
    """Return a function that tells whether a URL matches a glob.

    ``*`` and ``?`` do not match a ``/``; ``**`` matches any number of directories. As in a shell,
    a dot at the beginning of a name matches a dot of the glob alone.

    Raises:
        ConfigError: ``**`` stands beside other characters.
    """
    *folders, name = glob.split("/")
    if any("**" in part and part != "**" for part in (*folders, name)):
        raise ConfigError(
            f"{glob}: this is not a valid glob ('**' can only be an entire path component); "
            "correct it"
        )
    above = (_FOLDERS.get(part) or f"{_expression(part)}/" for part in folders)
    pattern = re.compile(f"(?s:{''.join(above)}{_LAST.get(name) or _expression(name)})")
    return lambda url: pattern.fullmatch(url) is not None


_HIDDEN = r"\.(?!\.?(?:/|\Z))"
"""The beginning of a hidden name: the folders of notebooks and version control, and what macOS and
Hadoop put beside each file. In archives, ``.`` may be a folder's name."""
_HIDDEN_PART = re.compile(f"(?:\\A|/){_HIDDEN}")
_SHOWN = f"(?!{_HIDDEN})"
"""Stands before a wildcard that begins a name, so that it matches no hidden one."""
_FOLDERS = {"*": f"{_SHOWN}[^/]+/", "**": f"(?:{_SHOWN}[^/]+/|(?:{_SHOWN}[^/]*/){{2,}})?"}
_LAST = {"*": f"{_SHOWN}[^/]+", "**": f"(?:{_SHOWN}[^/]*/)*{_SHOWN}[^/]*"}
"""What a star that stands alone between slashes matches: never an empty name."""
_WILD = re.compile(r"(\*|\?|\[!?\]?[^\]]*\])")


def is_hidden(name: str) -> bool:
    """Return whether a name below a directory has a hidden part, which no wildcard matches."""
    return _HIDDEN_PART.search(name) is not None


def _expression(part: str) -> str:
    """Return the regular expression of what stands between two slashes of a glob.

    fsspec's own gives the same but for hidden names. To import fsspec takes longer than all else
    that finds the files of a folder.
    """
    begin = _SHOWN if _WILD.match(part) else ""
    *pairs, rest = _WILD.split(part)
    texts = map(re.escape, pairs[::2])
    wild = "".join(map("".join, zip(texts, map(_wild, pairs[1::2]), strict=True)))
    return begin + wild + re.escape(rest)


def _wild(sign: str) -> str:
    if sign in ("*", "?"):
        return "[^/]*" if sign == "*" else "[^/]"
    return fnmatch.translate(sign)[len("(?s:") : -len(r")\Z")]  # the class alone
