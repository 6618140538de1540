"""Resumable uploads to Google Cloud Storage, through gcsfs.

The parts of one upload follow one another: a session takes no others. Source: Google, "Resumable
uploads".
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

from streamrec.stores.base.part_upload import UploadSession, date_of

KIND = "application/octet-stream"
SMALL = 1 << 19
"""The bytes of the largest object that one request writes, which gcsfs copies to that end."""


class GCSSession(UploadSession):
    """The requests of one resumable upload.

    Args:
        filesystem: gcsfs's.
        path: ``bucket/key``.
    """

    at_once = 1

    def __init__(self, filesystem: Any, path: str) -> None:
        self.loop = filesystem.loop
        self._files = filesystem
        self._path = path
        self._bucket, self._key, _ = filesystem.split_path(path)
        self._location: str | None = None
        self._offset = 0

    async def put_whole(self, data: bytes) -> None:
        """Write an object of less than one part."""
        from gcsfs.core import simple_upload

        if len(data) > SMALL:
            self._location = await self._begin()
            await self.complete(data)
            return
        await simple_upload(self._files, self._bucket, self._key, data)
        self._forget()

    async def put_part(self, number: int, data: bytes) -> None:
        """Send a part."""
        if not number:
            self._location = await self._begin()
        end = self._offset + len(data)
        await self._send(data, f"bytes {self._offset}-{end - 1}/*")
        self._offset = end

    async def complete(self, rest: bytes) -> None:
        """Send the last part, and make the object visible."""
        end = self._offset + len(rest)
        span = f"{self._offset}-{end - 1}" if rest else "*"
        await self._send(rest, f"bytes {span}/{end}")
        self._location = None
        self._forget()

    async def written(self) -> tuple[int, datetime]:
        """Return the size of the object that is there now, and when it was written."""
        self._forget()
        found = await self._files._call(  # noqa: SLF001
            "GET", "b/{}/o/{}", self._bucket, self._key, json_out=True
        )
        return int(found["size"]), datetime.fromisoformat(found["updated"])

    async def abort(self) -> None:
        """Give up the upload."""
        location, self._location = self._location, None
        if location is not None:
            await self._files._call("DELETE", location)  # noqa: SLF001

    async def _begin(self) -> str:
        path = f"{self._files._location}/upload/storage/v1/b/{quote(self._bucket)}/o"  # noqa: SLF001
        headers, _ = await self._files._call(  # noqa: SLF001
            "POST",
            f"{path}?name={quote(self._key, safe='')}",
            uploadType="resumable",
            json={"name": self._key},
            headers={"X-Upload-Content-Type": KIND},
        )
        self.begun = date_of(headers)
        location: str = headers["Location"]
        return location

    async def _send(self, data: bytes, span: str) -> None:
        from gcsfs.core import UnclosableBytesIO

        headers = {"Content-Range": span, "Content-Type": KIND, "Content-Length": str(len(data))}
        answer, _ = await self._files._call(  # noqa: SLF001
            "PUT", self._location, headers=headers, data=UnclosableBytesIO(data)
        )
        end = self._offset + len(data)
        received = answer.get("Range", "").rpartition("-")[2]
        if span.endswith("/*") and received != str(end - 1):
            raise OSError(f"the store has bytes up to {received or 'none'} of the {end} sent")

    def _forget(self) -> None:
        """Have listings ask the store again."""
        self._files.invalidate_cache(self._path)
