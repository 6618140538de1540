"""The shards of a dataset or of its splits: where they go, and how many. Pure: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamrec.plan.order.shard_names import ShardNames

if TYPE_CHECKING:
    from streamrec.plan.order.splits import Splits


class SplitShards(NamedTuple):
    """The shards of one split."""

    name: str | None
    """``None``: the dataset has no splits."""
    template: str
    """As for ``ShardedWriter``."""
    shards: int | None


def split_shards(
    template: str, splits: Splits | None, shards: int | None, tasks: int
) -> list[SplitShards]:
    """Return the shards of each split, or of the one dataset.

    Args:
        template: The shards' template; or a directory, with a slash at the end. A split's name is
            put behind the template's stem.
        splits: The splits; ``None``: there are none.
        shards: The number of shards of all splits together; ``None``: by size. Each split has its
            fraction of them, and one for each task at least.
        tasks: The number of tasks that write them.

    Raises:
        ConfigError: The template gives the shards no name.
    """
    if splits is None:
        whole = template + ("data.tfrecord" if template.endswith("/") else "")
        ShardNames.parse(whole)
        return [SplitShards(None, whole, shards)]
    return [
        SplitShards(
            name,
            _template_of(template, name),
            None if shards is None else max(tasks, round(shards * fraction)),
        )
        for name, fraction in splits.fractions.items()
    ]


def _template_of(template: str, split: str) -> str:
    if template.endswith("/"):
        return f"{template}{split}.tfrecord"
    names = ShardNames.parse(template)
    return f"{names.directory}{names.stem}-{split}{names.suffix}"
