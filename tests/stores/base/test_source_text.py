from __future__ import annotations

import glob
import re
import tempfile
from pathlib import Path

import fsspec
import pytest
from fsspec.utils import glob_translate
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.config.places import split_chain
from streamrec.errors import ConfigError
from streamrec.stores.base.source_text import (
    content_name,
    expand,
    fixed_prefix,
    is_glob,
    is_hidden,
    matcher,
    names_alone,
    names_apart,
    scheme_of,
)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a", ["a"]),
        (["b", "a", "b"], ["b", "a", "b"]),
        (("a{1..2}", "c"), ["a1", "a2", "c"]),
        ("s3://b/{00008..00011}.tfrecord", [f"s3://b/{n:05}.tfrecord" for n in range(8, 12)]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{3..3}", ["3"]),
        ("{0..10}", [str(n) for n in range(11)]),
        ("{00..1}", ["00", "01"]),
        ("{a,b}{0..1}", ["a0", "a1", "b0", "b1"]),
        ("x{,.old}", ["x", "x.old"]),
        ("x-{train,test}/*", ["x-train/*", "x-test/*"]),
        ("n@2", ["n-00000-of-00002", "n-00001-of-00002"]),
        ("n.tfrecord@1", ["n.tfrecord-00000-of-00001"]),
        ("n@1.tfrecord", ["n-00000-of-00001.tfrecord"]),
        ("{a,b}@1", ["a-00000-of-00001", "b-00000-of-00001"]),
        ("s3://b/n@100000", [f"s3://b/n-{n:05}-of-100000" for n in range(100_000)]),
        ("http://user@host/x", ["http://user@host/x"]),
        ("name@host", ["name@host"]),
        ("a{b}{c", ["a{b}{c"]),
        ("*[0-9]?", ["*[0-9]?"]),
        (
            ["gcs://b/x", "GS://b/gcs://y", "gs://b/{0..1}"],
            ["gs://b/x", "gs://b/gcs://y", "gs://b/0", "gs://b/1"],
        ),
    ],
)
def test_expand(source: str | list[str], names: list[str]) -> None:
    assert expand(source) == names


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x{9..1}", "backwards"),
        ("x{0..99999999999999}", "1,000,000"),
        ("x{0..999}{0..9999}", "names 10000000 shards; .* 1,000,000 shards"),
        ("x@0", "0 shards"),
        ("x@999999999", "999999999 shards"),
    ],
)
def test_ranges_that_are_no_dataset(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        expand(source)


@given(first=st.integers(0, 500), count=st.integers(1, 50), width=st.integers(1, 8))
def test_ranges_count(first: int, count: int, width: int) -> None:
    last = first + count - 1
    names = expand(f"x-{{{first:0{width}}..{last:0{width}}}}")
    assert [int(name[2:]) for name in names] == list(range(first, last + 1))
    if len(str(last)) <= width or first >= 10 ** (width - 1):
        assert all(name == f"x-{first + n:0{width}}" for n, name in enumerate(names))


@given(st.integers(1, 300))
def test_sharded_names_sort_as_they_count(count: int) -> None:
    names = expand(f"dir/x@{count}")
    assert names == sorted(names)
    assert len(set(names)) == count


@given(st.text())
def test_any_text_is_expanded_or_refused(source: str) -> None:
    try:
        names = expand(source)
    except ConfigError:
        return
    if "{" not in source and "@" not in source:
        assert names == [source]


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("/data/x", "file"),
        ("x", "file"),
        ("C:x", "file"),
        ("file:///x", "file"),
        ("memory://x", "memory"),
        ("http://h/x", "http"),
        ("HTTPS://h/x", "http"),
        ("s3://b/x", "s3"),
        ("s3a://b/x", "s3"),
        ("gs://b/x", "gcs"),
        ("GCS://b/x", "gcs"),
        ("s3://b/a::b://c", "s3"),
        ("az://container/x", "az"),
        ("hdfs://host/x", "hdfs"),
        ("HF://datasets/x", "hf"),
        ("zip://x::s3://b/a.zip", "zip"),
        ("simplecache::s3://b/x", "simplecache"),
    ],
)
def test_schemes(url: str, scheme: str) -> None:
    assert scheme_of(url) == scheme


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("htps://h/x", "did you mean 'https'"),
        ("azure://h/x", "did you mean 'az', which adlfs reads"),
        ("hff://h/x", "did you mean 'hf', which huggingface_hub reads"),
        ("fttp://h/x", "did you mean 'ftp'[?]"),
        ("§§://h/x", "the schemes are abfs, .*, file, .* zip$"),
        ("cash::s3://b/x", "scheme 'cash'"),
    ],
)
def test_unknown_schemes(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scheme_of(url)


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://b/train-*", "s3://b/train-"),
        ("/a/?/x", "/a/"),
        ("a[0-9]", "a"),
        ("https://h/a*.tfrecord?key=1", "https://h/a"),
        ("plain", None),
        ("https://[::1]:80/x?y=*", None),
    ],
)
def test_globs_and_their_prefixes(url: str, prefix: str | None) -> None:
    assert is_glob(url) == (prefix is not None)
    assert fixed_prefix(url) == (prefix or fixed_prefix(url))


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("az://c/x", ("", "az://c/x", "")),
        ("zip://x*::s3://b/a.zip", ("", "zip://x*", "::s3://b/a.zip")),
        ("zip://x::simplecache::s3://b/a", ("", "zip://x", "::simplecache::s3://b/a")),
        ("simplecache::s3://b/x", ("simplecache::", "s3://b/x", "")),
        ("filecache::zip://x::/a.zip", ("filecache::", "zip://x", "::/a.zip")),
        ("https://[::1]/x", ("", "https://[::1]/x", "")),
        ("s3://b/a::b", ("", "s3://b/a::b", "")),
        ("/a::b", ("", "/a::b", "")),
    ],
)
def test_chains_are_taken_apart(url: str, parts: tuple[str, str, str]) -> None:
    assert split_chain(url) == parts
    assert "".join(split_chain(url)) == url


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/d/x", "/d/x"),
        ("s3://b/x?versionId=1", "s3://b/x?versionId=1"),
        ("https://u:p@h/d/x?sig=1#f", "https://h/d/x"),
        ("zip://in/x::/d/a.zip", "/d/a.zip/in/x"),
        ("zip:///in/x::/d/a.zip", "/d/a.zip/in/x"),
        ("zip://x::https://h/a.zip?sig=1", "https://h/a.zip/x"),
        ("zip://x::simplecache::s3://b/a.zip", "s3://b/a.zip/x"),
        ("zip://x::tar://in/a.zip::/d/a.tar", "/d/a.tar/in/a.zip/x"),
        ("simplecache::s3://b/x", "s3://b/x"),
    ],
)
def test_copies_have_the_same_name(url: str, name: str) -> None:
    assert content_name(url) == name


def test_a_query_tells_shards_apart_where_nothing_else_does() -> None:
    urls = [f"https://h/d/{name}?sig=swordfish{n}" for n, name in enumerate("aab")]
    first, second, third = names_apart(urls)
    assert first != second
    assert third == "b"
    assert "swordfish" not in first
    assert first in names_alone("a", urls[0]), "of a single one of them, too"
    assert names_apart([urls[0], urls[0], urls[2]]) == ["a", "a", "b"]


@given(st.text("a:/*z.", max_size=20))
def test_joined_parts_are_the_url(url: str) -> None:
    assert "".join(split_chain(url)) == url


def test_ranges_and_globs_in_chains() -> None:
    assert expand("zip://n@2::/a{1..2}.zip") == [
        f"zip://n-0000{task}-of-00002::/a{{1..2}}.zip" for task in (0, 1)
    ]
    assert is_glob("zip://*.tfrecord::/a.zip")
    assert not is_glob("zip://x::/a[1].zip")


def test_prefix_of_a_name_is_the_name() -> None:
    assert fixed_prefix("s3://b/x") == "s3://b/x"


PARTS = st.sampled_from(["a", "b", "ab", "a1", "b.c", "1"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
PATTERNS = st.lists(
    st.sampled_from(["a", "b", "ab", "*", "?", "a*", "*1", "[ab]", "[!a]*", "**", "?b"]),
    min_size=1,
    max_size=4,
).map("/".join)


@given(names=st.sets(NAMES, max_size=12), pattern=PATTERNS)
def test_globs_match_as_in_fsspec(names: set[str], pattern: str) -> None:
    files = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name in files:
        filesystem.pipe_file(f"/root/{name}", b"x")
    globbed = filesystem.glob(f"/root/{pattern}", detail=True) if files else {}
    expected = {path for path, info in globbed.items() if info["type"] == "file"}
    filesystem.store.clear()
    matches = matcher(f"/root/{pattern}")
    assert {f"/root/{name}" for name in files if matches(f"/root/{name}")} == expected


@given(st.text("ab/*?[]!-^&~|\\\n.", max_size=8), st.text("ab/-^&[]!\\\n", max_size=6))
@example("/[a-]/[!]*]", "/a/x")
@example("[z-a]", "a")
@example("[]b", "[]b")
@example("[[]a[*]", "[a*")
def test_globs_are_read_as_by_fsspec(glob: str, url: str) -> None:
    try:
        expected = re.compile(glob_translate(glob)).match(url) is not None
    except ValueError:
        with pytest.raises(ConfigError, match="can only be an entire path component"):
            matcher(glob)
        return
    assert matcher(glob)(url) == expected


HIDDEN_PARTS = st.sampled_from(["a", "b", "ab", ".a", ".b"])
HIDDEN_NAMES = st.lists(HIDDEN_PARTS, min_size=1, max_size=3).map("/".join)
DOTTED_PATTERNS = st.lists(
    st.sampled_from(["a", ".a", "*", "?a", ".*", "*b", "[.a]*", "[!a]*", "**"]),
    min_size=1,
    max_size=3,
).map("/".join)


@given(names=st.sets(HIDDEN_NAMES, max_size=12), pattern=DOTTED_PATTERNS)
@example(names={"a/.b/ab"}, pattern="a/**")
@example(names={".a/b"}, pattern="**/b")
def test_hidden_names_match_as_in_python(names: set[str], pattern: str) -> None:
    files = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    with tempfile.TemporaryDirectory() as root:
        for name in files:
            Path(root, name).parent.mkdir(parents=True, exist_ok=True)
            Path(root, name).touch()
        expected = set(glob.glob(pattern, root_dir=root, recursive=True)) & files  # noqa: PTH207
    matches = matcher(f"s3://b/{pattern}")
    assert {name for name in files if matches(f"s3://b/{name}")} == expected


@pytest.mark.parametrize(
    ("name", "hides"),
    [
        *[("a", False), ("a.b/c.", False), ("./a", False), ("../a", False), ("a/.", False)],
        *[(".a", True), ("a/.b/c", True), ("a/.b", True), ("...", True), ("..a", True)],
        *[(".\n", True), ("a/./.b", True), ("", False)],
    ],
)
def test_a_hidden_name_is_told_and_matched_by_no_star(name: str, hides: bool) -> None:
    assert is_hidden(name) == hides
    if name:
        assert matcher("s3://b/**")(f"s3://b/{name}") == (not hides)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("**/*.t", "./a.t"),
        ("*/*", "./a.t"),
        ("**", "d/./a.t"),
        ("d/**/*.t", "d/./a.t"),
        ("**/*.t", "//a.t"),
        ("d/**/*.t", "d///a.t"),
    ],
)
def test_a_dot_and_an_empty_text_are_names_of_folders(pattern: str, name: str) -> None:
    assert matcher(f"s3://b/{pattern}")(f"s3://b/{name}")
    assert not matcher(f"s3://b/{pattern}")(f"s3://b/{name.replace('a.t', '.a.t')}")


def test_stars_beside_other_characters() -> None:
    with pytest.raises(ConfigError, match="entire path component"):
        matcher("a**b")
