"""The Dockerfile as its instructions, and the files that it copies."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word, and the rest of the line."""

    word: str
    text: str

    @property
    def words(self) -> list[str]:
        """The rest, split as a shell would; or the list that it is."""
        if self.text.startswith("["):
            parsed: list[str] = json.loads(self.text)
            return parsed
        return shlex.split(self.text)


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage, the FROM first."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    found: list[list[Instruction]] = []
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if word:
            found[-1].append(Instruction(word, rest.strip()))
    return found


def instructions(word: str) -> list[Instruction]:
    """Return the instructions of that word, of all stages."""
    return [one for stage in stages() for one in stage if one.word == word]


def _as_regex(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*)", pattern)
    words = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts))


IGNORED = [_as_regex(line) for line in (ROOT / ".dockerignore").read_text().split()]


def is_ignored(path: str) -> bool:
    """Return whether the file, or a directory above it, is kept from the engine."""
    above = [path, *(parent.as_posix() for parent in Path(path).parents)]
    return any(pattern.fullmatch(name) for pattern in IGNORED for name in above)


def files_of(name: str) -> list[str]:
    """Return the files that copying a name copies, relative to the root."""
    path = ROOT / name
    assert path.exists(), name
    files = path.rglob("*") if path.is_dir() else [path]
    found = [file.relative_to(ROOT).as_posix() for file in files if file.is_file()]
    return [name for name in found if not is_ignored(name)]


def copied() -> list[str]:
    """Return the files that the build's steps copy, relative to the root."""
    names = [name for one in instructions("COPY") for name in one.words[:-1]]
    return sorted(file for name in names for file in files_of(name))
