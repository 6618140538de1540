"""Bearer tokens: who shows one may read the datasets that it opens; and files of secrets.

What a file of secrets holds is taken anew when it changes, and kept when it is unusable.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from streamrec.config.named_files import open_regular
from streamrec.errors import ConfigError, FeederRefused
from streamrec.flow.cleanup import wait_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from streamrec.config.server_settings import ServerSettings


T = TypeVar("T")

Signature: TypeAlias = tuple[int, int, int]

MOST_BYTES = 1 << 20
"""Bytes of the largest file of secrets that is read."""

log = logging.getLogger("streamrec.feeder")


class SecretFiles(Generic[T]):
    """The content of some files as it is now; or as it was last, where that cannot be used.

    Args:
        paths: The files.
        load: Reads all of them.
        name: What they are, for the log.

    Raises:
        ConfigError: They cannot be used.
    """

    def __init__(self, paths: Iterable[str], load: Callable[[], T], name: str) -> None:
        self._paths, self._load, self._name = tuple(paths), load, name
        self._complaint = ""
        # Before they are read, so that a change meanwhile is a change.
        self._seen = self._signatures()
        self.value = load()

    def look(self) -> None:
        """Read the files again if one has changed; the log says so, or why nothing is taken."""
        seen = self._signatures()
        if seen == self._seen and not self._complaint:
            return
        try:
            self.value = self._load()
        except ConfigError as error:
            self._complain(error.message)
        else:
            self._complaint = ""
            log.info("%s have changed: new clients need what their files hold now", self._name)
        # Also after a failure: a file that is wrong is read again, but told of once.
        self._seen = seen

    def _complain(self, reason: str) -> None:
        """Say once why the files cannot be used; they are tried again at every look."""
        if reason != self._complaint:
            log.error("%s stay as they were: %s", self._name, reason)
        self._complaint = reason

    def _signatures(self) -> list[Signature | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: str) -> Signature | None:
    """Return what changes when a file is replaced or written; ``None``: it is not there."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_file(path: str, setting: str) -> tuple[bytes, int]:
    """Read a small file.

    Args:
        path: The file.
        setting: The setting that names it, for errors.

    Returns:
        Its bytes, and its permissions.

    Raises:
        ConfigError: It cannot be read, or is too large.
    """
    with _reading(path, setting), open(path, "rb", opener=open_regular) as file:
        # One byte more than is allowed tells a file that is too large.
        data = file.read(MOST_BYTES + 1)
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    return _small(data, path, setting), mode


async def read_file_async(path: str, setting: str) -> bytes:
    """Return the bytes of a small file; arguments and errors are those of :func:`read_file`."""
    import aiofiles  # here, because few streams read such a file

    async def read() -> bytes:
        async with aiofiles.open(path, "rb", opener=open_regular) as file:
            # One byte more than is allowed tells a file that is too large.
            return await file.read(MOST_BYTES + 1)

    with _reading(path, setting):
        # A client that is cancelled meanwhile leaves no open file.
        data = await wait_out(read())
    return _small(data, path, setting)


@contextmanager
def _reading(path: str, setting: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is not a path"
        raise ConfigError(
            f"{setting}: {path} cannot be read ({reason}); name a file that this process may read"
        ) from None


def _small(data: bytes, path: str, setting: str) -> bytes:
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{setting}: {path} has more than {MOST_BYTES} bytes; name another file")
    return data


def read_secret(path: str, setting: str) -> bytes:
    """Return the bytes of a file; the log warns if others than its owner may use it.

    Arguments and errors are those of :func:`read_file`.
    """
    data, mode = read_file(path, setting)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning(
            "%s holds secrets, and others than its owner may use it (its mode is %03o); chmod 600",
            path,
            mode,
        )
    return data


def read_token(token: str | None) -> str | None:
    """Return a token as it is, or what its file holds now.

    Args:
        token: The token, or ``file:/path``.

    Raises:
        ConfigError: The file cannot be read, or holds no token, or several.
    """
    if token is None or not token.startswith("file:"):
        return token
    path = token.removeprefix("file:")
    data, _ = read_file(path, "token")
    return _token_in(data, path)


async def read_token_async(token: str | None) -> str | None:
    """Do what :func:`read_token` does, without a wait of the event loop for a disk."""
    if token is None or not token.startswith("file:"):
        return token
    path = token.removeprefix("file:")
    return _token_in(await read_file_async(path, "token"), path)


def _token_in(data: bytes, path: str) -> str:
    try:
        text = data.decode("utf-8-sig").strip()  # some editors begin a file with a mark
    except UnicodeDecodeError:
        # The error itself would quote the file.
        text = ""
    if not 0 < len(text) <= MOST:
        raise ConfigError(
            f"token: {path} is empty, too large, or not text; name a file with the token alone"
        )
    if len(text.splitlines()) > 1:
        raise ConfigError(
            f"token: {path} has several lines, as a feeder's file may; a client shows one token: "
            "name a file that holds the token alone"
        )
    return text


LEAST = 16
"""Characters of the shortest token in a file: 64 bits, if they are hexadecimal."""
MOST = 32 << 10
"""Characters of the longest: HELLO, which carries it, has 64 KiB at most."""


@dataclass(frozen=True)
class Grant:
    """The leave of one client."""

    is_known: bool
    """True if it showed a token that opens anything."""
    own: Mapping[str, bool]
    """By name, the datasets with tokens of their own, and whether they are open to it."""
    others: bool
    """True if all other datasets are."""

    def opens(self, dataset: str) -> bool:
        """Return True if the client may read a dataset, which need not be there."""
        return self.own.get(dataset, self.others)

    def check(self, dataset: str, *, shows_token: bool) -> None:
        """Refuse a client whose token does not open a dataset.

        Args:
            dataset: The name, as it says it.
            shows_token: It showed a token.

        Raises:
            FeederRefused: It may not read that. Nothing is said of what is there.
        """
        if self.opens(dataset):
            return
        if not shows_token:
            reason = "a token is needed: give token="
        elif self.is_known:
            reason = f"the token does not open the dataset {dataset!r}; give a token that does"
        else:
            reason = "the token is wrong, or no longer valid; give one that the feeder knows now"
        raise FeederRefused(reason, code="token")


class Tokens:
    """All tokens of a feeder; those of files follow the files.

    Args:
        server: The settings that name those for everything.
        datasets: By name, the files of tokens for single datasets.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(
        self, server: ServerSettings, datasets: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._inline = [] if server.token is None else [_inline(server.token.get_secret_value())]
        self._general = [_file(path, "server.tokens") for path in server.tokens]
        self._own = {
            name: [_file(path, f"datasets.{name}.tokens") for path in paths]
            for name, paths in (datasets or {}).items()
            if paths
        }

    def __repr__(self) -> str:
        everything, own = self._digests()
        return f"<Tokens: {len(everything)} for all datasets, {len(own)} datasets with their own>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokens):
            return NotImplemented
        return self._digests() == other._digests()

    __hash__ = None  # type: ignore[assignment]

    def grant(self, token: str) -> Grant:
        """Return what a token opens; it is compared with all that are known, in constant time."""
        digest = _digest(token)
        everything, own = self._digests()
        opens_all = _is_among(digest, everything)
        # Whatever is found, none is left out.
        matches = {name: _is_among(digest, some) for name, some in own.items()}
        return Grant(
            is_known=opens_all or any(matches.values()),
            own={name: opens_all or matches[name] for name in own},
            others=opens_all or not everything,
        )

    def look(self) -> None:
        """Take the tokens of those files anew that have changed."""
        # Each file by itself: one that is wrong keeps its old tokens, and the others go on.
        for file in (*self._general, *(file for some in self._own.values() for file in some)):
            file.look()

    def _digests(self) -> tuple[list[bytes], dict[str, list[bytes]]]:
        own = {name: _values(files) for name, files in self._own.items()}
        return self._inline + _values(self._general), own


def _file(path: str, setting: str) -> SecretFiles[list[bytes]]:
    return SecretFiles([path], lambda: _load(path, setting), f"the tokens of {path}")


def _load(path: str, setting: str) -> list[bytes]:
    """Return the digests of a file's tokens."""
    lines = _lines(read_secret(path, setting), path, setting)
    if not lines:
        raise ConfigError(f"{setting}: {path} holds no token; write one a line")
    if any(not LEAST <= len(line) <= MOST for line in lines):
        raise ConfigError(
            f"{setting}: a token in {path} has less than {LEAST} characters, or more than {MOST}; "
            "make one with: openssl rand -hex 32"
        )
    return [_digest(line) for line in lines]


def _lines(data: bytes, path: str, setting: str) -> list[str]:
    """Return a file's lines, without empty ones and comments."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # The error itself would quote the file.
        raise ConfigError(f"{setting}: {path} is not UTF-8; write a token on each line") from None
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _inline(token: str) -> bytes:
    if len(token) < LEAST:
        log.warning(
            "server.token has less than %d characters and might be guessed; make one with: "
            "openssl rand -hex 32",
            LEAST,
        )
    return _digest(token)


def _values(files: list[SecretFiles[list[bytes]]]) -> list[bytes]:
    return [digest for file in files for digest in file.value]


def _is_among(digest_shown: bytes, digests: list[bytes]) -> bool:
    # All of them, also after one that is equal: the time must not tell which it was.
    matches = [hmac.compare_digest(digest, digest_shown) for digest in digests]
    return any(matches)


def _digest(token: str) -> bytes:
    # All are equally long then. A peer may send what is no Unicode at all.
    return sha256(token.encode(errors="surrogatepass")).digest()
