"""Relative paths are bound to the directory in which they are named."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

import streamrec as sr
from streamrec.config.places import absolute, absolute_source, command_for, escape, unescape

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("place", "bound"),
    [
        ("shards/a", "/data/shards/a"),
        ("file://shards/a", "file:///data/shards/a"),
        ("/shards/a", "/shards/a"),
        ("s3://bucket/a::b", "s3://bucket/a::b"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
        ("zip://in/*.csv::a.zip", "zip://in/*.csv::/data/a.zip"),
        ("zip://in::file://a.zip", "zip://in::file:///data/a.zip"),
        ("local://shards/a", "local:///data/shards/a"),
        ("zip://in::local://a.zip", "zip://in::local:///data/a.zip"),
        ("zip://in::local:///a.zip", "zip://in::local:///a.zip"),
        ("zip://in::/a.zip", "zip://in::/a.zip"),
        ("zip://in::s3://bucket/a.zip", "zip://in::s3://bucket/a.zip"),
        ("simplecache::zip://in::tar://b.zip::c.tar", "simplecache::zip://in::tar://b.zip::/data/c.tar"),
    ],
)  # fmt: skip
def test_absolute(place: str, bound: str) -> None:
    assert absolute(place, "/data") == bound


def test_the_directory_of_a_pattern_is_a_plain_name() -> None:
    assert absolute_source("zip://*::a*.zip", "/d[1]") == "zip://*::/d[[]1[]]/a*.zip"


def test_an_archive_is_found_after_the_directory_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"one")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.tfrecord", "in/a.tfrecord")
    monkeypatch.chdir(tmp_path)
    stream = sr.open("zip://in/*.tfrecord::a.zip", engine="thread")
    os.chdir("/")
    with stream:
        assert list(stream) == [b"one"]


@pytest.mark.parametrize("name", ["plain", "a[1]{b}@c?*", "[*]", "[", "]"])
def test_what_is_escaped_is_a_name_again(name: str) -> None:
    assert unescape(escape(name)) == name


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"source": "/x/t-*"}, "`streamrec index '/x/t-*' --key id`"),
        ({"source": ["a", "b"]}, "`streamrec index a b --key id`"),
        ({"source": ["a"] * 4}, "`streamrec index URL --key id`"),
        ({"source": {"web": "a"}}, "`streamrec index URL --key id`"),
        ({}, "`streamrec index URL --key id`"),
        (
            {"source": "x", "index": True, "split": "a+b"},
            "`streamrec index x --split SPLIT --key id` for each split",
        ),
        (
            {"source": "x", "split": "all"},
            "`streamrec index x --split SPLIT --key id` for each split",
        ),
        ({"source": "x", "split": "a[:9%]"}, "`streamrec index x --split a --key id`"),
        (
            {"source": {"w": "a"}, "split": {"w": "b"}},
            "`streamrec index URL --split SPLIT --key id` for each split",
        ),
        ({"source": "x", "index": "y.i"}, "`streamrec index x --output y.i --key id`"),
        ({"source": "http://me:secret@h/x"}, "`streamrec index http://h/x --key id`"),
    ],
)
def test_the_command_for_a_source(settings: dict[str, Any], command: str) -> None:
    assert command_for("index", settings, "--key", "id") == command


@pytest.mark.parametrize(
    ("split", "given"),
    [("a", "split=a"), ("a[:9%]+b", "'split=a[:9%]+b'"), ({"w": "b"}, "split=SPLIT")],
)
def test_the_command_for_a_split_without_an_index(split: object, given: str) -> None:
    command = command_for("which", {"source": "x", "split": split}, "--key", "id")
    assert command == f"`streamrec which x --set {given} --key id`"
