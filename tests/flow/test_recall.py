from __future__ import annotations

import threading

from streamrec.flow.recall import Recall, on_recall


def test_it_ends_a_wait_of_another_thread() -> None:
    recall, waits, ended = Recall(), threading.Event(), threading.Event()

    def work() -> None:
        with recall.covering():
            on_recall(ended.set)
            waits.set()
            ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    waits.wait()
    recall.recall()
    thread.join()
    assert ended.is_set()


def test_it_ends_waits_that_would_begin() -> None:
    recall, ended = Recall(), threading.Event()
    recall.recall()
    with recall.covering():
        on_recall(ended.set)
        assert ended.is_set()


def test_behind_the_work_nothing_is_ended() -> None:
    recall, ended = Recall(), threading.Event()
    with recall.covering():
        on_recall(ended.set)
    recall.recall()
    on_recall(ended.set)
    assert not ended.is_set()
