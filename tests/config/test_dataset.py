from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from streamrec.config import DatasetSettings, StreamSettings, validate
from streamrec.config.dataset import Pack
from streamrec.errors import ConfigError


def test_the_defaults() -> None:
    pack = Pack(8)
    assert (pack.split, pack.bins, pack.overlong) == (False, 16, "truncate")
    assert (pack.documents, pack.padding) == (None, 0)


def test_a_pack_of_numbers_of_numpy() -> None:
    eight: Any = np.int64(8)
    assert repr(Pack({"a": eight}, bins=eight)) == repr(Pack({"a": 8}, bins=8))
    given = Pack(eight, documents=eight, padding=eight)
    assert repr(given) == repr(Pack(8, documents=8, padding=8))


@pytest.mark.parametrize(
    ("pack", "size"),
    [
        (Pack(8), 2 * 16 * 8 * 16),
        (Pack(8, bins=1), 2 * 8 * 16),
        (Pack(8, split=True), 2 * 8 * 16),
        (Pack({"a": 8, "b": 4}, bins=3), 2 * 3 * 12 * 16),
    ],
)
def test_the_bytes_of_packs(pack: Pack, size: int) -> None:
    """Those being filled, and as many that are ready: 16 bytes for each value."""
    assert pack.held_bytes == size


@pytest.mark.parametrize(
    "options",
    [
        {"length": 1, "bins": 1, "documents": 1},
        {"length": {"a": 1, "b": 2}},
        {"length": {"a": 2, "b": 2}, "split": True},
        {"length": 2, "split": True, "overlong": "drop"},
    ],
)
def test_what_serves(options: Any) -> None:
    Pack(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0}, "integers from 1 up"),
        ({"length": -1}, "integers from 1 up"),
        ({"length": 1.5}, "integers from 1 up"),
        ({"length": {}}, "integers from 1 up"),
        ({"length": {"a": 1, "b": 0}}, "integers from 1 up"),
        ({"length": 1, "bins": 0}, "integers from 1 up"),
        ({"length": 1, "documents": 0}, "integers from 1 up"),
        ({"length": 1, "overlong": "cut"}, "overlong of a Pack is 'cut'"),
        ({"length": 1, "split": True, "documents": 2}, "one length for all features"),
        ({"length": {"a": 1, "b": 2}, "split": True}, "one length for all features"),
    ],
)
def test_what_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Pack(**options)


def test_defaults_are_those_of_the_documentation() -> None:
    settings = validate(StreamSettings, {"source": "x"})
    assert settings.model_dump() == {
        "source": "x",
        "features": None,
        "split": None,
        "rename": None,
        "dtypes": None,
        "batch_size": None,
        "shuffle": False,
        "seed": 0,
        "shuffle_window": 256 << 20,
        "lanes": "auto",
        "index": None,
        "epochs": 1,
        "steps_per_epoch": None,
        "remainder": None,
        "weights": None,
        "exhausted": "repeat",
        "ordered": True,
        "filter": None,
        "map": None,
        "transform": None,
        "pack": None,
        "window": None,
        "length_buckets": None,
        "balance": None,
        "check_crc": True,
        "on_corrupt": "raise",
        "corrupt_budget": 0,
        "quarantine": None,
        "exclude": None,
        "compression": "auto",
        "memory_budget": "auto",
        "max_record_bytes": "auto",
        "max_bytes": "auto",
        "max_pixels": "auto",
        "max_concurrency": "auto",
        "fetch_processes": 0,
        "prefetch": "auto",
        "stall_timeout": 300.0,
        "cache": None,
        "storage_options": None,
        "rank": "auto",
        "world_size": "auto",
        "engine": None,
        "restart": False,
        "audit": None,
    }


def test_the_dataset_part_leaves_out_who_reads() -> None:
    settings = validate(StreamSettings, {"source": "x", "batch_size": 3, "rank": 1})
    part = settings.dataset()
    assert type(part) is DatasetSettings
    assert part == validate(DatasetSettings, {"source": "x", "batch_size": 3})


@pytest.mark.parametrize(
    ("written", "meant"),
    [("GZIP", "gzip"), ("ZLIB", "zlib"), ("", "none"), (None, "none"), ("Zstd", "zstd")],
)
def test_compressions_have_tensorflows_names_too(written: str | None, meant: str) -> None:
    values = {"source": "x", "compression": written}
    assert validate(StreamSettings, values).compression == meant


@pytest.mark.parametrize("wrong", ["bzip2", 2, True])
def test_an_unknown_compression(wrong: object) -> None:
    with pytest.raises(ConfigError, match=f"'compression' is {wrong!r} but must be 'auto' or"):
        validate(StreamSettings, {"source": "x", "compression": wrong})


def test_a_file_says_inf_for_a_run_without_end() -> None:
    (epochs,) = tomllib.loads("epochs = inf").values()
    assert validate(DatasetSettings, {"source": "x", "epochs": epochs}).epochs is None
    with pytest.raises(ConfigError, match="'epochs'"):
        validate(DatasetSettings, {"source": "x", "epochs": -epochs})
