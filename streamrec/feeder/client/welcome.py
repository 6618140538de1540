"""The facts of a dataset, and the reader of WELCOME, which trusts nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from streamrec.config import validate
from streamrec.config.dataset import ends
from streamrec.config.lazy_settings import LazySettings
from streamrec.config.plain_values import (
    NONE,
    Kind,
    anything,
    dict_of,
    either,
    integer,
    list_of,
    one_of,
    positive,
    text,
)
from streamrec.errors import ConfigError, OtherOrder, RemoteProtocolError, StateError
from streamrec.pipeline.batch.functions import name_of
from streamrec.plan.state.fingerprint import ENDS, Fingerprint
from streamrec.plan.state.position import MOST_LANES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import Field

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.served import Served

FUNCTIONS = ("filter", "map", "transform")
CONTENTS = ("rename", "length_buckets", "check_crc", "on_corrupt")

_COUNT = either(NONE, integer(0))
_NUMBER = either(NONE, positive)
_MAPPING = either(NONE, dict_of(anything))


_KINDS: Mapping[str, Kind] = {
    "batch_size": _NUMBER,
    "lanes": integer(1, MOST_LANES),
    "shard_count": integer(0),
    "shards": either(NONE, list_of(text)),
    "features": _MAPPING,
    "length": _COUNT,
    "surplus": either(NONE, integer(1 - (1 << 63))),
    "epochs": _NUMBER,
    "steps_per_epoch": _NUMBER,
    "remainder": one_of(None, "keep", "drop", "pad"),
    "contents": _MAPPING,
}


class _Facts(LazySettings):
    """The settings of WELCOME; what a later feeder tells besides is ignored."""

    batch_size: Annotated[int, Field(ge=1, lt=1 << 63)] | None
    lanes: Annotated[int, Field(ge=1, le=MOST_LANES)]
    shard_count: Annotated[int, Field(ge=0, lt=1 << 63)]
    shards: list[str] | None
    features: dict[str, Any] | None
    length: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    surplus: Annotated[int, Field(gt=-(1 << 63), lt=1 << 63)] | None = None
    epochs: Annotated[int, Field(ge=1, lt=1 << 63)] | None = None
    steps_per_epoch: Annotated[int, Field(ge=1, lt=1 << 63)] | None = None
    remainder: Literal["keep", "drop", "pad"] | None = None
    contents: dict[str, Any] | None = None
    """The settings that decide what is in a batch; ``None``: the feeder is of a version that does
    not tell them."""

    ignores_others = True
    kinds = _KINDS


def facts_of(
    dataset: Served,
    shards: list[str] | None,
    batch_size: int | None,
    world_size: int,
    codes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the facts that every session tells of its dataset, and WELCOME too.

    Args:
        dataset: The dataset.
        shards: The shards' URLs; ``None``: they are too many to be told.
        batch_size: Records per rank and batch; ``None``: single records.
        world_size: The number of ranks.
        codes: Digests of the functions' code by name, for WELCOME.
    """
    return {
        "batch_size": batch_size,
        "lanes": dataset.lanes,
        "shard_count": len(dataset.shards),
        "shards": shards,
        "features": dataset.settings.features,
        "length": dataset.length(batch_size, world_size),
        "surplus": dataset.surplus(batch_size, world_size),
        **ends(dataset.settings),
        "contents": _contents(dataset.settings) | dict(codes or {}),
    }


def _contents(settings: DatasetSettings) -> dict[str, Any]:
    """Return the settings, beside the features, that decide what is in a batch."""
    functions = {name: getattr(settings, name) for name in FUNCTIONS}
    return {
        **{name: getattr(settings, name) for name in CONTENTS},
        **{name: one and name_of(one) for name, one in functions.items()},
        "pack": settings.pack and asdict(settings.pack),
        "window": settings.window and asdict(settings.window),
        "balance": settings.balance and asdict(settings.balance),
    }


def check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a feeder serves batches of the same columns and the same end as the one before.

    Args:
        before: The settings of its WELCOME.
        now: Those of the next one.

    Raises:
        OtherOrder: They differ; the message names the settings.
    """
    old, new = (_comparable(settings) for settings in (before, now))
    names = [name for name in old if name in new and old[name] != new[name]]
    if names:
        differing = "; ".join(f"{name} was {old[name]!r} and is {new[name]!r}" for name in names)
        raise OtherOrder(
            f"its batches, or the ends of its runs, differ from those of the feeder before: "
            f"{differing}; configure all feeders of a dataset alike"
        )


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same, by name; the features one by one."""
    features = settings.get("features")
    named = {"features": features}
    if isinstance(features, dict):
        named = {"features": sorted(features)}
        named |= {f"feature {name!r}": spec for name, spec in features.items()}
    return {
        **named,
        **{name: settings.get(name) for name in ENDS},
        **(settings.get("contents") or {}),
    }


def read_welcome(
    fingerprint: bytes, settings: bytes, world_size: int
) -> tuple[Fingerprint, dict[str, Any]]:
    """Read the fingerprint and the settings of WELCOME.

    Raises:
        RemoteProtocolError: They are something else, or contradict each other.
    """
    try:
        served = Fingerprint.from_dict(mapping_of(fingerprint, "WELCOME"))
        facts = validate(_Facts, mapping_of(settings, "WELCOME"))
    except (StateError, ConfigError) as error:
        raise RemoteProtocolError(f"WELCOME cannot be read: {error}") from None
    batch = None if facts.batch_size is None else facts.batch_size * world_size
    identity = (facts.lanes, facts.shard_count, batch)
    names = facts.shard_count if facts.shards is None else len(facts.shards)
    if identity != (served.lanes, served.shards, served.global_batch) or names != served.shards:
        raise RemoteProtocolError("the settings of WELCOME are not those of its fingerprint")
    if served.lanes % world_size:
        raise RemoteProtocolError(
            f"WELCOME names {served.lanes} lanes, which {world_size} ranks cannot share"
        )
    return served, dict(facts)


def mapping_of(data: bytes, name: str) -> dict[str, Any]:
    """Read a mapping; an error calls it by its name.

    Raises:
        RemoteProtocolError: The data is not JSON, not a mapping, or nested too deep.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{name} cannot be read: it is not a mapping")
    return value
