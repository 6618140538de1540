"""Google Cloud Storage's operations on one object: read, describe, delete and write."""

from __future__ import annotations

import gzip
import re
import zlib
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
        if kind == "media":
            written = _kept({}, call.headers)
            return await self._write(call, call.bucket, _name(call, {}), body, written)
        if kind == "multipart":
            about, content_type, data = parse_multipart(call.headers.get("Content-Type", ""), body)
            written = _kept(about, {"Content-Type": content_type})
            return await self._write(call, call.bucket, _name(call, about), data, written)
        if kind != "resumable":
            raise Refusal(400, "required", "Upload type is required.")
        return await self._begin_resumable(call, body)

    async def _begin_resumable(self, call: Call, body: bytes) -> Reply:
        about = parse(body) if body else {}
        name = _name(call, about)
        await self._check_write(call, call.bucket, name)
        content_type = call.headers.get("X-Upload-Content-Type", "application/octet-stream")
        headers = _kept(about, {"Content-Type": content_type})
        identity = self._begin(Session(call.bucket, name, headers))
        place = f"http://{call.headers.get('Host', '')}{call.path}"
        return Reply(headers={"Location": f"{place}?uploadType=resumable&upload_id={identity}"})

    async def _objects_insert_part(self, call: Call) -> Reply:
        identity = call.query["upload_id"]
        session = self._uploads.get(identity)
        if session is None:
            raise Refusal(410, "uploadGone", "The upload session is gone.")
        if call.method == "DELETE":
            self._uploads.pop(identity, None)
            return Reply(499)  # Google's status for "cancelled by the client"
        if not session.add(call.headers.get("Content-Range"), await call.read()):
            received = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
            return Reply(308, received)
        self._uploads.pop(identity, None)
        data = bytes(session.data)
        return await self._write(call, session.bucket, session.key, data, session.headers)

    async def _write(
        self, call: Call, bucket: str, key: str, data: bytes, headers: Mapping[str, str]
    ) -> Reply:
        await self._check_write(call, bucket, key)
        stored = self._objects.write(bucket, key, data, headers)
        return json_reply(call, object_resource(bucket, key, stored))

    async def _check_write(self, call: Call, bucket: str, key: str) -> None:
        wanted = _number(call, "ifGenerationMatch")
        if wanted is None or call.effects.ignore_preconditions:
            return
        try:
            stored = await self._objects.describe(bucket, key)
        except KeyError:
            found = "0"  # stands for "no such object"
        else:
            found = _generation(call, stored)
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


def _kept(about: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an upload that each later read returns."""
    found = {
        "Content-Type": about.get("contentType") or headers.get("Content-Type"),
        "Content-Encoding": about.get("contentEncoding"),
        "Cache-Control": about.get("cacheControl"),
    }
    return {name: value for name, value in found.items() if value}
