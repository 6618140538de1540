"""Compiles the fuzz targets with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

__all__ = [
    "HERE",
    "KERNEL",
    "LINKED",
    "TARGETS",
    "CannotBuildError",
    "build",
    "find_clang",
    "kernel_sources",
    "sources",
]

HERE = Path(__file__).parent
KERNEL = HERE.parents[1] / "streamrec/kernel/c"
TARGETS = ("crc32c", "scan", "packed", "rows", "records", "examples", "sequences", "unfilter")
"""One for each entry of the kernel: each is a C file of this directory."""

# -O2: ten million executions take minutes, and what the optimizer does with undefined behaviour is
# what users would get. A finding ends the run.
FLAGS = ("-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{KERNEL}")
SANITIZERS = "address,undefined"
# Only the kernel tells the fuzzer what it executes: a new path through a harness is no discovery.
GUIDED = (f"-fsanitize=fuzzer-no-link,{SANITIZERS}", "-fno-sanitize-recover=all")
CHECKED = (f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all")
LINKED = (f"-fsanitize=fuzzer,{SANITIZERS}",)
COVERED = ("-fprofile-instr-generate", "-fcoverage-mapping")


class CannotBuildError(Exception):
    """There is no clang here, or none with libFuzzer; or it refuses a source."""


def find_clang() -> str:
    """Return the path of the first clang that can link a fuzz target.

    Raises:
        CannotBuildError: There is none.
    """
    names = ("clang", *(f"clang-{version}" for version in range(30, 11, -1)))
    for name in names:
        path = shutil.which(name)
        if path and _links(path):
            return path
    raise CannotBuildError("no clang with libFuzzer is here (Debian: clang, libclang-rt-14-dev)")


def _links(clang: str) -> bool:
    program = (
        b"int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return data == 0; }"
    )
    with tempfile.TemporaryDirectory() as directory:
        command = [clang, *LINKED, "-x", "c", "-", "-o", str(Path(directory, "target"))]
        return not subprocess.run(
            command, input=program, capture_output=True, check=False
        ).returncode


def sources() -> list[Path]:
    """Every file that a target is made of, the kernel's glue to Python not among them."""
    return [*kernel_sources(), *sorted(HERE.glob("*.[ch]"))]


def kernel_sources() -> list[Path]:
    """Return those of the sources that are the kernel's."""
    return [path for path in sorted(KERNEL.glob("*.[ch]")) if not path.stem.startswith("module")]


def build(clang: str, coverage: bool = False) -> Path:
    """Compile all targets, unless these very sources were compiled before.

    Args:
        clang: Its path.
        coverage: For ``llvm-cov``: the targets then write profiles.

    Returns:
        The directory in which each target is an executable file of its name.

    Raises:
        CannotBuildError: With what clang says.
    """
    root = Path(tempfile.gettempdir(), f"streamrec-fuzz-{os.getuid()}")
    directory = root / _fingerprint(clang, coverage)
    if directory.exists():
        return directory
    root.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as work:
        made = Path(work, "made")
        made.mkdir()
        _compile(clang, Path(work), made, COVERED if coverage else ())
        try:
            made.rename(directory)
        except OSError:  # another process was faster
            if not directory.exists():
                raise
    return directory


def _fingerprint(clang: str, coverage: bool) -> str:
    version = subprocess.run([clang, "--version"], capture_output=True, check=True).stdout
    own = Path(__file__).read_bytes()
    parts = (version, str(coverage).encode(), own, *(path.read_bytes() for path in sources()))
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()[:16]


def _compile(clang: str, work: Path, made: Path, more: tuple[str, ...]) -> None:
    files = [path for path in sources() if path.suffix == ".c"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(
            zip(files, pool.map(partial(_object, clang, work, more), files), strict=True)
        )
        shared = [
            str(objects[path]) for path in files if path.stem not in TARGETS or _is_kernel(path)
        ]
        link = partial(_link, clang, made, more, shared)
        own = {path.stem: objects[path] for path in files if not _is_kernel(path)}
        list(pool.map(lambda target: link(target, own[target]), TARGETS))


def _is_kernel(path: Path) -> bool:
    return path.parent == KERNEL


def _object(clang: str, work: Path, more: tuple[str, ...], source: Path) -> Path:
    target = work / f"{source.parent.name}-{source.stem}.o"
    sanitizers = (*GUIDED, *more) if _is_kernel(source) else CHECKED
    _run([clang, *FLAGS, *sanitizers, "-c", str(source), "-o", str(target)])
    return target


def _link(
    clang: str, made: Path, more: tuple[str, ...], shared: list[str], target: str, own: Path
) -> None:
    _run([clang, *LINKED, *more, str(own), *shared, "-o", str(made / target)])


def _run(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise CannotBuildError(finished.stderr)
