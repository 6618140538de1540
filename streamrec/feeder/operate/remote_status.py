"""The status of a running feeder, as another process reads it from its second port."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

from streamrec.errors import FeederLost, FeederRefused, FeedError
from streamrec.feeder.access.address import join_host
from streamrec.feeder.page.view import view_of, view_of_fleet
from streamrec.feeder.server.statistics import VERSION
from streamrec.masking import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.feeder.page.view import FleetView, View

TIMEOUT = 5.0
"""Seconds to wait for a feeder; its page takes milliseconds."""
MOST = 64 << 20
"""The most bytes of an answer. A thousand subscriptions take half a megabyte."""


def read_status(host: str, port: int) -> dict[str, Any]:
    """Return ``/status.json``.

    Raises:
        FeederLost: Nothing answers.
        FeederRefused: The server that answers is not a feeder, or has another version.
    """
    where = join_host(host, port)
    try:
        status, body = _get(host, port)
    except (OSError, HTTPException) as error:
        raise FeederLost(
            f"no status at {where} ({_reason(error)}); name the host and port of a running "
            "feeder's status"
        ) from None
    if status != 200 or len(body) > MOST:
        raise _not_a_feeder(where, f"it answers {status}" if status != 200 else "it is too long")
    try:
        answer = json.loads(body)
        # The rest is read only in the form that this version knows.
        version = answer["version"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise _not_a_feeder(where, "its answer has another form") from None
    if version != VERSION:
        raise FeederRefused(
            f"the feeder at {where} has version {printable(str(version))[:20]} of /status.json, "
            f"and this streamrec reads {VERSION}; use the streamrec of the feeder's version"
        )
    return dict(answer)


def view_status(host: str, port: int) -> View:
    """Return what is shown of a feeder.

    Raises:
        FeederLost: Nothing answers.
        FeederRefused: The server that answers is not a feeder, or has another version.
    """
    return _snapshot_and_view(host, port)[1]


def view_fleet(addresses: Sequence[tuple[str, int]]) -> FleetView:
    """Return what is shown of several feeders, which are asked all at once.

    Args:
        addresses: The host and port of the status of each.

    Raises:
        FeederLost: None answers.
    """

    def look(address: tuple[str, int]) -> dict[str, Any] | str:
        try:
            return _snapshot_and_view(*address)[0]
        except FeedError as error:
            return error.message.partition(";")[0]

    with ThreadPoolExecutor(len(addresses)) as pool:
        answers = list(pool.map(look, addresses))
    if all(isinstance(answer, str) for answer in answers):
        raise FeederLost(
            f"none of {len(answers)} feeders answers: {answers[0]}; name the host and port of the "
            "status of running feeders"
        )
    names = (join_host(*address) for address in addresses)
    return view_of_fleet(dict(zip(names, answers, strict=True)))


def _snapshot_and_view(host: str, port: int) -> tuple[dict[str, Any], View]:
    snapshot = read_status(host, port)
    try:
        return snapshot, view_of(snapshot)
    # Whatever answers may send anything: its form is not checked field by field.
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise _not_a_feeder(join_host(host, port), "its answer has another form") from None


def _get(host: str, port: int) -> tuple[int, bytes]:
    connection = HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        connection.request("GET", "/status.json")
        answer = connection.getresponse()
        # One byte more than is allowed tells an answer that is too long.
        return answer.status, answer.read(MOST + 1)
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return text or type(error).__name__


def _not_a_feeder(where: str, why: str) -> FeederRefused:
    return FeederRefused(
        f"what answers at {where} is not the status of a feeder of this version: {why}; name the "
        "address that `streamrec serve` prints for its status page"
    )
