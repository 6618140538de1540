from __future__ import annotations

import pytest

from streamrec.devstore.errors import S3Error
from streamrec.devstore.multipart import SMALLEST_PART, Upload, Uploads
from streamrec.devstore.objects import digest

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
    with pytest.raises(S3Error, match="InvalidPart"):
        upload.join([(1, old)])


@pytest.mark.parametrize("number", [0, -1, 10_001])
def test_part_numbers_have_limits(upload: Upload, number: int) -> None:
    with pytest.raises(S3Error, match="InvalidArgument"):
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
        with pytest.raises(S3Error, match=code):
            upload.join(wanted)


def test_uploads_are_found_by_id_and_name() -> None:
    uploads = Uploads()
    one, two = uploads.begin("b", "k", {}), uploads.begin("b", "k", {"a": "b"})
    assert one != two
    assert uploads.find(two, "b", "k").headers == {"a": "b"}
    for identity, bucket, key in (("x", "b", "k"), (one, "c", "k"), (one, "b", "l")):
        with pytest.raises(S3Error, match="NoSuchUpload"):
            uploads.find(identity, bucket, key)


def test_forgotten_uploads_are_gone() -> None:
    uploads = Uploads()
    identity = uploads.begin("b", "k", {})
    uploads.forget(identity)
    uploads.forget(identity)
    assert not len(uploads)
    with pytest.raises(S3Error):
        uploads.find(identity, "b", "k")
