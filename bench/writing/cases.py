"""The cases of the bench of writers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bench.measure import Case, Comparison
from bench.writing.bert import SCRIPT
from bench.writing.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.writing.place import Place

LATENCY = 0.05
OURS = (
    "columns by block",
    "ShardedWriter, columns",
    "encode_example and write",
    "ShardedWriter, one by one",
)
PEERS = {
    "TensorFlow": "tensorflow",
    "tfrecord package": "tfrecord",
    "WebDataset": "webdataset",
    "MosaicML MDS": "streaming",
    "Ray Data": "ray",
    "plain upload, boto3": "boto3",
}
"""The modules that other writers need."""
MODULES = {**PEERS, SCRIPT: "official"}
"""The modules that those and other converters need."""
LOCAL = (*OURS, *list(PEERS)[:-1], "plain files")
REMOTE = (*OURS, *list(PEERS)[2:])
"""Where the writers of TensorFlow and of the ``tfrecord`` package write no objects."""
CONVERSIONS = {
    "folder of pictures, as they are": ("pictures", ("read and copied", "streamrec write")),
    "folder of pictures, encoded anew": (
        "pictures",
        ("read, decoded and encoded", "streamrec write --encode jpeg"),
    ),
    "text for BERT": ("text.txt", (SCRIPT, "streamrec write --kind bert")),
    "table of CSV": (
        "table.csv",
        ("streamrec write --workers 1", "streamrec write --workers 2"),
    ),
}
"""The source of each group, and its ways, the first of which the other is compared with."""


def cases_of(
    place: Place, warm_up: str, kinds: Sequence[str], size: float, peers_python: str
) -> list[Case]:
    """Return the cases of all writers to a place, those that are not installed included."""
    where, ways = ("store", REMOTE) if place.bucket else ("local disk", LOCAL)
    return [
        _case(f"{kind}, {where}", way, _arguments(place, warm_up, kind, way, size), peers_python)
        for kind in kinds
        for way in ways
    ]


def _arguments(place: Place, warm_up: str, kind: str, way: str, size: float) -> dict[str, object]:
    records = max(100, round(KINDS[kind].records * size))
    return {
        "kind": kind,
        "way": way,
        "records": records,
        "directory": place.directory,
        "warm_up": warm_up,
        "storage_options": dict(place.storage_options),
        "variables": place.variables(),
    }


def _case(group: str, way: str, arguments: dict[str, object], peers_python: str) -> Case:
    variables = arguments.pop("variables")
    assert isinstance(variables, dict)
    plain = f"{group}: {'plain upload, boto3' if 'store' in group else 'plain files'}"
    compared = () if way.startswith("plain") else (Comparison("of plain", (plain,)),)
    return Case(
        group,
        way,
        "bench.writing.writers",
        arguments,
        python=peers_python if way in PEERS else sys.executable,
        environment=variables,
        comparisons=compared,
    )


def is_there(case: Case, versions: Mapping[str, str | None]) -> bool:
    """Return whether the module that a case needs is installed."""
    return case.name not in MODULES or versions[MODULES[case.name]] is not None


def conversions_of(directory: Path, peers_python: str) -> Iterator[Case]:
    """Yield the cases of conversions."""
    for group, (source, ways) in CONVERSIONS.items():
        compared = Comparison(f"of {ways[0]}", (f"{group}: {ways[0]}",))
        for way in ways:
            arguments = {
                "way": way,
                "source": str(directory / "all" / source),
                "few": str(directory / "few" / source),
                "dest": str(directory / "out"),
                "warm_up": str(directory / "warm"),
            }
            comparisons = () if way == ways[0] else (compared,)
            module, python = "bench.writing.conversions", sys.executable
            if way == SCRIPT:
                module, python = "bench.writing.bert", peers_python
            yield Case(group, way, module, arguments, python=python, comparisons=comparisons)
