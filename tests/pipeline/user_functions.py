"""Functions as users write them, in a module that another process can import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.values.columns import Ragged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamrec.pipeline.batch.batch import Batch


def is_even(columns: Mapping[str, Any]) -> Any:
    return columns["id"] % 2 == 0


def is_short(columns: Mapping[str, Any]) -> Any:
    """Keep raw records whose length is no multiple of 3."""
    return np.diff(columns["records"].offsets) % 3 != 0


def of_high_pictures(columns: Mapping[str, Any]) -> Any:
    """Keep pictures of at least ten rows of pixels."""
    return np.array([len(picture) >= 10 for picture in columns["p"]])


def keep_nothing(columns: Mapping[str, Any]) -> Any:
    return np.zeros(len(columns["records"]), bool)


def squared(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {**columns, "square": columns["id"] ** 2}


def summed(batch: Batch) -> dict[str, Any]:
    return {"sum": np.full(len(batch), batch["id"].sum()), "square": batch["square"]}


def add_doubles(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Add to every token its double."""
    tokens = columns["tokens"]
    return {"tokens": tokens, "doubles": Ragged(tokens.values * 2, tokens.row_splits)}


def has_even_number(columns: Mapping[str, Any]) -> Any:
    return np.diff(columns["tokens"].row_splits) % 2 == 0


def raise_key_error(columns: Mapping[str, Any]) -> Any:
    raise KeyError("no such column")


def return_a_list(columns: Mapping[str, Any]) -> Any:
    return [1, 2, 3]


def with_draw(columns: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**columns, "draw": rng.integers(1 << 62, size=len(columns["id"]))}


def is_drawn(columns: Mapping[str, Any], rng: np.random.Generator) -> Any:
    return rng.random(len(columns["id"])) < 0.7


def with_noise(batch: Batch, rng: np.random.Generator) -> dict[str, Any]:
    return {**batch, "noise": rng.integers(1 << 62, size=len(batch))}


def with_shift(columns: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add a number to every token."""
    tokens = columns["tokens"]
    return {"tokens": Ragged(tokens.values + rng.integers(1 << 40), tokens.row_splits)}
