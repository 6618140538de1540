"""torchdata's tests of states, over streams.

    python -m tests.outside.torchdata_states CHECKOUT inside|instead

Its data sets are replaced by a stream of as many records. ``inside``: torchdata's loader reads
ours; ``instead``: ours stands for it. The counts are printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
import warnings
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamrec as sr
from streamrec.adapters.torch import as_loader
from tests.adapters.torch_shards import write_examples

if TYPE_CHECKING:
    from collections.abc import Iterator

STATES = "test/stateful_dataloader/test_state_dict.py"
OF_ITS_OWN = {
    "TestConcurrentDataLoaders": "compares torch's loader with torchdata's",
    "test_init_error": "an error of torchdata's workers",
    "test_iteration_error": "an error of a data set by index",
    "test_initial_state": "looks into torchdata's state",
    "test_load_state_after_initial_state_dict": "looks into torchdata's state",
    "TestDynamicState": "looks into torchdata's state",
    "TestDatasetIteratorStateDuplication": "looks into torchdata's state",
    "TestSingleIterCalled": "looks into torchdata's state",
    "TestNumWorkersMismatch": "refuses another number of workers, with which ours go on",
    "TestOutOfOrder": "workers that overtake each other",
    "TestNotStatefulSampler": "samplers, which streams do not have",
}
"""Tests that are left out, and why."""
MIDPOINTS = (0, 1, 4, 9)


class Data:
    """A stream in place of a data set."""

    root: Path

    def __init__(self, records: int, *, shuffle: bool = False, tells_epochs: bool = False) -> None:
        self.length, self._shuffle, self._tells_epochs = records, shuffle, tells_epochs

    def __len__(self) -> int:
        return self.length

    def loader(self, batch_size: int | None, *, shuffle: bool) -> Any:
        """Open a stream anew."""
        place = self.root / str(self.length)
        if not place.exists():
            place.mkdir()
            write_examples(place, self.length)
        features = {"id": sr.FixedLenFeature((), "int64")}
        settings: dict[str, Any] = {"lanes": 2, "index": True, "engine": "thread"}
        stream = sr.open(
            str(place / "*.tfrecord"), features, batch_size=batch_size, shuffle_window=300,
            shuffle=shuffle or self._shuffle, **settings,
        )  # fmt: skip
        return as_loader(stream)

    def plain(self, item: Any) -> Any:
        """Return what torchdata's tests compare."""
        ids = item["id"].tolist()
        return [(one, item.epoch) for one in ids] if self._tells_epochs else ids


def inside(dataset: Data, *, num_workers: int = 0, batch_size: int | None = 1,
           shuffle: bool = False, persistent_workers: bool = False,
           snapshot_every_n_steps: int = 1, **_: Any) -> Any:  # fmt: skip
    """Return torchdata's loader over ours; more than one worker would be refused."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        dataset.loader(batch_size, shuffle=shuffle),
        batch_size=None,
        num_workers=min(num_workers, 1),
        persistent_workers=persistent_workers and num_workers > 0,
        snapshot_every_n_steps=snapshot_every_n_steps,
        collate_fn=dataset.plain,
    )


class Instead:
    """Our loader in place of torchdata's."""

    def __init__(
        self, dataset: Data, *, batch_size: int | None = 1, shuffle: bool = False, **_: Any
    ) -> None:
        self._dataset = dataset
        self._loader = dataset.loader(batch_size, shuffle=shuffle)
        self.state_dict = self._loader.state_dict
        self.load_state_dict = self._loader.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        return map(self._dataset.plain, iter(self._loader))

    def __len__(self) -> int:
        return len(self._loader)


def of_sizes(sizes: Any, *given: Any, shuffle: bool = False, **_: Any) -> Data:
    """Stand for a data set of some numbers, or of the sums of numbers."""
    count = sizes if isinstance(sizes, int) else None
    if count is None:
        count = sizes[-1] + 1 if sizes[:2] == [0, 1] else sum(sizes)  # samples, or sizes
    return Data(count, shuffle=shuffle, tells_epochs=given == (True,))


def load(root: Path, path: str, name: str) -> Any:
    """Import a file of the checkout."""
    spec = spec_from_file_location(name, root / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patched(root: Path, loader: Any) -> Any:
    """Return torchdata's tests, with streams."""
    module = load(root, STATES, "states")
    module.StatefulDataLoader = loader
    for name in (
        "DummyIterableDataset", "DummyIteratorIterableDataset", "DummyMapDataset",
        "CountIterCallsIter", "GeneratorIterable", "GeneratorIterableNoState",
    ):  # fmt: skip
        setattr(module, name, of_sizes)
    module.PeriodicStateIterableDataset = lambda: Data(100)
    module.DummySampler = lambda *_: None
    return module


def of_nodes(root: Path) -> unittest.TestSuite:
    """Return the tests of nodes that go through all places where a state is saved."""
    sys.path.insert(0, str(root / "test"))
    utils = import_module("nodes.utils")

    class Ended(Instead):
        """A loader that gives nothing behind an end; streams go on with the next epoch."""

        def __iter__(self) -> Iterator[Any]:
            return iter(())

    def loader(node: Data, *, restart_on_stop_iteration: bool = True) -> Instead:
        kind = Instead if restart_on_stop_iteration else Ended
        return kind(node, batch_size=None)

    setattr(utils, "Loader", loader)  # noqa: B010 - it has no type
    suite = unittest.TestSuite()
    for midpoint in MIDPOINTS:
        for shuffle in (False, True):

            def run(midpoint: int = midpoint, shuffle: bool = shuffle) -> None:
                case = unittest.TestCase()
                utils.run_test_save_load_state(case, Data(10, shuffle=shuffle), midpoint)

            name = f"nodes, midpoint {midpoint}, shuffle {shuffle}"
            suite.addTest(unittest.FunctionTestCase(run, description=name))
    return suite


def main(root: Path, way: str) -> None:
    """Run the tests of a checkout, and print the counts."""
    module = patched(root, inside if way == "inside" else Instead)
    suite = of_nodes(root) if way == "instead" else unittest.TestSuite()
    for case in unittest.defaultTestLoader.loadTestsFromModule(module):
        tests: Any = case
        for test in tests:
            if not any(name in test.id() for name in OF_ITS_OWN):
                suite.addTest(test)
    with tempfile.TemporaryDirectory() as directory, Path(os.devnull).open("w") as quiet:
        Data.root = Path(directory)
        warnings.simplefilter("ignore")
        count = suite.countTestCases()
        found = unittest.TextTestRunner(quiet).run(suite)
    wrong = {
        test.shortDescription() or test.id(): text[-600:]
        for test, text in found.failures + found.errors
    }
    print(json.dumps({"tests": count, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
