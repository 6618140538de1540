"""Holds imports against ``pyproject.toml``, both ways."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.test_layers import COMPUTED, FILES, ROOT, imports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
FOR_PEOPLE = {"bench", "deploy", "dev", "docs", "release"}
"""Extras of those who work on streamrec; the package imports nothing of them."""
MODULES = {
    "backports-zstd": "backports.zstd",
    "google-auth": "google.auth",
    "nvidia-nvimgcodec-cu12": "nvidia.nvimgcodec",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "orbax-checkpoint": "orbax.checkpoint",
    "pillow": "PIL",
    "protobuf": "google.protobuf",
}
"""The modules of distributions that have another name."""
COME_ALONG = {
    "compression": "the standard library, from Python 3.14 on",
    "google.oauth2": "google-auth",
    "opentelemetry.trace": "opentelemetry-sdk",
}
"""Modules that are in no distribution of their own."""
NOT_DECLARED = {
    "ml_dtypes": "for bfloat16 alone; comes with jax and tensorflow, and the error names it",
    "xxhash": "for MDS shards with such hashes; comes with Streaming, and the error names it",
}


def distributions() -> dict[str, str]:
    """Return the module of each distribution that is declared for users."""
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    of_extras = (line for name in extras.keys() - FOR_PEOPLE for line in extras[name])
    lines = [*PROJECT["dependencies"], *of_extras]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace(".", "-") for line in lines}
    return {
        name: MODULES.get(name, name.replace("-", "_"))
        for name in names - {"streamrec"}  # an extra that holds another one
    }


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of others that a file imports, by a call of its own too."""
    for name in imports(path, for_types=True):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "streamrec"}:
            yield name


def names_in(path: Path) -> Iterator[str]:
    """Yield the texts that calls in a file are given, such as ``library("PIL.Image")``."""
    for node in ast.walk(ast.parse(path.read_text())):
        for argument in node.args if isinstance(node, ast.Call) else ():
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def is_in(name: str, modules: Iterable[str]) -> bool:
    """Return whether a name is one of the modules, or beneath one."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def is_around(name: str, modules: Iterable[str]) -> bool:
    """Return whether a package, such as ``google``, holds one of the modules."""
    return any(module.startswith(f"{name}.") for module in modules)


def undeclared(files: list[Path]) -> list[str]:
    known = {*distributions().values(), *COME_ALONG, *NOT_DECLARED}
    return [
        f"{path} imports {name}, which pyproject.toml does not declare"
        for path in files
        for name in imported(path)
        if name != COMPUTED and not is_in(name, known) and not is_around(name, known)
    ]


def unused(files: list[Path]) -> list[str]:
    used = {name for path in files for find in (imported, names_in) for name in find(path)}
    return [
        name
        for name, module in distributions().items()
        if not any(is_in(one, [module]) for one in used)
    ]


def test_what_is_imported_is_declared() -> None:
    assert undeclared(FILES) == []


def test_what_is_declared_is_imported() -> None:
    assert unused(FILES) == []


def test_the_tables_have_no_line_too_many() -> None:
    used = {name for path in FILES for name in imported(path)}
    for name in (*COME_ALONG, *NOT_DECLARED):
        assert any(is_in(one, [name]) for one in used), name
    assert distributions().keys() >= MODULES.keys()


@pytest.mark.parametrize(
    "text", ["import boto3", "from boto3.session import Session", "import_module('boto3')"]
)
def test_each_import_of_what_is_not_declared_is_seen(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(f"{text}\nimport os\nimport google.auth.transport\nfrom yarl import URL\n")
    (found, *_) = undeclared([path])
    assert found.startswith(f"{path} imports boto3")


def test_each_distribution_that_nothing_imports_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("import yarl\nlibrary('PIL.Image')\n")
    found = unused([path])
    assert "aiohttp" in found
    assert not {"yarl", "pillow"} & set(found)
