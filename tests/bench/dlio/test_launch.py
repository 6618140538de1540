from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from bench.dlio.launch import frames, report, write_index
from streamrec.formats.shards.tfrecord import frame

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.binary(max_size=20)))
def test_frames_are_found_end_to_end(records: list[bytes]) -> None:
    shard = [frame(record) for record in records]
    found = list(frames(b"".join(shard)))
    assert [size for _, size in found] == [len(one) for one in shard]
    assert [offset for offset, _ in found] == [
        sum(map(len, shard[:number])) for number in range(len(shard))
    ]


def test_the_index_has_a_line_for_each_frame(tmp_path: Path) -> None:
    shard, index = tmp_path / "shard", tmp_path / "index"
    shard.write_bytes(frame(b"abc") + frame(b""))
    assert write_index(["tfrecord2idx", str(shard), str(index)]) == 0
    assert index.read_text() == "0 19\n19 16\n"


def test_a_report_is_made_of_the_files_that_dlio_writes(tmp_path: Path) -> None:
    metric = {"train_au_percentage": [91.5], "train_throughput_samples_per_second": [1500.0]}
    (tmp_path / "summary.json").write_text(json.dumps({"metric": metric}))
    output = {"1": {"load": {"block1": [0.5, 0.1, 0.2]}}, "hostname": "host"}
    (tmp_path / "0_output.json").write_text(json.dumps(output))
    assert report(tmp_path) == {
        "utilisation": [91.5],
        "samples_per_second": [1500.0],
        "steps": [3],
        "first_batch_seconds": [0.5],
    }
