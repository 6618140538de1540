"""The snapshot of a feeder, from which its metrics and ``/status.json`` are made."""

from __future__ import annotations

import asyncio
import platform
from typing import TYPE_CHECKING, Any

from streamrec import kernel
from streamrec.errors import StreamrecError
from streamrec.feeder.server.datasets import ServedDataset
from streamrec.flow.timings import added
from streamrec.wire.protocol import PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from streamrec.feeder.server.budget import SharedBudget
    from streamrec.feeder.server.service import Service
    from streamrec.pipeline.served import Served

_NOTHING: dict[str, Any] = {
    "sent": {"batches": 0, "records": 0, "bytes": 0},
    "fetch": {},
    "kept_back": {},
    "waits": {},
    "now": {"subscriptions": 0},
}


def snapshot_of(service: Service, *, obstacle: str | None, draining: bool) -> dict[str, Any]:
    """Return all that a feeder shows of itself, as JSON can hold it.

    Args:
        service: What it serves.
        obstacle: The reason why no new client could be served now.
        draining: It sends its clients elsewhere.
    """
    counted = service.statistics.snapshot()
    datasets = {name: _opened(handle) for name, handle in list(service.datasets.items())}
    listings = (one.timings.to_dict() for one in datasets.values() if _is_dataset(one))
    known = counted["datasets"]
    return {
        **counted,
        "datasets": {
            name: {**_facts(found, _trouble(service.datasets[name])), **known.get(name, _NOTHING)}
            for name, found in datasets.items()
        },
        "timings": added((counted["timings"], *listings)),
        "obstacle": obstacle,
        "draining": draining,
        "connections": service.admission.clients,
        "handshakes": service.admission.handshakes,
        "workers": 1,
        "workers_lost": 0,
        "budget": {"used": _memory(known.values()), **_lent(service.budget)},
        "build": build(),
    }


def _opened(handle: Served | Awaitable[Served]) -> Any:
    """Return the dataset, the error that opening it ended with, or ``None`` meanwhile."""
    if isinstance(handle, ServedDataset):
        return handle.found
    if not asyncio.isfuture(handle):
        return handle
    if not handle.done() or handle.cancelled():
        return None
    return handle.exception() or handle.result()


def _is_dataset(found: Any) -> bool:
    return found is not None and not isinstance(found, BaseException)


def _trouble(handle: Served | Awaitable[Served]) -> str | None:
    return handle.trouble if isinstance(handle, ServedDataset) else None


def _facts(found: Any, trouble: str | None) -> dict[str, Any]:
    """Return a dataset's state; one whose store fails is ``failing``, open or not."""
    shards = len(found.shards) if _is_dataset(found) else 0
    if isinstance(found, BaseException):
        # The text of another error may hold anything.
        problem = found.message if isinstance(found, StreamrecError) else type(found).__name__
        return {"state": "failed", "shards": shards, "problem": problem}
    if trouble is not None:
        return {"state": "failing", "shards": shards, "problem": trouble}
    return {"state": "opening" if found is None else "open", "shards": shards, "problem": None}


def _memory(datasets: Any) -> int:
    """Return the bytes in buffers of ranges, idle ones too, and in batches that wait."""
    names = ("bytes_in_memory", "bytes_idle", "bytes_ready")
    return sum(dataset["now"].get(name, 0) for dataset in datasets for name in names)


def _lent(budget: SharedBudget | None) -> dict[str, int]:
    return {} if budget is None else {"lent": budget.lent, "limit": budget.total}


def build() -> dict[str, str]:
    """Return the versions that run."""
    from streamrec import __version__

    return {
        "version": __version__,
        "kernel": kernel.implementation,
        "protocol": str(max(PROTOCOL_VERSIONS)),
        "python": platform.python_version(),
    }
