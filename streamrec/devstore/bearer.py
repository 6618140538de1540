"""The check of GCS requests' access by expiring bearer tokens (RFC 6750). Pure: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.devstore.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_bearer"]

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="https://accounts.google.com/"'}


def check_bearer(
    headers: Mapping[str, str],
    tokens: Mapping[str, float],
    now: float,
    *,
    anonymous: bool = False,
) -> None:
    """Check that a request carries a valid token.

    Args:
        headers: The request's headers; case-insensitive.
        tokens: The expiry of each known token, in seconds since 1970.
        now: Seconds since 1970.
        anonymous: ``True`` accepts requests without a token, though never with a wrong one.

    Raises:
        Refusal: The request is refused.
    """
    authorization = headers.get("Authorization")
    if authorization is None:
        if anonymous:
            return
        message = "Anonymous caller does not have storage access to the resource."
        raise Refusal(401, "required", message, _CHALLENGE)
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer" or tokens.get(token.strip(), 0.0) <= now:
        raise Refusal(401, "authError", "Invalid Credentials", _CHALLENGE)
