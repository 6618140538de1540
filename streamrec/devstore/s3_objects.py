"""S3's operations on one object: read, write, copy, delete, and write in parts."""

from __future__ import annotations

from contextlib import suppress
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import unquote

from streamrec.devstore.api import API
from streamrec.devstore.conditions import evaluate, range_still_holds
from streamrec.devstore.errors import Refusal
from streamrec.devstore.messages import Call, Reply
from streamrec.devstore.objects import split_name
from streamrec.devstore.s3_bodies import decode_body
from streamrec.devstore.s3_documents import parse_parts, timestamp, xml_reply
from streamrec.devstore.s3_uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.devstore.objects import Stored

__all__ = ["S3Objects"]

_KEPT_HEADERS = ("Content-Type", "Content-Disposition", "Cache-Control")


class S3Objects(API[Upload]):
    """The operations on one object."""

    async def _get_object(self, call: Call) -> Reply:
        stored = await self._objects.describe(call.bucket, call.key)
        etag = call.effects.etag or stored.etag
        headers = _head(stored, etag)
        if not call.effects.ignore_preconditions:
            verdict = evaluate(call.headers, etag, stored.modified)
            if verdict == "not modified":
                return Reply(304, headers, bare=True)
            if verdict == "failed":
                raise Refusal(412, "PreconditionFailed")
        ranged = range_still_holds(call.headers, etag, stored.modified)
        return self._content(call, stored, headers, ranged=ranged)

    _head_object = _get_object

    async def _put_object(self, call: Call) -> Reply:
        await self._check_write(call)
        data = decode_body(await call.read(), call.headers)
        stored = self._objects.write(call.bucket, call.key, data, _kept(call.headers))
        return Reply(headers={"ETag": f'"{stored.etag}"'})

    async def _check_write(self, call: Call) -> None:
        """Check that the bucket exists, and the write's preconditions (If-Match, If-None-Match)."""
        self._require_bucket(call)
        if {"If-Match", "If-None-Match"}.isdisjoint(call.headers):
            return
        etag = None
        with suppress(KeyError):
            etag = (await self._objects.describe(call.bucket, call.key)).etag
        if evaluate(call.headers, etag, 0) != "proceed":
            raise Refusal(412, "PreconditionFailed")

    async def _copy_object(self, call: Call) -> Reply:
        self._require_bucket(call)
        source = unquote(call.headers["x-amz-copy-source"]).lstrip("/").partition("?")[0]
        try:
            facts = await self._objects.describe(*split_name(source))
            data = self._objects[source]
        except KeyError:
            raise Refusal(404, "NoSuchKey") from None
        replaced = call.headers.get("x-amz-metadata-directive") == "REPLACE"
        headers = _kept(call.headers) if replaced else facts.headers
        stored = self._objects.write(call.bucket, call.key, data, headers)
        result = (("LastModified", timestamp(stored.modified)), ("ETag", f'"{stored.etag}"'))
        return xml_reply("CopyObjectResult", result)

    async def _delete_object(self, call: Call) -> Reply:
        self._require_bucket(call)
        self._remove(call.bucket, call.key)
        return Reply(204)

    def _remove(self, bucket: str, key: str) -> None:
        with suppress(KeyError):  # deleting twice is no error in S3
            self._objects.remove(bucket, key)

    async def _create_multipart_upload(self, call: Call) -> Reply:
        self._require_bucket(call)
        await call.read()
        identity = self._begin(Upload((call.bucket, call.key), _kept(call.headers)))
        facts = (("Bucket", call.bucket), ("Key", call.key), ("UploadId", identity))
        return xml_reply("InitiateMultipartUploadResult", facts)

    async def _upload_part(self, call: Call) -> Reply:
        upload = self._upload(call)
        if "x-amz-copy-source" in call.headers:
            raise Refusal(501, "NotImplemented")
        data = decode_body(await call.read(), call.headers)
        number = call.query["partNumber"]
        etag = upload.add(int(number) if number.isascii() and number.isdigit() else 0, data)
        return Reply(headers={"ETag": f'"{etag}"'})

    async def _complete_multipart_upload(self, call: Call) -> Reply:
        upload = self._upload(call)
        await self._check_write(call)
        data, etag = upload.join(parse_parts(await call.read()))
        stored = self._objects.write(call.bucket, call.key, data, upload.headers, etag)
        self._uploads.pop(call.query["uploadId"], None)
        facts = (
            ("Location", call.path),
            ("Bucket", call.bucket),
            ("Key", call.key),
            ("ETag", f'"{stored.etag}"'),
        )
        return xml_reply("CompleteMultipartUploadResult", facts)

    async def _abort_multipart_upload(self, call: Call) -> Reply:
        self._upload(call)
        del self._uploads[call.query["uploadId"]]
        return Reply(204)

    def _upload(self, call: Call) -> Upload:
        upload = self._uploads.get(call.query["uploadId"])
        if upload is None or upload.name != (call.bucket, call.key):
            raise Refusal(404, "NoSuchUpload")
        return upload


def _head(stored: Stored, etag: str) -> dict[str, str]:
    return {
        "Content-Type": "binary/octet-stream",  # S3's default
        **stored.headers,
        "ETag": f'"{etag}"',
        "Last-Modified": formatdate(stored.modified, usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a write that each later read returns."""
    own = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
    metadata = {
        name.lower(): value
        for name, value in headers.items()
        if name.lower().startswith("x-amz-meta-")
    }
    codings = [coding.strip() for coding in headers.get("Content-Encoding", "").split(",")]
    real = ",".join(coding for coding in codings if coding not in ("", "aws-chunked"))
    return own | metadata | ({"Content-Encoding": real} if real else {})
