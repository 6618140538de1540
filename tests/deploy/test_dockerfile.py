"""The image's recipe, as far as it can be read without a container engine."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.deploy.dockerfile import ROOT, copied, instructions, is_ignored, stages


def test_the_kernel_s_sources_are_copied() -> None:
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
        "tests/deploy/test_dockerfile.py",
        "deploy/feeder.toml",
        "streamrec/.mypy_cache/x",
    ],
)
def test_local_files_are_not(name: str) -> None:
    assert is_ignored(name)


def test_there_is_no_image_without_the_kernel_in_c() -> None:
    build, _ = stages()
    runs = [one.words for one in build if one.word == "RUN"]
    compiler, wheel = next(words for words in runs if "gcc" in words), runs[-1]
    assert "libc6-dev" in compiler
    assert wheel[:3] == ["STREAMREC_BUILD_KERNEL=require", "pip", "wheel"]
    assert wheel[-1] == ".[image]"
    assert "STREAMREC_KERNEL=native" in instructions("ENV")[-1].words


def test_the_image_that_runs_has_no_compiler_and_a_user_without_rights() -> None:
    build, image = stages()
    assert (build[0].words[0], build[0].words[1:]) == (image[0].text, ["AS", "build"])
    runs = "\n".join(one.text for one in image if one.word == "RUN")
    assert "gcc" not in runs
    assert not [one for one in image if one.word in ("COPY", "ADD")]
    assert "from=build,source=/wheels,target=/wheels" in runs
    assert [one.text for one in image if one.word == "USER"] == ["10001:10001"]


def test_no_shell_stands_between_the_engine_and_the_feeder() -> None:
    (entrypoint,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entrypoint.text) == ["streamrec"]
    assert json.loads(command.text) == ["serve", "/etc/streamrec/feeder.toml"]
    (check,) = instructions("HEALTHCHECK")
    assert "/readyz" in json.loads(check.text.partition("CMD ")[2])[-1]


@pytest.mark.skipif(not shutil.which("hadolint"), reason="hadolint is not installed")
def test_its_linter_finds_nothing() -> None:
    command = ["hadolint", "--no-color", str(ROOT / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
