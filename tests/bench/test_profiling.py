from __future__ import annotations

import pytest

from bench.profiling import OTHER, START, WAIT, work_of


@pytest.mark.parametrize(
    ("frames", "work"),
    [
        (["main (bench/readers/streams.py)", "import_all (bench/readers/streams.py)"], START),
        (["<module> (bench/readers/streams.py)", "_load (<frozen importlib._bootstrap>)"], START),
        (["<module> (bench/stopwatch.py)", "touch (bench/stopwatch.py)"], START),
        (["run (threading.py)", "_worker (concurrent/futures/thread.py)"], WAIT),
        (
            ["decode (streamrec/pipeline/batch/payload.py)", "loads (json/decoder.py)"],
            "feed: the engine's socket",
        ),
        (["main (bench/readers/streams.py)", "take (bench/readers/streams.py)"], OTHER),
    ],
)
def test_the_innermost_known_frame_says_what_is_done(frames: list[str], work: str) -> None:
    assert work_of(frames) == work
