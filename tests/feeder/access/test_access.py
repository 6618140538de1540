from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.feeder.access.access import LOOK_EVERY, Access
from tests.feeder.certificates import Authority, write_secret
from tests.feeder.support import on_both_loops, server_settings
from tests.support import asynchronous

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

A, B = "a" * 16, "b" * 16


@on_both_loops
async def test_files_are_looked_at_now_and_then(tmp_path: Path) -> None:
    authority, path = Authority(tmp_path), tmp_path / "tokens"
    write_secret(path, A)
    own = {"x": [str(path)]}
    access = Access(server_settings(tls=authority.server()), own)
    await access.look()
    assert access.certificates is not None
    before = access.certificates.context
    write_secret(path, B)
    authority.server()
    await access.look()
    assert not access.tokens.grant(B).opens("x")
    access._looked_at -= LOOK_EVERY
    await access.look()
    assert access.tokens.grant(B).opens("x")
    assert access.certificates.context is not before


@asynchronous
async def test_without_files_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(server_settings(token=A))
    monkeypatch.setattr(access, "look_now", None)
    await access.look()
