"""Suites that others made, run against streamrec; by hand, and every night.

    python -m tests.outside [pictures] [json] [csv] [samplings] [stores]

What a suite needs is fetched from Debian's sources (``apt-get source``), and never kept: the
licences are those of its authors. A suite without what it needs is told as missing, and is not a
failure. Each case agrees, differs for a reason that stands in ``KNOWN``, or is a fault: then the
exit code is 1.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.errors import StreamrecError
from streamrec.formats.examples.example import Example
from streamrec.formats.images.image import decode_image
from streamrec.shard_tools.sources.delimited import open_delimited
from streamrec.shard_tools.sources.json_lines import json_object
from streamrec.shard_tools.sources.table_values import RowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCES = Path("/etc/apt/sources.list.d")
TABLES = 1000
PICTURES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".apng")
_BY_PILLOW = "something stands between the segments, so Pillow decodes, by the accurate transform"
_LONGER = "more bytes than the pixels take, which TensorFlow refuses"
_PASSED_OVER = "no palette, or bytes between blocks, which TensorFlow refuses"
KNOWN: dict[str, dict[str, str]] = {
    "Pillow's test images beside TensorFlow": {
        "hopper_bad_exif.jpg": _BY_PILLOW,
        "jpeg_ff00_header.jpg": _BY_PILLOW,
        "junk_jpeg_header.jpg": _BY_PILLOW,
        "photoshop-200dpi-broken.jpg": _BY_PILLOW,
        "truncated_app14.jpg": _BY_PILLOW,
        "mmap_error.bmp": _LONGER,
        "pal8_offset.bmp": _LONGER,
        "rgb24lprof.bmp": _LONGER,
        "rgb24prof.bmp": _LONGER,
        "hopper_zero_comment_subblocks.gif": _PASSED_OVER,
        "issue_2811.gif": _PASSED_OVER,
        "no_palette.gif": _PASSED_OVER,
        "no_palette_after_rgb.gif": _PASSED_OVER,
    },
}
"""Why a case differs, by suite; docs/reference/formats.md tells each reason."""


@dataclass
class Result:
    """The cases of one suite."""

    suite: str
    agreeing: int = 0
    differing: dict[str, str] = field(default_factory=dict)
    """What was found, by case."""
    missing: str = ""
    """What the suite needs and is not here."""

    @property
    def faults(self) -> dict[str, str]:
        """The differences without a known reason."""
        known = KNOWN.get(self.suite, {})
        return {case: what for case, what in self.differing.items() if case not in known}

    def row(self) -> str:
        """Return the result as a row of a table."""
        if self.missing:
            return f"| {self.suite} | | | | needs {self.missing} |"
        cases, told = self.agreeing + len(self.differing), len(self.differing) - len(self.faults)
        return f"| {self.suite} | {cases} | {self.agreeing} | {told} | {len(self.faults)} |"


@contextmanager
def debian_source(package: str) -> Iterator[Path | None]:
    """Unpack a package's original source; yield ``None`` where it cannot be had."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        yield _unpacked(package, place) if shutil.which("apt-get") else None


def _unpacked(package: str, place: Path) -> Path | None:
    """Fetch through lists of our own, since a machine mostly has none of sources."""
    (place / "parts").mkdir()
    (place / "lists/partial").mkdir(parents=True)
    for file in SOURCES.glob("debian*.sources"):
        text = re.sub(r"(?m)^Types: .*", "Types: deb-src", file.read_text())
        (place / "parts" / file.name).write_text(text)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(place / "parts"),
        "Dir::State::lists": str(place / "lists"),
        "APT::Sandbox::User": "root",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    for step in (["update"], ["source", "--download-only", package]):
        done = subprocess.run([*command, *step], cwd=place, capture_output=True, check=False)
        if done.returncode:
            return None
    found = next(place.glob("*.orig.tar.*"), None)
    if found is None:
        return None
    with tarfile.open(found) as archive:
        archive.extractall(place / "source", filter="data")
    return place / "source"


def pictures() -> Result:
    """Pillow's test images, decoded as TensorFlow decodes them."""
    result = Result("Pillow's test images beside TensorFlow")
    try:
        import tensorflow as tf
    except ImportError:
        result.missing = "tensorflow"
        return result
    with debian_source("pillow") as source:
        if source is None:
            result.missing = "Debian's source of pillow"
            return result
        for path in sorted(source.rglob("Tests/images/**/*")):
            if path.suffix.lower() in PICTURES and path.is_file():
                contents = path.read_bytes()
                theirs = _tried(lambda data: tf.io.decode_image(data).numpy(), contents)
                ours = _tried(decode_image, contents)
                _compare(result, path.name, ours, theirs)
    return result


def _tried(decode: Callable[[Any], Any], given: Any) -> Any:
    """Return what a function gives, or the error of what it refuses."""
    try:
        return decode(given)
    except Exception as error:  # noqa: BLE001 - TensorFlow raises many; others are faults of ours
        return error


def _compare(result: Result, case: str, ours: Any, theirs: Any) -> None:
    refused = [isinstance(one, Exception) for one in (ours, theirs)]
    if refused[0] and not isinstance(ours, StreamrecError):
        result.differing[case] = f"raises {ours!r}"
    elif refused == [True, True] or (not any(refused) and np.array_equal(ours, theirs)):
        result.agreeing += 1
    elif refused[0]:
        result.differing[case] = f"refused: {ours}"[:200]
    elif refused[1]:
        result.differing[case] = f"decoded, but TensorFlow says {theirs}"[:200]
    elif ours.shape != theirs.shape:
        result.differing[case] = f"has the shape {ours.shape}, not {theirs.shape}"
    else:
        most = np.abs(ours.astype(int) - theirs.astype(int)).max()
        result.differing[case] = f"differs by {most} at most"


def json_texts() -> Result:
    """The texts of JSON_checker, as the values of a row, beside Python's json."""
    result = Result("JSON_checker's texts")
    with debian_source("libjsoncpp") as source:
        if source is None:
            result.missing = "Debian's source of libjsoncpp"
            return result
        for path in sorted(source.rglob("jsonchecker/*.json")):
            row = b'{"value": ' + path.read_bytes() + b"}"
            is_right = not isinstance(_tried(json.loads, row), Exception)
            ours = _tried(json_object, row)
            if isinstance(ours, Exception) and not isinstance(ours, RowError):
                result.differing[path.name] = f"raises {ours!r}"
            elif isinstance(ours, Exception) == is_right:
                result.differing[path.name] = f"gave {ours!r}"[:200]
            else:
                result.agreeing += 1
    return result


def tables(seed: int = 1) -> Result:
    """Random tables, beside Python's csv."""
    result, random = Result("random CSV beside Python's csv"), Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "table.csv")
        for number in range(TABLES):
            text = _table(random)
            path.write_bytes(text.encode())
            expected = list(csv.DictReader(io.StringIO(text, newline="")))
            if (found := _tried(_rows, path)) == expected:
                result.agreeing += 1
            else:
                result.differing[f"table {number}"] = f"{text!r}: {found!r}"[:400]
    return result


def _table(random: Random) -> str:
    """Return a table with quotes, separators and line ends in its values."""
    file = io.StringIO(newline="")
    ends = random.choice(["\n", "\r\n"])
    quoting: Any = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    writer = csv.writer(file, lineterminator=ends, quoting=quoting)
    columns = random.randrange(2, 5)
    writer.writerow([f"name {i}" for i in range(columns)])
    parts = ['"', '""', ",", "\n", "\r\n", "a", "ü", " ", "'", "\\", "\t", ";", "1.5", "\u2028"]
    for _ in range(random.randrange(1, 8)):
        row = ["".join(random.choices(parts, k=random.randrange(5))) for _ in range(columns)]
        writer.writerow(["x", *row[1:]])  # the first column keeps rows from being empty
    return file.getvalue()


def _rows(path: Path) -> list[dict[str, str]]:
    names = next(csv.reader(io.StringIO(path.read_text(), newline="")))
    source = open_delimited(str(path), types=dict.fromkeys(names, "bytes"))
    found: list[dict[str, str]] = []

    def refuse(error: Exception) -> None:
        raise error

    for piece in source.pieces():
        for record in source.read(piece, refuse).records.to_list():
            features = Example.FromString(record).features.feature
            found.append({name: features[name].bytes_list.value[0].decode() for name in names})
    return found


def samplings() -> Result:
    """All samplings that libjpeg's tool writes, decoded as TensorFlow decodes them."""
    result = Result("tests of all samplings that cjpeg writes")
    if shutil.which("cjpeg") is None:
        result.missing = "cjpeg (libjpeg-turbo-progs)"
        return result
    return _by_pytest(result, "tests/formats/test_differential_image.py", "-k", "TestSamplings")


def stores() -> Result:
    """The suite of stores against moto, rclone, and what STREAMREC_TEST_S3_OTHERS names."""
    result = Result("moto, rclone and Swift as stores")
    with ExitStack() as stack:
        named = os.environ.get("STREAMREC_TEST_S3_OTHERS", "")
        servers = list(filter(None, [named, _moto(stack), _rclone(stack)]))
        if not servers:
            result.missing = "moto_server or rclone"
            return result
        return _by_pytest(result, "tests/stores/test_s3_others.py", others=";".join(servers))


def _moto(stack: ExitStack) -> str:
    program = shutil.which("moto_server")
    return _server(stack, "moto", [program, "-H", "127.0.0.1", "-p", "{port}"]) if program else ""


def _rclone(stack: ExitStack) -> str:
    program = shutil.which("rclone")
    if program is None:
        return ""
    place = stack.enter_context(tempfile.TemporaryDirectory())
    more = ["--addr", "127.0.0.1:{port}", "--auth-key", "test,testsecret"]
    more += ["--vfs-cache-mode", "writes", place]
    return _server(stack, "rclone", [program, "serve", "s3", *more])


def _server(stack: ExitStack, name: str, command: list[str]) -> str:
    """Start a server at a free port; return how tests name it, once it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.format(port=port) for word in command]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=quiet, stderr=quiet)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    for _ in range(300):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return f"{name}=http://127.0.0.1:{port},test,testsecret"
        time.sleep(0.1)
    return ""


def _by_pytest(result: Result, *arguments: str, others: str = "") -> Result:
    """Count what pytest says of tests, each of which is a case."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--hypothesis-profile=night"]
    environment = {**os.environ, "STREAMREC_TEST_S3_OTHERS": others, "CI": ""}
    done = subprocess.run(
        [*command, "--timeout", "3600", *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    for case, what in re.findall(r"(?m)^(?:FAILED|ERROR) \S+?::(\S+)(.*)", done.stdout):
        result.differing[case] = what.removeprefix(" - ")[:200]
    result.agreeing = sum(map(int, re.findall(r"\b(\d+) passed", done.stdout)))
    if not result.agreeing and not result.differing:
        result.differing["pytest"] = done.stdout[-400:]
    return result


SUITES = {
    "pictures": pictures,
    "json": json_texts,
    "csv": tables,
    "samplings": samplings,
    "stores": stores,
}


def main(names: list[str]) -> int:
    """Run suites; print a table, and the differences below it."""
    results = [SUITES[name]() for name in names or SUITES]
    print("| suite | cases | agree | differ as told | faults |\n|---|---|---|---|---|")
    print(*(result.row() for result in results), sep="\n")
    for result in results:
        for case, what in result.differing.items():
            print(f"{result.suite}: {case}: {KNOWN.get(result.suite, {}).get(case, what)}")
    return int(any(result.faults for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
