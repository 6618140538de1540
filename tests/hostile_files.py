"""Damaged files for all who read them: ``python -m tests.hostile_files --runs 1000000``.

They are the files that come from outside: an index, a manifest, the record that a task keeps, a
state, a file of tokens and the daemon's configuration. Each is changed a little, in its numbers and
texts or in its bytes. Where there is a digest it is mostly made anew, so that what is behind it is
reached. A reader must refuse a file with an error of ours, or give exactly what stands in it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import struct
import time
import tomllib
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamrec.config.daemon import load_daemon
from streamrec.config.places import PLACES
from streamrec.config.server_settings import ServerSettings
from streamrec.datasets.dataset_manifest import (
    IndexedShard,
    Manifest,
    ShardFacts,
    SourcePlace,
    TaskPart,
    WriteSettings,
)
from streamrec.errors import ConfigError, MalformedIndex, StateError
from streamrec.feeder.access.tokens import LEAST, MOST, Tokens, read_token
from streamrec.feeder.operate.configuration import faults
from streamrec.formats.shards.index import Index, ShardEntry
from streamrec.formats.shards.key_index import KeyIndex, hashes_of
from streamrec.formats.shards.length_index import LengthIndex
from streamrec.plan.order.coordinates import OWN, POINTS, pack, unpack
from streamrec.plan.order.shard_names import ShardNames, Task
from streamrec.plan.state.fingerprint import Fingerprint
from streamrec.plan.state.position import Position
from streamrec.plan.state.resume_point import for_rank, read_resume_point

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TARGETS", "run"]

NUMBERS = (0, 1, 2, 15, 16, 17, 255, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 48, (1 << 63) - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0.5, 1e300, math.nan, math.inf, 1 << 63, 1 << 64, 10**30, *NUMBERS),
    *("", "x", "../x", "/etc/passwd", "a\nb", "\x1b[2J", "\x00", "\udcff", "1", "x" * 70_000),
    *([], {}, [[]], [None], {"": None}, [1 << 70], {"a": {"a": {"a": []}}}),
)
NAMES = ShardNames.parse("train.tfrecord")
TASK = Task(0, 1)


class Target(NamedTuple):
    """A kind of file."""

    make: Callable[[random.Random], bytes]
    """Makes a file with some changes."""
    read: Callable[[bytes, Path], bool]
    """Reads it and returns whether it was taken; asserts that what was taken is what it says."""


def run(target: str, runs: int, seed: int, path: Path) -> int:
    """Read so many files of a kind; return how many were refused.

    Args:
        target: The kind.
        runs: The number of files.
        seed: The seed of their changes.
        path: A path for those that have to be files.

    Raises:
        AssertionError: A reader gave something else than what a file says.
    """
    make, read = TARGETS[target]
    rng = random.Random(seed)
    refused = 0
    for number in range(runs):
        data = make(rng)
        try:
            refused += not read(data, path)
        except BaseException as error:
            error.add_note(f"{target}, file {number} of seed {seed}: {data[:4000]!r}")
            raise
    return refused


# -- an index --------------------------------------------------------------------------------------

_CHUNKS = [0, 60, 200, 1000], [0, 2, 5, 20], [7, 0, (1 << 32) - 1, 9]
INDEX = Index(
    (
        ShardEntry("a", 2000, 40, *_CHUNKS),
        ShardEntry("empty", 0, 0, [], [], []),
        ShardEntry("dir/é", 48, 3, [0], [0], [1]),
    )
)
_INDEX_BODY = INDEX.encode()[:-16]
_HEAD = struct.Struct("<8sIIQQ")


def _changed_index(rng: random.Random, whole: bytes = _INDEX_BODY) -> bytes:
    body = bytearray(whole)
    for _ in range(rng.randrange(1, 4)):
        if rng.randrange(3):
            at = rng.choice((12, 16, 24, *range(_HEAD.size, len(body) - 7, 4)))
            kind = rng.choice(("<q", "<i"))
            if at + struct.calcsize(kind) > len(body):
                continue
            (value,) = struct.unpack_from(kind, body, at)
            other = rng.choice((value + 1, value - 1, rng.choice(NUMBERS), -1))
            wide = 8 * struct.calcsize(kind)
            other = (other + (1 << (wide - 1))) % (1 << wide) - (1 << (wide - 1))
            struct.pack_into(kind, body, at, other)
        else:
            body = bytearray(_cut_or_flipped(rng, bytes(body)))
    digest = blake2b(body, digest_size=16).digest()
    return bytes(body) + (digest if rng.randrange(8) else rng.randbytes(16))


KEYS = KeyIndex.of(
    "user",
    "bytes",
    INDEX.entries,
    [
        (hashes_of([b"a", b"b", b"a"]), np.array([0, 3, 39])),
        (hashes_of([]), np.array([], np.int64)),
        (hashes_of([b"a"]), np.array([2])),
    ],
)
_KEYS_BODY = KEYS.encode()[:-16]


def _read_keys(data: bytes, _: Path) -> bool:
    try:
        keys = KeyIndex.parse(data, url="keys")
    except MalformedIndex:
        return False
    assert keys.encode() == data
    shards, records, missing = keys.find([b"a", b"b", b"c"])
    assert 0 <= missing <= 3
    assert all(records[shards == n].max(initial=-1) < own for n, own in enumerate(keys.counts))
    return True


LENGTHS = LengthIndex.of(
    "tokens",
    INDEX.entries,
    [
        (np.arange(40), np.full(40, 50)),
        (np.array([], np.int64), np.array([], np.int64)),
        (np.array([5, 0, 7]), np.full(3, 16)),
    ],
)
_LENGTHS_BODY = LENGTHS.encode()[:-16]


def _read_lengths(data: bytes, _: Path) -> bool:
    try:
        lengths = LengthIndex.parse(data, url="lengths")
    except MalformedIndex:
        return False
    assert lengths.encode() == data
    for entry in INDEX.entries:
        found = lengths.of_shard(entry)
        assert found is None or found.sizes.sum() == entry.size
    return True


def _read_index(data: bytes, _: Path) -> bool:
    try:
        index = Index.parse(data, url="index")
    except MalformedIndex:
        return False
    if data[8] == 2:
        assert index.encode() == data
    chunks = index.chunks()
    assert (chunks.end > chunks.begin).all()
    assert (chunks.records > 0).all()
    assert chunks.records.sum() == index.records
    assert [index.find([e.name]) for e in index.entries] == list(range(len(index.entries)))
    assert index.digest()
    return True


# -- documents -------------------------------------------------------------------------------------

_SETTINGS: dict[str, Any] = {"shard_bytes": None, "tasks": 1, "compression": "none", "index": True}
_SHARD: dict[str, Any] = {
    "records": 3,
    "bytes": 90,
    "begins": [0, 60],
    "first_records": [0, 2],
    "crcs": [7, 8],
}


def _part(settings: WriteSettings, *names: str) -> TaskPart:
    return TaskPart(
        settings=settings,
        complete=True,
        features={"id": "int64", "x": "bytes"},
        shards=[IndexedShard(name=name, **_SHARD) for name in names],
        place=SourcePlace(version="1", pieces=2, amount=90, skipped=0, records=[6]),
    )


_FIXED = WriteSettings(**_SETTINGS, shards=2, labels={"cat": 0}, source={"path": "é"})
_FREE = WriteSettings(**_SETTINGS, shards=None, labels={"f": {"cat": 0}}, source="v")
PARTS = (
    _part(_FIXED, NAMES.shard(0, 2), NAMES.shard(1, 2)),
    _part(_FREE, NAMES.staged(TASK, 0), NAMES.staged(TASK, 1)),
)
MANIFEST = Manifest(
    written_by="streamrec 1",
    records=6,
    bytes=180,
    features={"id": "int64", "x": "bytes"},
    settings=_FIXED,
    tasks=[6],
    shards=[ShardFacts(name=NAMES.shard(n, 2), records=3, bytes=90) for n in range(2)],
)


def _changed_document(rng: random.Random, documents: tuple[Any, ...]) -> bytes:
    document = rng.choice(documents)
    return _text(rng, _changed(rng, json.loads(document.encode())))


def _read_manifest(data: bytes, _: Path) -> bool:
    manifest = Manifest.parse(data)
    if manifest is None:
        return False
    _is_exact(json.loads(data), manifest.model_dump())
    assert _again(manifest) == manifest.encode()
    manifest.find_damaged({})
    assert len(manifest.tasks) == manifest.settings.tasks
    assert manifest.records == sum(shard.records for shard in manifest.shards)
    return True


def _read_part(data: bytes, _: Path) -> bool:
    part = TaskPart.parse(data)
    if part is None:
        return False
    _is_exact(json.loads(data), part.model_dump())
    assert _again(part) == part.encode()
    try:
        if not part.has_own_names(NAMES, TASK):
            return False
    except ConfigError:
        return False
    index = Index(tuple(shard.entry for shard in part.shards))
    # It is written beside the shards.
    assert (
        not part.settings.index or Index.parse(index.encode(), url="index").records == index.records
    )
    return True


def _again(document: Any) -> bytes:
    again = type(document).parse(document.encode())
    assert again is not None
    return bytes(again.encode())


def _is_exact(given: Any, read: Any) -> None:
    """Compare what stands in a document with what was read; what is left out has a default."""
    assert type(given) is type(read), (given, read)
    if isinstance(given, dict):
        assert given.keys() <= read.keys()
        for name in given:
            _is_exact(given[name], read[name])
    elif isinstance(given, list):
        assert len(given) == len(read)
        for one, other in zip(given, read, strict=True):
            _is_exact(one, other)
    else:
        assert given == read or given != given  # NaN


# -- a state ---------------------------------------------------------------------------------------


def _positions() -> list[dict[str, Any]]:
    by_shard = Fingerprint("0123456789abcdef", 9, "shard", 4, True, 7, 1 << 20, 16)
    open_at_once = Fingerprint("0123456789abcdef", 9, "shard, 2 at once", 4, False, 0, 0, None)
    by_record = Fingerprint("0123456789abcdef", 9, "record:00ff", 4, True, 7, 0, 16)
    start = partial(Position.start, rank=1, world_size=2, epoch=3, step=40)
    points = [start(by_shard, [5, 6]), start(open_at_once, [5, 6, 7, 8]), start(by_record, [])]
    return [*(point.to_dict() for point in points), {"version": 3, "epoch": 2, "step": 9}]


STATES = _positions()


def _changed_state(rng: random.Random) -> bytes:
    state = json.loads(json.dumps(rng.choice(STATES)))
    if "packed" in state and rng.randrange(2):
        state["packed"] = _repacked(rng, state["packed"], _row_count(state))
    if rng.randrange(2):
        state = _changed(rng, state)
    return _text(rng, state)


def _row_count(state: dict[str, Any]) -> int:
    components = state.get("components", 0)
    return int(OWN + POINTS * components + max(1, components))


def _repacked(rng: random.Random, text: str, count: int) -> str:
    """Return the rows of a state with other numbers, packed as they should be."""
    rows = unpack(text, count, 2)
    for _ in range(rng.randrange(1, 4)):
        row, column = rng.randrange(len(rows)), rng.randrange(rows.shape[1])
        rows[row, column] = rng.choice((*NUMBERS[:-1], (1 << 56) - 1))
    if not rng.randrange(4):
        rows = np.concatenate([rows, rows[: rng.randrange(1, 4)]])
    return pack(rows)


def _read_state(data: bytes, _: Path) -> bool:
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return False
    try:
        point = read_resume_point(state)
        if isinstance(point, Position):
            _is_told(state, point.to_dict())
            rank, world_size = point.rank, point.world_size
            assert for_rank([point], rank, world_size) is point
        else:
            told = {"version": 3, "epoch": point.epoch, "step": point.step}
            assert told == {"epoch": 0, "step": 0, **state}
    except StateError:
        return False
    assert read_resume_point(json.loads(json.dumps(point.to_dict()))) == point
    return True


def _is_told(state: dict[str, Any], told: dict[str, Any]) -> None:
    for name, value in told.items():
        given = state[name]
        if name == "fingerprint":
            given = {key: one for key, one in given.items() if key in value or one}
        if name == "packed":
            owned = state["fingerprint"]["lanes"] // state["world_size"]
            rows = [unpack(one, _row_count(state), owned) for one in (given, value)]
            assert np.array_equal(rows[0], rows[1])
        else:
            assert given == value, name


# -- a file of tokens ------------------------------------------------------------------------------

TOKENS = "# ours\n" + "a" * 64 + "\n\n" + "0123456789abcdef" * 4 + "  \n\tfirst-of-April-2026\n"


def _changed_tokens(rng: random.Random) -> bytes:
    lines = TOKENS.splitlines(keepends=True)
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines[place] = lines[place][: rng.randrange(len(lines[place]) + 1)]
            case 1:
                lines.insert(place, rng.choice(("#\n", "\r\n", "x" * rng.choice((15, 16, MOST)))))
            case 2:
                lines[place] = lines[place].replace("\n", rng.choice(("\r", "\x0b", "\u2028")))
            case 3:
                lines = lines[place : place + 1]
            case _:
                lines[place] = rng.choice(("\ufeff", "é" * 20, "\x00" * 20, " ")) + lines[place]
    data = "".join(lines).encode()
    return _cut_or_flipped(rng, data) if not rng.randrange(4) else data


def _read_tokens(data: bytes, path: Path) -> bool:
    path.write_bytes(data)
    text = _decoded(data)
    text = text and text.removeprefix("\ufeff")  # with which some editors begin a file
    try:
        token = read_token(f"file:{path}")
    except ConfigError:
        pass
    else:
        assert text is not None
        assert token == text.strip()
        assert len(token.splitlines()) == 1
    server = ServerSettings().model_copy(update={"tokens": [str(path)]})
    try:
        tokens = Tokens(server)
    except ConfigError:
        return False
    assert text is not None
    for line in map(str.strip, text.splitlines()):
        is_one = bool(line) and not line.startswith("#")
        assert tokens.grant(line).opens("train") == is_one
        assert not is_one or LEAST <= len(line) <= MOST
    assert not tokens.grant("").opens("train")
    assert not tokens.grant("another").opens("train")
    return True


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


# -- the daemon's configuration --------------------------------------------------------------------

CONFIGURATION: dict[str, Any] = {
    "server": {
        "listen": ["tcp://127.0.0.1:0"],
        "status": "",
        "workers": 2,
        "memory_budget": "1GiB",
        "grace": 1.5,
        "insecure": False,
        "log_level": "info",
        "max_connections": 10,
    },
    "datasets": {
        "train": {
            "source": ["s3://bucket/train-*.tfrecord"],
            "batch_size": 8,
            "lanes": 4,
            "shuffle": True,
            "shuffle_window": "1MiB",
            "seed": 3,
            "epochs": 2,
            "on_corrupt": "skip",
            "corrupt_budget": 3,
            "features": {"x": {"kind": "fixed", "shape": [], "dtype": "int64"}},
            "cache": {"folder": "memory", "size": "1GiB"},
            "pack": {"length": 8},
            "storage_options": {"anon": True, "config_kwargs": {"retries": 3}},
        },
        "mix": {
            "source": {"a": "s3://bucket/a-*", "b": "s3://bucket/b-*"},
            "weights": {"a": 0.5, "b": 0.5},
            "exhausted": "stop",
            "length_buckets": 2,
        },
    },
}


def _changed_toml(rng: random.Random) -> bytes:
    values = json.loads(json.dumps(CONFIGURATION))
    for _ in range(rng.randrange(1, 3)):
        changed = _with_one_change(rng, values)
        values = changed if isinstance(changed, dict) else values
    data = _toml(values).encode(errors="surrogateescape")
    return _cut_or_flipped(rng, data) if not rng.randrange(4) else data


def _toml(values: Any) -> str:
    return "".join(f"{_key(name)} = {_toml_value(value)}\n" for name, value in values.items())


def _toml_value(value: Any) -> str:
    match value:
        case dict():
            inside = (f"{_key(name)} = {_toml_value(one)}" for name, one in value.items())
            return f"{{{', '.join(inside)}}}"
        case list():
            return f"[{', '.join(map(_toml_value, value))}]"
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf"
        case str() | None:
            return json.dumps(value or "")
    return json.dumps(value)


def _key(name: str) -> str:
    return json.dumps(name)


def _read_toml(data: bytes, path: Path) -> bool:
    path.write_bytes(data)
    try:
        settings = load_daemon(path, {}, faults)
    except ConfigError:
        return False
    given = tomllib.loads(data.decode())
    assert given.keys() <= {"server", "datasets"}
    found = settings.model_dump()
    _is_taken(given.get("server", {}), found["server"])
    for name, table in given["datasets"].items():
        _is_taken(table, found["datasets"][name])
    return True


def _is_taken(given: dict[str, Any], found: dict[str, Any]) -> None:
    """Compare settings with those that were read, where no unit or path is to be understood."""
    assert given.keys() <= found.keys()
    for name, value in given.items():
        if (name == "epochs" and value == math.inf) or (name == "cache" and value is False):
            assert found[name] is None
        elif isinstance(value, bool | int | float) and not isinstance(found[name], str | dict):
            assert found[name] == (float(value) if isinstance(found[name], float) else value), name
            assert isinstance(found[name], bool) == isinstance(value, bool), name
        elif isinstance(value, str) and isinstance(found[name], str) and name not in PLACES:
            assert found[name] == value or name in ("source", "log_level"), name


# -- changes ---------------------------------------------------------------------------------------


def _changed(rng: random.Random, document: Any) -> Any:
    for _ in range(rng.randrange(1, 4)):
        document = _with_one_change(rng, document)
    return document


def _with_one_change(rng: random.Random, value: Any) -> Any:
    """Change a place in a tree of lists and mappings: as likely deep as at the top."""
    if not isinstance(value, dict | list) or not value or not rng.randrange(12):
        return _other(rng, value)
    places = list(value) if isinstance(value, dict) else range(len(value))
    place = rng.choice(places)
    changed: Any = value.copy()
    match rng.randrange(10):
        case 0:
            del changed[place]
        case 1 if isinstance(changed, dict):
            changed[rng.choice(("x", "", "version", "\u2028", str(place) * 2))] = changed[place]
        case 1:
            changed.insert(place, changed[place])
        case _:
            changed[place] = _with_one_change(rng, value[place])
    return changed


def _other(rng: random.Random, value: Any) -> Any:
    if type(value) is int and rng.randrange(2):
        return value + rng.choice((-1, 1, 16, -16))
    if isinstance(value, str) and value and rng.randrange(2):
        place = rng.randrange(len(value))
        return value[:place] + rng.choice(("", "x", "0", "/", "..")) + value[place + 1 :]
    return rng.choice(VALUES)


def _text(rng: random.Random, document: Any) -> bytes:
    text = json.dumps(document, ensure_ascii=bool(rng.randrange(2)))
    if not rng.randrange(50):
        text = "[" * 100_000
    data = text.encode(errors="surrogatepass")
    return _cut_or_flipped(rng, data) if not rng.randrange(4) else data


def _cut_or_flipped(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    match rng.randrange(4):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place:]
        case 2:
            return data[:place] + data[place + rng.randrange(1, 20) :]
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


TARGETS = {
    "index": Target(_changed_index, _read_index),
    "index of lengths": Target(partial(_changed_index, whole=_LENGTHS_BODY), _read_lengths),
    "index of a key": Target(partial(_changed_index, whole=_KEYS_BODY), _read_keys),
    "manifest": Target(partial(_changed_document, documents=(MANIFEST,)), _read_manifest),
    "task log": Target(partial(_changed_document, documents=PARTS), _read_part),
    "state": Target(_changed_state, _read_state),
    "tokens": Target(_changed_tokens, _read_tokens),
    "toml": Target(_changed_toml, _read_toml),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile_files", description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000, help="files of each kind [100000]")
    parser.add_argument("--seed", type=int, default=1, help="of the changes [1]")
    parser.add_argument("targets", nargs="*", default=[*TARGETS], help="the kinds [all]")
    given = parser.parse_args()
    logging.disable()  # each file of tokens that others may read is told
    with TemporaryDirectory(dir="/dev/shm") as directory:
        for target in given.targets:
            began = time.monotonic()
            refused = run(target, given.runs, given.seed, Path(directory, "file"))
            seconds = time.monotonic() - began
            print(
                f"{target}: {given.runs:,} files, {refused:,} refused, {seconds:.0f} s", flush=True
            )


if __name__ == "__main__":
    main()
