from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError, FeederRefused
from streamrec.feeder.access import tokens
from streamrec.feeder.access import tokens as module
from streamrec.feeder.access.tokens import (
    MOST,
    SecretFiles,
    Tokens,
    read_file,
    read_secret,
    read_token,
    read_token_async,
)
from tests.feeder.certificates import write_secret
from tests.feeder.support import server_settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def number(tmp_path: Path) -> Path:
    """A file that holds the number 1."""
    path = tmp_path / "number"
    write_secret(path, "1")
    return path


def numbers(*paths: Path) -> SecretFiles[list[int]]:
    def load() -> list[int]:
        found = [read_secret(str(path), "numbers") for path in paths]
        if not all(data.isdigit() for data in found):
            raise ConfigError("there is no number")
        return [int(data) for data in found]

    return SecretFiles(map(str, paths), load, "the numbers")


def test_files_are_followed(number: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    found = numbers(number)
    assert found.value == [1]
    found.look()
    assert caplog.records == []
    write_secret(number, "2")
    found.look()
    found.look()
    assert found.value == [2]
    assert [one.getMessage() for one in caplog.records] == [
        "the numbers have changed: new clients need what their files hold now"
    ]


@pytest.mark.parametrize("change", ["nonsense", "gone"])
def test_what_cannot_be_used_changes_nothing(
    number: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    found = numbers(number)
    if change == "gone":
        number.unlink()
    else:
        write_secret(number, "two")
    for _ in range(3):
        found.look()
    assert found.value == [1]
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith("the numbers stay as they were: ")
    write_secret(number, "3")
    found.look()
    assert found.value == [3]


def test_two_files_that_change_one_after_the_other(number: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_secret(other, "10")
    found = numbers(number, other)
    write_secret(number, "two")
    found.look()
    write_secret(other, "20")
    found.look()
    assert found.value == [1, 10]
    write_secret(number, "2")
    found.look()
    assert found.value == [2, 20]


def test_nothing_to_begin_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"numbers: .*/none cannot be read \(No such file"):
        numbers(tmp_path / "none")


def test_no_path() -> None:
    with pytest.raises(ConfigError, match="this is not a path"):
        read_file("a\0b", "setting")


def test_too_large_a_file(number: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_BYTES", 3)
    write_secret(number, "1234")
    with pytest.raises(ConfigError, match=r"setting: .* has more than 3 bytes"):
        read_secret(str(number), "setting")


@pytest.mark.parametrize(("mode", "warns"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_others_should_not_read_secrets(
    number: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: int
) -> None:
    number.chmod(mode)
    assert read_secret(str(number), "setting") == b"1"
    assert len(caplog.records) == warns
    assert all(f"its mode is {mode:03o}" in one.getMessage() for one in caplog.records)


@pytest.mark.parametrize("token", [None, "", "secret", "/path", "profile:x"])
def test_a_token_is_itself(token: str | None) -> None:
    assert read_token(token) == token
    assert asyncio.run(read_token_async(token)) == token


@pytest.mark.parametrize("content", ["secret", "secret\n", "  secret \r\n", "\ufeffsecret\r\n"])
def test_a_file_holds_a_token(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    assert read_token(f"file:{tmp_path}/token") == "secret"
    assert asyncio.run(read_token_async(f"file:{tmp_path}/token")) == "secret"
    assert read_token(f"file://{tmp_path}/token") == "secret"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty, too large, or not text; name a file with the token alone"),
        (b" \n", "is empty"),
        (b"x" * (MOST + 1), "too large"),
        (b"\xff\xfe", "not text"),
        (b"first\nsecond\n", "has several lines.*a client shows one token"),
        (None, r"token: .* cannot be read \(No such file"),
    ],
)
def test_a_file_without_a_token(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_token(f"file:{tmp_path}/token")
    with pytest.raises(ConfigError, match=words):
        asyncio.run(read_token_async(f"file:{tmp_path}/token"))


A, B, C = "a" * 16, "b" * 16, "c" * 16


def known(*paths: str, token: str | None = None, own: Any = None) -> Tokens:
    return Tokens(server_settings(tokens=list(paths), token=token), own)


def opened(tokens: Tokens, token: str, *names: str) -> list[str]:
    grant = tokens.grant(token)
    return [name for name in names if grant.opens(name)]


def test_nobody_needs_a_token_where_there_is_none() -> None:
    for given_one in ("", A):
        assert opened(known(), given_one, "x", "none") == ["x", "none"]


@pytest.mark.parametrize("inline", [A, None])
def test_a_token_for_everything(inline: str | None, tmp_path: Path) -> None:
    files = [] if inline else [write_secret(tmp_path / "a", A)]
    tokens = known(*files, token=inline)
    assert opened(tokens, A, "x", "none") == ["x", "none"]
    for wrong in ("", A[1:], A + "a", "\ud800"):
        assert opened(tokens, wrong, "x", "none") == []


def test_several_are_valid_at_once_and_rotate(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    write_secret(path, f"\ufeff{A}\r\n# the old one\n\n  {B}  \n")
    tokens = known(str(path))
    assert [opened(tokens, one, "x") for one in (A, B, C)] == [["x"], ["x"], []]
    write_secret(path, f"{B}\n{C}\n")
    tokens.look()
    assert [opened(tokens, one, "x") for one in (A, B, C)] == [[], ["x"], ["x"]]
    write_secret(path, "")
    tokens.look()
    assert [opened(tokens, one, "x") for one in (A, B, C)] == [[], ["x"], ["x"]]


def test_tokens_of_datasets(tmp_path: Path) -> None:
    paths = {name: write_secret(tmp_path / name, text) for name, text in [("x", A), ("y", B)]}
    own = {"x": [paths["x"]], "y": [paths["x"], paths["y"]], "open": []}
    tokens = known(own=own)
    names = ("x", "y", "open", "none")
    assert opened(tokens, A, *names) == [*names]
    assert opened(tokens, B, *names) == ["y", "open", "none"]
    assert opened(tokens, C, *names) == ["open", "none"]
    both = known(token=C, own=own)
    assert opened(both, A, *names) == ["x", "y"]
    assert opened(both, C, *names) == [*names]
    assert opened(both, "", *names) == []


@pytest.mark.parametrize(
    ("given_one", "words"),
    [
        ("", "a token is needed: give token="),
        (A, "does not open the dataset 'y'"),
        (C, "the token is wrong, or no longer valid"),
    ],
)
def test_a_refusal_has_a_code_and_no_secret(given_one: str, words: str, tmp_path: Path) -> None:
    own = {name: [write_secret(tmp_path / name, text)] for name, text in [("x", A), ("y", B)]}
    grant = known(own=own).grant(given_one)
    with pytest.raises(FeederRefused, match=words) as caught:
        grant.check("y", shows_token=bool(given_one))
    assert caught.value.code == "token"
    assert not any(secret in repr(caught.value) for secret in (A, B, C))


@given(st.lists(st.text("ab", min_size=16, max_size=17)), st.text("ab", max_size=17))
def test_it_opens_what_it_is_equal_to(accepted: list[str], one: str) -> None:
    tokens = known()
    tokens._inline = [module._inline(token) for token in accepted]
    assert tokens.grant(one).opens("x") == (one in accepted or not accepted)


def test_all_are_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    tokens = known(
        write_secret(tmp_path / "a", f"{A}\n{B}"), token=C, own={"x": [str(tmp_path / "a")]}
    )
    for one in (A, C, "", "d"):
        compared.clear()
        tokens.grant(one)
        assert len(compared) == 5
        assert {len(digest) for digest in compared} == {32}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no token"),
        ("# nothing", "holds no token"),
        (f"{A}\nshort", "has less than 16 characters"),
        ("x" * 40_000, "or more than 32768"),
        (b"\xff\xfe" + A.encode(), "is not UTF-8"),
    ],
)
def test_files_that_cannot_be_used(text: str | bytes, words: str, tmp_path: Path) -> None:
    path = write_secret(tmp_path / "tokens", text)
    for setting, arguments in [("server", ((path,), {})), ("datasets.x", ((), {"x": [path]}))]:
        paths, own = arguments
        with pytest.raises(ConfigError, match=f"{setting}.tokens: .*{words}") as caught:
            known(*paths, own=own)
        assert not any(secret in str(caught.value) for secret in (A, "short"))


def test_a_short_token_of_the_settings_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    known(token="short")
    assert "server.token has less than 16 characters" in caplog.text
    assert "short" not in caplog.text.replace("openssl", "")


def test_equal_are_those_that_open_the_same(tmp_path: Path) -> None:
    one, other = (write_secret(tmp_path / name, A) for name in "xy")
    assert known(one) == known(other) == known(token=A)
    assert known(one) != known(one, token=B)
    assert known(one) != known(own={"x": [one]})
    assert known(one) != A


def test_their_repr_has_no_secret(tmp_path: Path) -> None:
    tokens = known(write_secret(tmp_path / "a", f"{A}\n{B}"), own={"x": [str(tmp_path / "a")]})
    assert repr(tokens) == "<Tokens: 2 for all datasets, 1 datasets with their own>"
