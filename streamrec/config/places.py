"""The texts of places: relative paths become absolute, and special characters are escaped.

A path is bound to the working directory when it is named, because a program may change the
directory before the path is used, and processes of other directories use it too.
"""

from __future__ import annotations

import os
import re
import shlex
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from streamrec.config.schemes import is_own, line_of
from streamrec.errors import ConfigError
from streamrec.masking import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

ESCAPE = re.compile(r"\[([][*?{}@])\]")
"""A character class of one special character, which always stands for that character."""
SPECIAL = re.compile(r"[][*?{}]|@(?=\d)")
"""Characters that make a pattern. An ``@`` that no number follows is part of any name."""
SPECIAL_OF_HTTP = re.compile(r"[*{}]|@(?=\d)|\[(?=[][*?{}@]\])")
"""The same for http, where ``?`` begins the query and ``[`` the address of a host."""
PLACES = frozenset({"exclude", "index", "quarantine"})
"""Settings of a dataset that are a URL or a path."""
FILE = "file://"
_LOCAL = FILE, "local://"
"""The beginnings of URLs of local files, as fsspec knows them."""
_CHAIN = re.compile(r"((?:[\w+.-]+::)*)([\w+.-]+://.*?)((?:::.*)?)", re.DOTALL)
_IN_PATTERNS = "/*?[]{},"
"""Characters that nobody encodes in a pattern."""
_FILES = frozenset(
    {"ca_bundle", "cert", "client_cert", "client_key", "key_file", "token", "verify"}
)
"""Options of stores that may be the paths of files."""


class ChainedURL(NamedTuple):
    """The three parts of a URL that may be one of fsspec's chains; joined they are the URL."""

    before: str
    """The links without a path: ``simplecache::``."""
    link: str
    """The link that names the object: ``zip://dir/train.tfrecord``."""
    after: str
    """The links that hold the object: ``::s3://bucket/shards.zip``."""

    def __repr__(self) -> str:
        return f"<ChainedURL {masked(''.join(self))}>"


def escape(name: str) -> str:
    """Return the pattern for one name, whatever characters it has: ``streamrec.escape``.

    Wherever ``streamrec`` takes a source, it reads the object of this name. ``glob.escape`` of the
    standard library leaves ``{ }`` and ``@`` as they are.

    Args:
        name: A path or a URL.
    """
    special = SPECIAL_OF_HTTP if is_http(name) else SPECIAL
    return special.sub(r"[\g<0>]", name)


def unescape(text: str) -> str:
    """Return a text with a character in place of each of its escapes."""
    return ESCAPE.sub(r"\1", text) if "[" in text else text


def check_url(url: str) -> None:
    """Check that a URL of a store is text; the names of local files may be any bytes.

    Raises:
        ConfigError: It is not.
    """
    try:
        url.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{masked(url)}: the name is not UTF-8, and a store's URL must be; give the object "
            "another name"
        ) from None


def is_http(url: str) -> bool:
    """Return whether a URL is of http or https."""
    return line_of(url).name == "http"


def is_file_url(url: str) -> bool:
    """Return whether a URL begins with ``file://``, in letters of any size, as schemes may."""
    return url[: len(FILE)].lower() == FILE


def local_path(url: str) -> str:
    """Return the path of a ``file://`` URL; any other text is returned as it is.

    A path is taken as it stands, and as ``pathlib.Path.as_uri`` writes it: then it is decoded.
    """
    path = url[len(FILE) :] if is_file_url(url) else url
    if path is url or "%" not in path:
        return path
    # Names of files are bytes, which need not be UTF-8.
    plain = unquote(path, errors="surrogateescape")
    # Decoded only if encoding gives the same text again: "100%25" may be a plain name.
    written = (quote(os.fsencode(plain), safe=safe) for safe in ("/", _IN_PATTERNS))
    return plain if path in written else path


def as_given(url: str) -> str:
    """Return the URL to give as a source for an object that is stored under this very URL.

    It differs where the name of a local file looks encoded, as ``a%20b`` does.
    """
    if not is_file_url(url) or local_path(url) == url[len(FILE) :]:
        return url
    return FILE + quote(os.fsencode(url[len(FILE) :]))


def split_chain(url: str) -> ChainedURL:
    """Split a chain into its parts; any other URL is a single link."""
    # An own store's ``::`` is part of a key or of an IPv6 address, and begins no chain.
    if "::" not in url or ("://" in url and is_own(url)):
        return ChainedURL("", url, "")
    match = _CHAIN.fullmatch(url)
    return ChainedURL(*match.groups()) if match else ChainedURL("", url, "")


def check_no_archive(url: str) -> None:
    """Check that a URL of what is written is not inside an archive.

    Raises:
        ConfigError: It is.
    """
    if split_chain(url).after:
        raise ConfigError(
            f"{masked(url)}: nothing is written into an archive; name a place outside of it, such "
            "as a local directory, and pack the files afterwards"
        )


def absolute(place: str, directory: str | None = None) -> str:
    """Return a local path as an absolute one, and a URL as it is.

    In one of fsspec's chains, ``zip://x::data/shards.zip``, the path is that of the last link.

    Args:
        place: A path, ``file://`` and a path, or a URL.
        directory: The directory of relative paths; ``None``: the working directory.
    """
    return _in_directory(place, _add_slash(directory))


def absolute_values(excluded: Mapping[str, Any], directory: str | None = None) -> dict[str, Any]:
    """Return excluded values by feature, with absolute paths of the files of values."""
    return {
        name: absolute(fspath(values), directory) if isinstance(values, str | PathLike) else values
        for name, values in excluded.items()
    }


MOST_SOURCES = 3
"""The most sources that a command in a message lists."""


def command_for(verb: str, settings: Mapping[str, Any], *options: str) -> str:
    """Return a command line about a dataset, in backquotes, for the message of an error.

    Args:
        verb: The command, such as ``"index"``.
        settings: The settings of the dataset by name, as far as they are known.
        *options: The command's other options.
    """
    source, index, split = (settings.get(name) for name in ("source", "index", "split"))
    sources = [source] if isinstance(source, str) else source
    is_short = isinstance(sources, list) and len(sources) <= MOST_SOURCES
    words, behind = ["URL"], ""
    if is_short and sources:
        words = [shlex.quote(masked(one)) for one in sources]
    if split and verb != "index":
        words += [
            "--set",
            shlex.quote(f"split={split}") if isinstance(split, str) else "split=SPLIT",
        ]
    elif split:  # which has an index of its own, without slices
        is_single = isinstance(split, str) and split != "all" and "+" not in split
        words += ["--split", split.partition("[")[0] if is_single else "SPLIT"]
        behind = "" if is_single else " for each split"
    if verb == "index" and isinstance(index, str):
        words += ["--output", shlex.quote(masked(index))]
    return f"`{' '.join(['streamrec', verb, *words, *options])}`{behind}"


HALF_CHARACTER = "half of a surrogate pair, which no name can hold; correct it"


def has_half_character(place: str) -> bool:
    """Return whether a URL or path holds a lone surrogate: no file or object can be named so.

    Those that stand for bytes of a file's name that are not UTF-8 do not count.
    """
    try:
        place.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return True
    return False


def absolute_source(text: str, directory: str | None = None) -> str:
    """Return the same for a name or pattern of shards, in which the directory is a plain name."""
    return _in_directory(text, escape(_add_slash(directory)))


def _in_directory(place: str, directory: str) -> str:
    head = next(filter(place.startswith, _LOCAL), "")
    if head or "://" not in place:
        path = place.removeprefix(head)
        is_whole = not path or path.startswith("/") or "://" in path
        return place if is_whole else f"{head}{directory}{path}"
    if is_own(place):
        return place
    link, separator, holder = place.partition("::")
    return f"{link}::{_in_directory(holder, directory)}" if separator else place


def absolute_options(options: Mapping[str, Any], directory: str | None = None) -> dict[str, Any]:
    """Return options of stores with absolute paths in place of those of files that exist."""
    changed = dict(options)
    for name in _FILES & changed.keys():
        if isinstance(changed[name], str):
            # A token may be the secret itself: only the path of a file that is there counts.
            place = absolute(changed[name], directory)
            changed[name] = place if os.path.isfile(place) else changed[name]  # noqa: PTH113 - texts
    return changed


def _add_slash(directory: str | None) -> str:
    """Return a directory with a slash at its end; nothing where the working directory is gone."""
    if directory is None:
        try:
            directory = os.getcwd()  # noqa: PTH109 - texts
        except FileNotFoundError:
            return ""
    return directory if directory.endswith("/") else f"{directory}/"
