from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiobotocore.session import AioSession

from streamrec.stores.s3.presign import get_object
from streamrec.stores.s3.sdk_signer import SdkSigner
from tests.stores.s3.test_presign import LISTING, opened
from tests.stores.s3.test_presign import OPTIONS as PLAIN
from tests.support import asynchronous

if TYPE_CHECKING:
    import pytest

    from streamrec.stores.s3.presign import Presigner

OPTIONS = {**PLAIN, "config_kwargs": {"read_timeout": 3}}
"""Options that need botocore's client."""


def signer_of(presigner: Presigner) -> SdkSigner:
    assert presigner._sdk is not None
    return presigner._sdk


@asynchronous
async def test_renewed_clients_are_closed_in_the_end() -> None:
    async with opened(OPTIONS) as presigner:
        signed, _ = await presigner.sign("", LISTING)
        before = signer_of(presigner)._client
        await presigner.renew("s3://b/x", signed)
        await presigner.renew("s3://b/x", signed)
        again, _ = await presigner.sign("", LISTING)
        assert again.era == signed.era + 1
        assert signer_of(presigner)._client is not before
        assert signer_of(presigner)._retired == [before]
    assert signer_of(presigner)._retired == []


@asynchronous
async def test_closing_makes_no_client() -> None:
    signer = SdkSigner(OPTIONS, None)
    await signer.aclose()
    assert signer._filesystem._s3 is None


@asynchronous
async def test_many_at_once_make_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    create = AioSession.create_client

    def counted(session: AioSession, service: str, **settings: Any) -> Any:
        made.append(service)
        return create(session, service, **settings)

    monkeypatch.setattr(AioSession, "create_client", counted)
    async with opened(OPTIONS) as presigner:
        calls = [get_object("bucket", f"{number}") for number in range(20)]
        await asyncio.gather(*(presigner.sign("", call) for call in calls))
    assert made == ["s3"]


@asynchronous
async def test_sessions_share_the_descriptions_of_services_alone() -> None:
    async with opened(OPTIONS) as one, opened(OPTIONS) as other:
        for presigner in (one, other):
            await presigner.sign("", LISTING)
        sessions = signer_of(one)._filesystem.session, signer_of(other)._filesystem.session
        loaders = [session.get_component("data_loader") for session in sessions]
    assert sessions[0] is not sessions[1]
    assert loaders[0] is loaders[1]
