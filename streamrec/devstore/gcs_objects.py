"""Google Cloud Storage's operations on one object: read, describe, delete and write."""

from __future__ import annotations

import gzip
import re
import zlib
from contextlib import suppress
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from streamrec.devstore.api import API
from streamrec.devstore.errors import Refusal
from streamrec.devstore.gcs_documents import hashes, json_reply, object_resource, parse
from streamrec.devstore.gcs_uploads import Session, parse_multipart
from streamrec.devstore.messages import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.devstore.messages import Call
    from streamrec.devstore.objects import Stored

__all__ = ["GCSObjects"]


class GCSObjects(API[Session]):
    """The operations on one object, without versioning: an overwritten object is lost."""

    async def _objects_get(self, call: Call) -> Reply:
        stored = await self._find(call)
        if _is_unmodified(call, _generation(call, stored)):
            return Reply(304, bare=True)
        return json_reply(call, object_resource(call.bucket, call.key, stored))

    async def _objects_get_media(self, call: Call) -> Reply:
        stored = await self._find(call)
        headers = _head(stored, _generation(call, stored))
        if _is_unmodified(call, _generation(call, stored)):
            return Reply(304, headers, bare=True)
        if stored.headers.get("Content-Encoding") == "gzip" and not _takes_gzip(call, stored):
            return self._unpacked(call, headers)
        return self._content(call, stored, headers)

    def _unpacked(self, call: Call, headers: dict[str, str]) -> Reply:
        """Return the decompressed object ("decompressive transcoding"), which ignores any range."""
        try:
            data = gzip.decompress(self._objects[f"{call.bucket}/{call.key}"])
        except (OSError, EOFError, zlib.error):
            raise Refusal(503, "backendError", "The object is not gzip.") from None
        del headers["Content-Encoding"]
        headers |= {"Warning": "214 UploadServer gunzipped", "Accept-Ranges": "none"}
        return Reply(200, headers, data)

    async def _objects_delete(self, call: Call) -> Reply:
        await self._find(call)
        self._objects.remove(call.bucket, call.key)
        return Reply(204)

    async def _objects_insert(self, call: Call) -> Reply:
        """Write an object that one request holds, or begin an upload in parts."""
        body, kind = await call.read(), call.query.get("uploadType")
        self._require_bucket(call)
        about: dict[str, Any] = {}
        content_type = call.headers.get("Content-Type", "")
        if kind == "multipart":
            about, content_type, body = parse_multipart(content_type, body)
        elif kind == "resumable":
            about = parse(body) if body else {}
            content_type = call.headers.get("X-Upload-Content-Type", "application/octet-stream")
        elif kind != "media":
            raise Refusal(400, "required", "Upload type is required.")
        upload = Session(call.bucket, _name(call, about), _kept(about, content_type))
        await self._check_write(call, upload)
        if kind != "resumable":
            return self._write(call, upload, body)
        place = f"http://{call.headers.get('Host', '')}{call.path}"
        query = f"uploadType=resumable&upload_id={self._begin(upload)}"
        return Reply(headers={"Location": f"{place}?{query}"})

    async def _objects_insert_part(self, call: Call) -> Reply:
        identity = call.query["upload_id"]
        upload = self._uploads.get(identity)
        if upload is None:
            raise Refusal(410, "uploadGone", "The upload session is gone.")
        if call.method == "DELETE":
            self._uploads.pop(identity, None)
            return Reply(499)  # Google's status for "cancelled by the client"
        if not upload.add(call.headers.get("Content-Range"), await call.read()):
            received = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
            return Reply(308, received)
        self._uploads.pop(identity, None)
        await self._check_write(call, upload)
        return self._write(call, upload, bytes(upload.data))

    def _write(self, call: Call, upload: Session, data: bytes) -> Reply:
        stored = self._objects.write(upload.bucket, upload.key, data, upload.headers)
        return json_reply(call, object_resource(upload.bucket, upload.key, stored))

    async def _check_write(self, call: Call, upload: Session) -> None:
        wanted = _number(call, "ifGenerationMatch")
        if wanted is None or call.effects.ignore_preconditions:
            return
        found = "0"  # stands for "no such object"
        with suppress(KeyError):
            found = _generation(call, await self._objects.describe(upload.bucket, upload.key))
        if wanted != found:
            raise Refusal(412, "conditionNotMet")

    async def _find(self, call: Call) -> Stored:
        """Return the object of the requested generation, if it meets the precondition."""
        stored = await self._objects.describe(call.bucket, call.key)
        if call.effects.ignore_preconditions:
            return stored
        found = _generation(call, stored)
        if _number(call, "generation") not in (None, found):
            raise KeyError(call.key)
        if _number(call, "ifGenerationMatch") not in (None, found):
            raise Refusal(412, "conditionNotMet")
        return stored


def _generation(call: Call, stored: Stored) -> str:
    return call.effects.etag or str(stored.generation)


def _number(call: Call, parameter: str) -> str | None:
    """Return the generation in a query parameter, or in the XML API's header for it."""
    header = "x-goog-" + re.sub("[A-Z]", lambda found: "-" + found[0].lower(), parameter)
    text = call.query.get(parameter) or call.headers.get(header)
    if text is not None and not re.fullmatch("[0-9]{1,19}", text):
        raise Refusal(400, "invalidParameter", f"Invalid value for {parameter}: {text}")
    return text


def _is_unmodified(call: Call, generation: str) -> bool:
    if call.effects.ignore_preconditions:
        return False
    return _number(call, "ifGenerationNotMatch") == generation


def _head(stored: Stored, generation: str) -> dict[str, str]:
    encoding = stored.headers.get("Content-Encoding")
    return {
        "Content-Type": "application/octet-stream",
        **stored.headers,
        "Last-Modified": formatdate(stored.modified, usegmt=True),
        "ETag": f'"{generation}"',
        "x-goog-generation": generation,
        "x-goog-metageneration": "1",
        "x-goog-stored-content-encoding": encoding or "identity",
        "x-goog-stored-content-length": str(stored.size),
        "x-goog-hash": ",".join(f"{name}={value}" for name, value in hashes(stored).items()),
        "x-goog-storage-class": "STANDARD",
        "Accept-Ranges": "bytes",
    }


def _takes_gzip(call: Call, stored: Stored) -> bool:
    accepted = call.headers.get("Accept-Encoding", "")
    return "gzip" in accepted or "no-transform" in stored.headers.get("Cache-Control", "")


def _name(call: Call, about: Mapping[str, Any]) -> str:
    name = call.query.get("name") or about.get("name")
    if not isinstance(name, str) or not name:
        raise Refusal(400, "required", "Required parameter: name")
    return name


def _kept(about: Mapping[str, Any], content_type: str) -> dict[str, str]:
    """Return the headers of an upload that each later read returns."""
    found = {
        "Content-Type": about.get("contentType") or content_type,
        "Content-Encoding": about.get("contentEncoding"),
        "Cache-Control": about.get("cacheControl"),
    }
    return {name: value for name, value in found.items() if value}
