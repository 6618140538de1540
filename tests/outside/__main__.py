"""The command line: ``python -m tests.outside``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.outside.pictures import pictures, pictures_of_tensorflow
from tests.outside.programs import samplings, stores
from tests.outside.tables import tables
from tests.outside.tensorflow_tests import tensorflow_tests
from tests.outside.texts import json_checker, json_test_suite
from tests.outside.torchdata_tests import states

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.outside.result import Result

SUITES: dict[str, list[Callable[[], Result]]] = {
    "pictures": [pictures, pictures_of_tensorflow],
    "json": [json_checker, json_test_suite],
    "csv": [tables],
    "samplings": [samplings],
    "stores": [stores],
    "tensorflow": [tensorflow_tests],
    "states": [states],
}


def main(names: list[str]) -> int:
    """Run suites; print a table, and the differences below it."""
    results = [suite() for name in names or SUITES for suite in SUITES[name]]
    print("| suite | cases | agree | differ as told | faults |\n|---|---|---|---|---|")
    print(*(result.row() for result in results), sep="\n")
    for result in results:
        print(*result.lines(), sep="\n", end="\n" if result.lines() else "")
    return int(any(result.faults for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
