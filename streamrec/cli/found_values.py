"""``streamrec which --values``: a list of the records that have one of some values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def print_found(given: Mapping[str, Any], feature: str, path: Path) -> None:
    """Print a line for each record that has a value of a file; standard error has the sums.

    Args:
        given: Settings of the dataset by name, among them its source.
        feature: The feature.
        path: The file, which has a value on each line.

    Raises:
        ConfigError: A setting is wrong, or the file or the feature cannot be used.
    """
    from streamrec.config import DatasetSettings, validate
    from streamrec.datasets.find_values import find_values
    from streamrec.masking import masked

    if "source" not in given:
        raise click.UsageError("there is no source; give a URL, or --config FILE")
    values = _values_in(path)
    found = find_values(validate(DatasetSettings, dict(given)), feature, values)
    for one in found:
        line = {"shard": masked(one.shard), "record": one.record, "value": one.values[0]}
        click.echo(json.dumps(line, ensure_ascii=False).encode())
    missing = len(values) - len({value for one in found for value in one.values})
    click.echo(f"{len(found):,} records; {missing:,} of {len(values):,} values not found", err=True)


def _values_in(path: Path) -> set[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read ({reason}); correct --values") from None
    values = {line for line in text.splitlines() if line}
    if not values:
        raise ConfigError(f"{path} has no value; write each value on a line of its own")
    return values
