from __future__ import annotations

from streamrec.devstore.errors import Refusal


def test_the_message_is_s3s_own_unless_given() -> None:
    assert Refusal(404, "NoSuchKey").message == "The specified key does not exist."
    assert Refusal(404, "NoSuchKey", "gone").message == "gone"
    assert Refusal(499, "Odd").message == "Odd"


def test_it_says_what_it_is() -> None:
    error = Refusal(503, "SlowDown", headers={"Retry-After": "1"})
    assert str(error).startswith("503 SlowDown: ")
    assert error.headers == {"Retry-After": "1"}
