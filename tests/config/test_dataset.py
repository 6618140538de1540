from __future__ import annotations

import tomllib

import pytest

from streamrec.config import DatasetSettings, StreamSettings, validate
from streamrec.errors import ConfigError


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
