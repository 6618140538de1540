"""A process of streamrec's clients: of a feeder, or with engine processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamrec as sr
from bench.feeding.columns import nbytes
from bench.feeding.host import main
from bench.readers.specs import specs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def from_feeder(arguments: Mapping[str, Any]) -> Iterator[sr.Batch]:
    """Read from a feeder with a plain ``for``."""
    given = {} if arguments["ca"] is None else {"tls": arguments["ca"]}
    with sr.connect(arguments["address"], rank=0, world_size=1, **given) as stream:
        yield from stream


def from_engine(arguments: Mapping[str, Any]) -> Iterator[sr.Batch]:
    """Read local shards with a plain ``for`` and an engine process."""
    with opened(arguments, engine="process") as stream:
        yield from stream


def opened(arguments: Mapping[str, Any], **settings: Any) -> sr.Stream[Any]:
    """Open local shards, again and again."""
    features = arguments["features"]
    given: dict[str, Any] = {"rank": 0, "world_size": 1, **settings}
    return sr.open(
        arguments["source"],
        specs(features) if features else None,
        batch_size=arguments["batch_size"],
        memory_budget=arguments["memory_budget"],
        epochs=None,
        **given,
    )


if __name__ == "__main__":
    main({"feeder": from_feeder, "engine": from_engine}, len, nbytes)
