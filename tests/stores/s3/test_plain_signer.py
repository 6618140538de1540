from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import botocore.auth
import pytest

from streamrec.stores.s3.plain_signer import PlainSigner, plain_terms
from streamrec.stores.s3.presign import get_object, list_objects
from streamrec.stores.s3.sdk_signer import SdkSigner
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 28)  # noqa: DTZ001 - as botocore's
KEYS = {"key": "AK", "secret": "secret"}
ENDPOINT = {**KEYS, "endpoint_url": "http://127.0.0.1:1"}
ENDPOINTS = [None, "http://127.0.0.1:1", "https://Minio.example.com/", "http://[::1]:9000"]
REGIONS = [None, "eu-west-3", "us-east-1", "us-west-2", "cn-north-1", "us-gov-west-1", "auto"]
ODD_REGIONS = [" ", "eu-west-3 ", "eu_west_3", "x y", "12", "fips-us-east-1", "us-east-1-fips"]
ODD_ENDPOINTS = [
    *("http://h ", " http://h", "http://h\n", "http://h;x", "http://h\\x", "http://h_x:1"),
    *("http://h%20x", "http://ü.example", "http://h?", "http://h#", "http://h:", "http://h:99999"),
]
BUCKETS = ["bucket", "with.dots", "a-b-c", "a--ol-s3", "a-s3alias", "Upper"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("who", [KEYS, {**KEYS, "token": "to/k=n"}, {"anon": True}])
@asynchronous
async def test_botocore_signs_the_same(
    endpoint: str | None, region: str | None, who: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: NOW)
    options = {**who, **({"endpoint_url": endpoint} if endpoint else {})}
    terms = await asyncio.to_thread(plain_terms, options, region, {})
    assert (terms is not None) == (endpoint is not None or region in {"eu-west-3", "us-west-2"})
    if terms is None:
        return
    signer, sdk = PlainSigner(terms), SdkSigner(options, region)
    await sdk.prepare()
    try:
        for bucket in filter(signer.fits, BUCKETS):
            for call in (
                get_object(bucket, "a b/ü+%#?~!*'().tfrecord"),
                get_object(bucket, "//x/../y"),
                list_objects(bucket, "tr ain-/ü+&", "/", "tok/en=="),
                list_objects(bucket, "", "", "", "af ter"),
            ):
                theirs, headers = await sdk.sign(call.method, call.parameters, 600)
                assert signer.sign(call.method, call.parameters, 600) == theirs
                assert not headers
    finally:
        await sdk.aclose()


@pytest.mark.parametrize(
    ("endpoint", "fitting"),
    [(None, {"bucket", "a-b-c"}), ("http://h:1", {*BUCKETS} - {"Upper"})],
)
def test_the_buckets(endpoint: str | None, fitting: set[str]) -> None:
    terms = plain_terms({**KEYS, "endpoint_url": endpoint}, "eu-west-3", {})
    assert terms is not None
    assert set(filter(PlainSigner(terms).fits, BUCKETS)) == fitting


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({**ENDPOINT, "profile": "p"}, {}),
        ({**ENDPOINT, "requester_pays": True}, {}),
        ({**ENDPOINT, "config_kwargs": {"s3": {"addressing_style": "virtual"}}}, {}),
        ({**ENDPOINT, "client_kwargs": {"use_ssl": False}}, {}),
        ({**ENDPOINT, "session": object()}, {}),
        ({**ENDPOINT, "secret": None}, {}),
        ({**ENDPOINT, "key": ""}, {}),
        ({"endpoint_url": "http://h:1", "token": "t"}, {}),
        ({"endpoint_url": "http://h:1"}, {}),
        ({"endpoint_url": "http://h:1"}, {"AWS_ACCESS_KEY_ID": "a"}),
        ({**KEYS, "endpoint_url": "h:1"}, {}),
        ({**KEYS, "endpoint_url": "http://h:1/path"}, {}),
        ({**KEYS, "endpoint_url": "http://u:p@h:1"}, {}),
        ({**KEYS, "endpoint_url": "http://h:x"}, {}),
        ({**KEYS, "endpoint_url": "https://s3.eu-west-3.amazonaws.com"}, {}),
        (ENDPOINT, {"AWS_PROFILE": "p"}),
        (ENDPOINT, {"AWS_USE_FIPS_ENDPOINT": "true"}),
        (ENDPOINT, {"AWS_SECURITY_TOKEN": "t"}),
        (ENDPOINT, {"FSSPEC_S3_ENDPOINT_URL": "http://other"}),
        (ENDPOINT, {"AWS_CONFIG_FILE": __file__}),
        (ENDPOINT, {"AWS_DEFAULT_REGION": ""}),
        ({**ENDPOINT, "client_kwargs": {"region_name": ""}}, {"AWS_DEFAULT_REGION": "x"}),
        *(({**ENDPOINT, "client_kwargs": {"region_name": name}}, {}) for name in ODD_REGIONS),
        *(({**KEYS, "endpoint_url": endpoint}, {}) for endpoint in ODD_ENDPOINTS),
        (KEYS, {}),
    ],
)
def test_all_else_is_left_to_botocore(options: dict[str, Any], variables: dict[str, str]) -> None:
    assert plain_terms(options, None, variables) is None


@pytest.mark.parametrize("name", [".aws/config", ".aws/credentials", ".config/fsspec/conf.json"])
def test_files_at_home_are_left_to_the_libraries(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plain_terms(ENDPOINT, None, {}) is not None
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    assert plain_terms(ENDPOINT, None, {}) is None


@pytest.mark.parametrize("place", ["~/config", "$HOME/config", "${HOME}/config"])
@pytest.mark.parametrize("variable", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"])
def test_paths_of_files_are_expanded_as_botocore_does(
    variable: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert plain_terms(ENDPOINT, None, {variable: place}) is not None
    (tmp_path / "config").touch()
    assert plain_terms(ENDPOINT, None, {variable: place}) is None


@pytest.mark.parametrize(
    ("variables", "endpoint", "region"),
    [
        ({"AWS_ENDPOINT_URL_S3": "http://b", "AWS_ENDPOINT_URL": "http://c"}, "http://b", None),
        ({"AWS_ENDPOINT_URL": "http://c", "AWS_DEFAULT_REGION": "x"}, "http://c", "x"),
        ({"AWS_DEFAULT_REGION": "eu-west-3"}, None, "eu-west-3"),
    ],
)
def test_the_environment(variables: dict[str, str], endpoint: str, region: str | None) -> None:
    terms = plain_terms(KEYS, None, variables)
    assert terms is not None
    assert (terms.endpoint, terms.region) == (endpoint, region or "us-east-1")


def test_the_options_precede_the_environment() -> None:
    variables = {"AWS_ENDPOINT_URL": "http://c", "AWS_DEFAULT_REGION": "x"}
    options = {**ENDPOINT, "client_kwargs": {"region_name": "y"}}
    own, other = plain_terms(options, None, variables), plain_terms(options, "z", variables)
    assert own is not None
    assert other is not None
    assert (own.endpoint, own.region, other.region) == ("http://127.0.0.1:1", "y", "z")
    assert "secret" not in repr(own)


def test_settings_of_fsspec_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["fsspec.config"].conf, "s3", {"anon": True})
    assert plain_terms(ENDPOINT, None, {}) is None


def test_neither_s3fs_nor_a_client_is_imported() -> None:
    code = """if True:
        import sys
        from streamrec.stores.s3.plain_signer import PlainSigner, plain_terms
        from streamrec.stores.s3.s3_store import S3Store
        options = {"key": "a", "secret": "b", "endpoint_url": "http://h"}
        signer = PlainSigner(plain_terms(options, None, {}))
        assert "Signature" in signer.sign("get_object", {"Bucket": "bucket", "Key": "k"}, 9)
        heavy = {"s3fs", "fsspec", "aiobotocore", "botocore.session", "botocore.client"}
        print(sorted(heavy & sys.modules.keys()))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
