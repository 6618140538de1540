from __future__ import annotations

import pytest

from streamrec.devstore.errors import Refusal
from streamrec.devstore.objects import digest
from streamrec.devstore.s3_uploads import SMALLEST_PART, Upload

LARGE = bytes(SMALLEST_PART)


@pytest.fixture
def upload() -> Upload:
    return Upload(("b", "k"), {})


def test_parts_are_joined_by_number(upload: Upload) -> None:
    last = upload.add(7, b"end")
    first = upload.add(2, LARGE)
    data, etag = upload.join([(2, first), (7, last)])
    assert data == LARGE + b"end"
    assert etag == digest(bytes.fromhex(first) + bytes.fromhex(last)) + "-2"


def test_the_later_part_of_a_number_counts(upload: Upload) -> None:
    old = upload.add(1, b"old")
    new = upload.add(1, b"new")
    assert upload.join([(1, new)])[0] == b"new"
    with pytest.raises(Refusal, match="InvalidPart"):
        upload.join([(1, old)])


@pytest.mark.parametrize("number", [0, -1, 10_001])
def test_part_numbers_have_limits(upload: Upload, number: int) -> None:
    with pytest.raises(Refusal, match="InvalidArgument"):
        upload.add(number, b"")


def test_what_cannot_be_joined(upload: Upload) -> None:
    small, other = upload.add(1, b"a"), upload.add(2, b"b")
    for wanted, code in (
        ([], "MalformedXML"),
        ([(2, other), (1, small)], "InvalidPartOrder"),
        ([(1, small), (1, small)], "InvalidPartOrder"),
        ([(3, small)], "InvalidPart"),
        ([(1, small), (2, other)], "EntityTooSmall"),
    ):
        with pytest.raises(Refusal, match=code):
            upload.join(wanted)
