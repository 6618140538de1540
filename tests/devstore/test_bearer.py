from __future__ import annotations

import pytest

from streamrec.devstore.bearer import check_bearer
from streamrec.devstore.errors import Refusal

TOKENS = {"good": 100.0, "old": 50.0}


@pytest.mark.parametrize("header", ["Bearer good", "bearer good "])
def test_a_known_token_passes(header: str) -> None:
    check_bearer({"Authorization": header}, TOKENS, 60.0)


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize(
    "header", ["Bearer old", "Bearer none", "Bearer", "Basic good", "AWS4-HMAC-SHA256 good", ""]
)
def test_other_tokens_are_refused_wherever_they_come(header: str, anonymous: bool) -> None:
    with pytest.raises(Refusal) as caught:
        check_bearer({"Authorization": header}, TOKENS, 60.0, anonymous=anonymous)
    assert (caught.value.status, caught.value.code) == (401, "authError")
    assert caught.value.headers["WWW-Authenticate"].startswith("Bearer ")


def test_nobody_passes_where_anybody_may() -> None:
    check_bearer({}, TOKENS, 60.0, anonymous=True)
    with pytest.raises(Refusal) as caught:
        check_bearer({}, TOKENS, 60.0)
    assert (caught.value.status, caught.value.code) == (401, "required")
