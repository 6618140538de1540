from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import DaemonSettings, DatasetSettings, StreamSettings, load_daemon, validate
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults_are_those_of_the_documentation() -> None:
    settings = validate(StreamSettings, {"source": "x"})
    assert settings.model_dump() == {
        "source": "x",
        "features": None,
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
        "length_buckets": None,
        "check_crc": True,
        "on_corrupt": "raise",
        "corrupt_budget": 0,
        "quarantine": None,
        "compression": "auto",
        "memory_budget": "auto",
        "max_record_bytes": "auto",
        "max_concurrency": "auto",
        "prefetch": "auto",
        "stall_timeout": 300.0,
        "storage_options": None,
        "rank": "auto",
        "world_size": "auto",
        "engine": None,
    }


def test_the_dataset_part_leaves_out_who_reads() -> None:
    settings = validate(StreamSettings, {"source": "x", "batch_size": 3, "rank": 1})
    part = settings.dataset()
    assert type(part) is DatasetSettings
    assert part == validate(DatasetSettings, {"source": "x", "batch_size": 3})


def test_sizes_are_read_with_their_units() -> None:
    settings = validate(DatasetSettings, {"source": "x", "shuffle_window": "1.5GiB"})
    assert settings.shuffle_window == 3 << 29


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batchsize": 3}, "no setting 'batchsize'; did you mean 'batch_size'?"),
        ({"zzz": 3}, "no setting 'zzz'; there are batch_size, "),
        ({"batch_size": 0}, "'batch_size' is 0 and should be greater than 0"),
        ({"batch_size": "many"}, "'batch_size' is 'many' and should be a valid integer"),
        ({"seed": -1}, "'seed'"),
        ({"length_buckets": 1}, "'length_buckets' is 1 and should be greater than or equal to 2"),
        ({"length_buckets": 4, "pack": {"length": 8}}, "'length_buckets' has no effect on packs"),
        ({"length_buckets": 4, "ordered": False}, "'length_buckets' needs all lanes in step"),
        ({"remainder": "kep"}, "'remainder' is 'kep' and should be 'keep', 'drop' or 'pad'"),
        ({"max_record_bytes": 0}, "'max_record_bytes' is 0 and should be greater than 0 or 'auto'"),
        ({"memory_budget": "1MiB"}, "'memory_budget' is less than the 8 MiB"),
        ({"source": []}, "'source' names no shard"),
        ({"source": ["a", ""]}, "'source' names no shard"),
        (
            {"lanes": 0, "epochs": 0},
            "'lanes' is 0 and should be greater than 0 or 'auto'; the setting 'epochs' is 0",
        ),
    ],
)
def test_every_wrong_setting_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(DatasetSettings, {"source": "x", **values})
    assert "\n" not in str(caught.value)


def test_a_missing_setting() -> None:
    with pytest.raises(ConfigError, match=r"^the setting 'source' is missing; add it$"):
        validate(DatasetSettings, {})


def write(directory: Path, text: str) -> Path:
    path = directory / "streamrec.toml"
    path.write_text(text)
    return path


def test_a_daemon_file(tmp_path: Path) -> None:
    settings = load_daemon(
        write(
            tmp_path,
            """
            [server]
            listen = ["tcp://127.0.0.1:0"]
            token = "secret"

            [datasets.train]
            source = "s3://bucket/train-*"
            batch_size = 8
            shuffle_window = "1MiB"
            """,
        )
    )
    assert settings.datasets["train"].shuffle_window == 1 << 20
    assert settings.server.status == "127.0.0.1:7071"
    assert "secret" not in repr(settings)


def test_the_status_port_can_be_switched_off(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nstatus=''\n[datasets.a]\nsource='x'")
    assert load_daemon(path).server.status is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[datasets.a]\nsource='x'\nsufle=1",
            "no setting 'datasets.a.sufle'; did you mean 'shuffle'",
        ),
        ("[server]\nlisen=[]\n[datasets.a]\nsource='x'", "'server.lisen'; did you mean 'listen'"),
        ("[datasets]", "'datasets'"),
        ("[server", "not TOML"),
        ("[server]\nidle_timeout=0\n[datasets.a]\nsource='x'", "'server.idle_timeout' is 0"),
        ("[server]\nidle_timeout=inf\n[datasets.a]\nsource='x'", "less than or equal to 1"),
        ("[severs]\n[datasets.a]\nsource='x'", "no setting 'severs'; did you mean 'server'"),
    ],
)
def test_a_wrong_daemon_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_daemon(path)
    assert str(path) in str(caught.value)


def test_a_missing_daemon_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_daemon(tmp_path / "none.toml")


def test_daemon_settings_have_the_same_names_as_a_streams() -> None:
    assert set(DatasetSettings.model_fields) <= set(StreamSettings.model_fields)
    assert DaemonSettings.model_fields["datasets"].annotation == dict[str, DatasetSettings]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("GZIP", "gzip"), ("ZLIB", "zlib"), ("", "none"), (None, "none"), ("Zstd", "zstd")],
)
def test_compressions_have_tensorflows_names_too(written: str | None, meant: str) -> None:
    values = {"source": "x", "compression": written}
    assert validate(StreamSettings, values).compression == meant


@pytest.mark.parametrize("wrong", ["bzip2", 2, True])
def test_an_unknown_compression(wrong: object) -> None:
    with pytest.raises(ConfigError, match=f"'compression' is {wrong!r} and should be 'auto' or"):
        validate(StreamSettings, {"source": "x", "compression": wrong})
