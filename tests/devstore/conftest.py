"""A store in a thread, and real clients of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from botocore.config import Config

from streamrec.devstore import DevStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def store() -> Iterator[DevStore]:
    """Yield a store in memory."""
    with DevStore() as running:
        yield running


@pytest.fixture(scope="session")
def session() -> Any:
    """Return a session that keeps botocore's data on S3, which take longer to read than a test."""
    return botocore.session.get_session()


@pytest.fixture
def client_of(session: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that makes botocore clients; keywords override the store's options."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    clients = []

    def make(store: DevStore, **options: Any) -> Any:
        config = Config(
            signature_version="s3v4",
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
        )
        arguments = {
            "region_name": "us-east-1",
            "endpoint_url": store.endpoint,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "testsecret",
            "config": config,
        }
        clients.append(session.create_client("s3", **(arguments | options)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def s3(store: DevStore, client_of: Callable[..., Any]) -> Any:
    """Return a botocore client of the store."""
    return client_of(store)
