from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.demo import processes
from streamrec.demo.processes import feeder, store
from streamrec.errors import StreamrecError
from streamrec.feeder.operate.configuration import load
from tests.demo.support import SMALL

if TYPE_CHECKING:
    from pathlib import Path


def test_the_store(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    with store(tmp_path, SMALL) as child:
        answer = child.ready()
        assert answer["endpoint"].startswith("http://127.0.0.1:")
        assert answer["pid"] == child.process.pid
    assert child.process.returncode == 0


def test_closing_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "buckets").mkdir()
    child = store(tmp_path, SMALL)
    child.ready()
    child.close()
    child.close()
    assert child.process.returncode == 0


def test_the_feeder_and_its_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "buckets" / processes.BUCKET).mkdir(parents=True)
    with store(tmp_path, SMALL) as loopback:
        endpoint = loopback.ready()["endpoint"]
        with feeder(tmp_path, SMALL, endpoint) as child:
            with pytest.raises(StreamrecError, match=r"feeder process did not start.*no object"):
                child.ready()
    assert child.process.returncode == 0


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "feeder.toml"
    path.write_text(processes._configuration(SMALL, "http://127.0.0.1:9000"))
    settings = load(str(path))
    dataset = settings.datasets["pictures"]
    assert (dataset.lanes, dataset.batch_size, dataset.shuffle) == (4, 2, True)
    assert dataset.steps_per_epoch == SMALL.steps_per_epoch
    assert set(dataset.features or ()) == {"id", "label", "image"}
