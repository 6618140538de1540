from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from gcsfs.credentials import GoogleCredentials
from google.auth.compute_engine import Credentials as ComputeCredentials
from google.auth.exceptions import DefaultCredentialsError, TransportError
from google.oauth2.credentials import Credentials

from streamrec.devstore import DevStore, FaultRule
from streamrec.errors import AccessDenied, ConfigError, ObjectNotFound, StoreError
from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.stores.gcs.google_credentials import filesystem, plain_login

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


GCSFS_BODIES = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture
def store() -> Iterator[DevStore]:
    with DevStore() as devstore:
        devstore.objects.create_bucket("bucket")
        yield devstore


def put_file(store: DevStore, file: Path, place: str) -> None:
    with translate_errors(f"gs://{place}", writing=True):
        filesystem(store.gcs_options).put_file(str(file), place)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endpoint": "http://127.0.0.1:1"}, "no option 'endpoint'; it is 'endpoint_url'"),
        ({"key": "a"}, "no option 'key'"),
        ({"asynchronous": True}, "no option 'asynchronous'"),
        ({"access": "all"}, "'access'"),
        ({"token": 7}, "'token'"),
        ({"token": {"untold": "untold"}}, "'token'"),
        ({"token": "/nowhere/key.json"}, "no token file /nowhere/key.json"),
    ],
)
def test_options_that_do_not_serve(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        filesystem(options)
    assert "untold" not in str(caught.value)


def test_it_speaks_http_only() -> None:
    found = filesystem({"token": "anon"})
    assert type(found).__module__ == "gcsfs.core"
    assert found.credentials.credentials is None
    assert found is filesystem({"token": "anon"})
    assert found is not filesystem({"token": "anon"}, asynchronous=True)


def test_a_bare_token_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any, **__: Any) -> None:
        raise AssertionError("a server of Google's is asked")

    monkeypatch.setattr("requests.get", ask)
    found = filesystem({"token": "ya29.bare"})
    assert found.credentials.credentials.token == "ya29.bare"
    assert found is filesystem({"token": "ya29.bare"})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return the requests to a machine's metadata server, which google-auth does not find."""
    monkeypatch.delenv("NO_GCE_CHECK")
    monkeypatch.setattr("google.auth.default", Mock(side_effect=DefaultCredentialsError("none")))
    asked = Mock(side_effect=TransportError("there is none"))
    monkeypatch.setattr("google.auth.compute_engine.Credentials.refresh", asked)
    return asked


def test_a_machine_without_a_metadata_server_is_not_asked_again(machine: Mock) -> None:
    found = filesystem({}, asynchronous=True)
    assert found.credentials.credentials is None
    assert machine.call_count == 0


def test_a_login_that_gcsfs_keeps_serves(machine: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Credentials("kept")
    monkeypatch.setattr(GoogleCredentials, "tokens", {("p", "full_control"): kept})
    assert filesystem({"project": "p"}, asynchronous=True).credentials.credentials is kept
    assert machine.call_count == 0


def test_where_google_auth_finds_another_project_the_machine_is_asked(
    machine: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Mock(return_value=(Credentials("other"), "other"))
    monkeypatch.setattr("google.auth.default", found)
    machine.side_effect = None
    opened = filesystem({"project": "ours"}, asynchronous=True)
    assert isinstance(opened.credentials.credentials, ComputeCredentials)
    assert machine.call_count == 1


def test_credentials_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "user.json"
    user = {"client_id": "i", "client_secret": "s", "refresh_token": "r"}
    file.write_text(json.dumps({"type": "authorized_user", **user}))
    for token in (str(file), user):
        credentials = filesystem({"token": token}).credentials.credentials
        assert isinstance(credentials, Credentials)
        assert credentials.refresh_token == "r"


@GCSFS_BODIES
@pytest.mark.parametrize("size", [0, 1000, 6 << 20])
def test_uploads(store: DevStore, tmp_path: Path, size: int) -> None:
    file = tmp_path / "x"
    file.write_bytes(bytes(range(250)) * (size // 250 + 1))
    put_file(store, file, "bucket/a b/x")
    assert store.objects["bucket/a b/x"] == file.read_bytes()


@pytest.mark.parametrize(
    ("status", "kind"), [(403, AccessDenied), (404, ObjectNotFound), (400, StoreError)]
)
def test_refused_uploads(
    store: DevStore, tmp_path: Path, status: int, kind: type[StoreError]
) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"data")
    store.faults = [FaultRule(status=status)]
    with pytest.raises(kind) as caught:
        put_file(store, file, "bucket/x")
    assert type(caught.value) is kind
    assert dict(store.objects) == {}


@GCSFS_BODIES
def test_an_upload_in_parts_that_fails_leaves_nothing(store: DevStore, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(bytes(6 << 20))
    store.faults = [FaultRule(method="POST", nth=2, status=403)]
    with pytest.raises(AccessDenied):
        put_file(store, file, "bucket/x")
    assert dict(store.objects) == {}


class TestPlainLogin:
    """The login without gcsfs is the one that gcsfs makes, or none."""

    @pytest.fixture(autouse=True)
    def at_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        return tmp_path

    @pytest.mark.parametrize("endpoint", [None, "http://host:1", "http://host:1/"])
    @pytest.mark.parametrize("token", ["anon", "ya29.token"])
    def test_it_is_gcsfs_s(self, token: str, endpoint: str | None) -> None:
        options = {"token": token, "endpoint_url": endpoint}
        login, theirs = plain_login(options), filesystem(options, asynchronous=True)
        assert login is not None
        assert login.endpoint == theirs.base.removesuffix("/storage/v1/").rstrip("/")
        # The same object: a token's credentials are kept.
        assert login.credentials is theirs.credentials.credentials
        assert "ya29" not in repr(login)

    def test_default_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found, asked = Credentials("token"), Mock()
        asked.return_value = found, "project"
        monkeypatch.setattr("google.auth.default", asked)
        login, theirs = plain_login({}), filesystem({}, asynchronous=True)
        assert login is not None
        assert login.credentials is found is theirs.credentials.credentials
        assert [call.kwargs["scopes"] for call in asked.mock_calls] == [
            ["https://www.googleapis.com/auth/devstorage.full_control"]
        ] * 2

    def test_without_any_credentials_nobody_reads(self, machine: Mock) -> None:
        login = plain_login({})
        assert login is not None
        assert login.credentials is None

    @pytest.mark.parametrize(
        "options",
        [
            {"token": "anon", "project": "p"},
            {"token": "anon", "requester_pays": True},
            {"token": {"client_id": "x"}},
            {"token": "cloud"},
            {"token": "cache"},
            {"token": "anon", "session_kwargs": {}},
        ],
    )
    def test_other_options_are_left_to_gcsfs(self, options: dict[str, Any]) -> None:
        assert plain_login(options) is None

    @pytest.mark.parametrize(
        "name", ["STORAGE_EMULATOR_HOST", "FSSPEC_GCS_PROJECT", "GOOGLE_API_USE_MTLS_ENDPOINT"]
    )
    def test_variables_of_gcsfs_are_left_to_it(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, "x")
        assert plain_login({"token": "anon"}) is None

    def test_tokens_that_gcsfs_keeps_are_left_to_it(self, machine: Mock, at_home: Path) -> None:
        (at_home / ".gcs_tokens").touch()
        assert plain_login({}) is None

    def test_neither_gcsfs_nor_requests_is_imported(self) -> None:
        code = """if True:
            import sys
            from streamrec.stores.gcs.gcs_store import GCSStore
            from streamrec.stores.gcs.google_credentials import plain_login
            from streamrec.stores.gcs.bearer_token import BearerToken
            BearerToken(plain_login({"token": "anon"}).credentials)
            print(sorted({"gcsfs", "fsspec", "grpc", "requests"} & sys.modules.keys()))
        """
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]"
