"""Signing of S3 requests; signed URLs are kept for reuse."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrec.stores.base.foreign_errors import translate_errors
from streamrec.stores.base.protocol import in_thread
from streamrec.stores.s3.plain_signer import PlainSigner, plain_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamrec.stores.s3.sdk_signer import SdkSigner


LIFETIME = 3600
"""Seconds for which a signature is valid, unless the credentials expire before. It is made anew at
half of that, or when the store refuses it."""
MAX_KEPT = 8192
"""Most signed URLs to keep, of 0.5 KB each; signing one takes 0.2 ms."""


class UnsignedRequest(NamedTuple):
    """A request to sign."""

    method: str
    """The client's method."""
    parameters: Mapping[str, str]

    @property
    def place(self) -> tuple[str, str]:
        """The bucket and key; the key of a listing is empty."""
        return self.parameters["Bucket"], self.parameters.get("Key", "")


def get_object(bucket: str, key: str) -> UnsignedRequest:
    """Return the GET of an object, or of a range of it: Range is not signed."""
    return UnsignedRequest("get_object", {"Bucket": bucket, "Key": key})


def list_objects(
    bucket: str, prefix: str, delimiter: str = "", token: str = "", after: str = ""
) -> UnsignedRequest:
    """Return the GET of a page of a listing.

    Args:
        bucket: The bucket.
        prefix: The beginning of the keys.
        delimiter: Leaves out keys that have it after the prefix.
        token: The token of the page; empty for the first one.
        after: The key after which the first page begins.
    """
    named = {
        "Prefix": prefix,
        "Delimiter": delimiter,
        "ContinuationToken": token,
        "StartAfter": after,
    }
    given = {name: value for name, value in named.items() if value}
    return UnsignedRequest("list_objects_v2", {"Bucket": bucket, "EncodingType": "url", **given})


class SignedUrl(NamedTuple):
    """A signed URL, with the headers to send."""

    address: str
    renew_at: float
    """The time to sign again; seconds since 1970."""
    headers: Mapping[str, str]
    """The signed headers, which must be sent: requester pays, the key of an encrypted object."""
    era: int
    """The number of times that credentials had been renewed when it was signed."""

    def __repr__(self) -> str:
        return "<SignedUrl>"


class Presigner:
    """A signer for one region, for use in one event loop.

    Args:
        storage_options: s3fs's options.
        region: The bucket's region; ``None``: that of the options and the environment.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any],
        *,
        region: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options, self._region = storage_options, region
        self._clock = clock
        self._kept: dict[tuple[str, str], SignedUrl] = {}
        self._plain: PlainSigner | None = None
        """The signer that needs no client, once it is clear that the options need none."""
        self._sdk: SdkSigner | None = None
        self._is_begun = False
        self._era = 0
        self._lock = asyncio.Lock()  # clients are made, and credentials looked up, one at a time

    async def sign(self, url: str, call: UnsignedRequest) -> tuple[SignedUrl, bool]:
        """Return the signed URL of a request, and whether it was signed only now.

        Args:
            url: The object or prefix, for errors.
            call: The request. Signed URLs of objects are kept.

        Raises:
            AccessDenied: There are no credentials.
            ConfigError: s3fs does not understand the options.
        """
        kept = self._kept.get(call.place)
        if kept is not None and self._clock() < kept.renew_at:
            return kept, False
        with translate_errors(url):
            signed = await self._sign(call)
        if call.method == "get_object":
            self._keep(call, signed)
        return signed, True

    def forget(self, call: UnsignedRequest) -> None:
        """Forget the request's signed URL."""
        self._kept.pop(call.place, None)

    async def renew(self, url: str, refused: SignedUrl) -> None:
        """Look up credentials again, unless that was done since the refused URL was signed.

        Args:
            url: The object or prefix, for errors.
            refused: The signed URL that the store has refused.
        """
        async with self._lock:
            if refused.era != self._era:
                return
            with translate_errors(url):
                self._plain = await in_thread(_plain_signer, self._options, self._region)
                if self._sdk is not None:
                    await self._sdk.renew()
            self._era += 1
            # All of them were signed with the old credentials.
            self._kept.clear()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._sdk is not None:
            await self._sdk.aclose()

    def _keep(self, call: UnsignedRequest, signed: SignedUrl) -> None:
        # A dictionary keeps the place of a key that is set again, and the first one goes when it is
        # full.
        self.forget(call)
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[call.place] = signed

    async def _sign(self, call: UnsignedRequest) -> SignedUrl:
        bucket = call.place[0]
        if self._plain is None or not self._plain.fits(bucket):
            async with self._lock:
                await self._prepare(bucket)
        # The era of before: where credentials are renewed meanwhile, this URL counts as an old one.
        era = self._era
        headers: Mapping[str, str] = {}
        if self._plain is not None and self._plain.fits(bucket):
            address = self._plain.sign(call.method, call.parameters, LIFETIME)
        else:
            assert self._sdk is not None
            address, headers = await self._sdk.sign(call.method, call.parameters, LIFETIME)
        return SignedUrl(address, self._clock() + LIFETIME / 2, headers, era)

    async def _prepare(self, bucket: str) -> None:
        """Make the signer for a bucket where there is none."""
        if not self._is_begun:
            self._plain = await in_thread(_plain_signer, self._options, self._region)
            self._is_begun = True
        if self._plain is not None and self._plain.fits(bucket):
            return
        if self._sdk is None:
            self._sdk = (await in_thread(_sdk_signer))(self._options, self._region)
        await self._sdk.prepare()


# What these import takes long, so it is imported where it signs, and in a thread.


def _plain_signer(options: Mapping[str, Any], region: str | None) -> PlainSigner | None:
    """Return the signer that needs no client; ``None``: these options need botocore's."""
    terms = plain_terms(options, region, os.environ)
    return None if terms is None else PlainSigner(terms)


def _sdk_signer() -> type[SdkSigner]:
    from streamrec.stores.s3.sdk_signer import SdkSigner

    return SdkSigner
