from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.config import DaemonSettings, DatasetSettings, StreamSettings, load_daemon
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


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
