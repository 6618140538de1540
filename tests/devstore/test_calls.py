from __future__ import annotations

from streamrec.devstore.calls import ObjectBody, Reply
from streamrec.devstore.faults import NO_EFFECTS, FaultEffects
from streamrec.devstore.objects import MemoryObjects


def test_the_size_of_a_body() -> None:
    objects = MemoryObjects()
    objects["b/k"] = b"0123456789"
    assert Reply(body=b"abc").size == 3
    assert Reply(body=ObjectBody(objects.open("b", "k"), 2, 7)).size == 5


def test_faults_change_the_head() -> None:
    reply = Reply(206, {"Content-Range": "bytes 0-1/2", "A": "b"})
    assert reply.with_faults(NO_EFFECTS) == reply
    assert reply.with_faults(FaultEffects(partial_status=200)).status == 200
    wrong = reply.with_faults(FaultEffects(content_range="bytes 5-6/7", headers={"A": "c"}))
    assert wrong.headers == {"Content-Range": "bytes 5-6/7", "A": "c"}
    assert reply.with_faults(FaultEffects(content_range="")).headers == {"A": "b"}


def test_only_partial_answers_change_their_status() -> None:
    assert Reply(200).with_faults(FaultEffects(partial_status=203)).status == 200
