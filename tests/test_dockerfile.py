"""The image's recipe, as far as it can be read without a container engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STEPS = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def step(word: str) -> list[list[str]]:
    """Return the steps of that word, split into pieces."""
    return [shlex.split(line)[1:] for line in STEPS if line.startswith(f"{word} ")]


def _as_regex(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*)", pattern)
    words = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts))


IGNORED = [_as_regex(line) for line in (ROOT / ".dockerignore").read_text().split()]


def is_ignored(path: str) -> bool:
    """Return whether the file, or a directory above it, is kept from the engine."""
    above = [path, *(parent.as_posix() for parent in Path(path).parents)]
    return any(pattern.fullmatch(name) for pattern in IGNORED for name in above)


def copied() -> list[str]:
    """Return the files that the build's steps copy, relative to the root."""
    names = [name for *sources, _ in step("COPY") for name in sources]
    paths = [ROOT / name for name in names]
    assert all(path.exists() for path in paths), names
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    found = [file.relative_to(ROOT).as_posix() for file in files if file.is_file()]
    return sorted(name for name in found if not is_ignored(name))


def test_what_the_kernel_in_c_is_built_from_is_copied() -> None:
    sources = {
        file.relative_to(ROOT).as_posix()
        for pattern in ("*.c", "*.h")
        for file in (ROOT / "streamrec" / "kernel" / "c").glob(pattern)
    }
    assert len(sources) > 10
    assert sources | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= set(copied())


def test_all_of_the_package_is_copied() -> None:
    package = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("streamrec/**/*.py")}
    assert package <= set(copied())


@pytest.mark.parametrize(
    "name",
    [
        "streamrec/kernel/_native.abi3.so",
        "streamrec/kernel/__pycache__/choice.cpython-312.pyc",
        "build/lib/streamrec/__init__.py",
        "streamrec.egg-info/PKG-INFO",
        ".git/config",
        ".venv/bin/python",
        "tests/test_dockerfile.py",
        "streamrec/.mypy_cache/x",
    ],
)
def test_what_this_machine_made_is_not(name: str) -> None:
    assert is_ignored(name)


def test_there_is_no_image_without_the_kernel_in_c() -> None:
    compiler, wheel = next(run for run in step("RUN") if "gcc" in run), step("RUN")[1]
    assert "libc6-dev" in compiler
    assert "STREAMREC_BUILD_KERNEL=require" in wheel
    assert [word for word in wheel if word in ("wheel", ".")] == ["wheel", "."]


def test_the_image_that_runs_has_no_compiler_and_a_user_without_rights() -> None:
    begins = [number for number, line in enumerate(STEPS) if line.startswith("FROM ")]
    assert len(begins) == 2
    runs = "\n".join(STEPS[begins[1] :])
    assert "gcc" not in runs
    assert not re.search("^COPY", runs, re.MULTILINE)
    assert "from=build,source=/wheels,target=/wheels" in runs
    assert step("USER") == [["10001"]]
