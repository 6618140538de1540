"""What several test files share, as the import of their frameworks takes seconds."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests.adapters.torch_shards import write_examples

TRAINERS = {"trained": ("accelerate", "transformers"), "evaluated": ("lightning",)}
"""Programs of one process, and what each imports besides what those before it do."""


@pytest.fixture(scope="session")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the programs of test_huggingface.py and test_evaluation.py say."""
    # pytest may load this file before it knows the profile, by which test files choose their cases.
    from tests.adapters.test_torch_training import RECORDS
    from tests.adapters.test_torch_workers import cases_of, start

    source = write_examples(tmp_path_factory.mktemp("examples"), RECORDS)
    programs = [name for name, imports in TRAINERS.items() if all(map(find_spec, imports))]
    place = tmp_path_factory.mktemp("trainers")
    said = cases_of(start(",".join(programs), source, "trainer_programs", MEETING=place))
    return dict(zip(programs, said, strict=True))
