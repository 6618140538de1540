"""``streamrec which``: the records of a step, and the steps of a record."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrec.cli.options import (
    WholeNumber,
    debug_option,
    local_files,
    refuse_unused,
    storage_option,
    stream_options,
)
from streamrec.cli.printing import ending_with, no_collection
from streamrec.cli.verify import FAILED
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamrec.config import DatasetSettings
    from streamrec.pipeline.dataset_places import DeliveredRecord
    from streamrec.streams.audit_check import AuditReport, RankReport
    from streamrec.streams.which_read import ReadRecord

LARGEST_STATE = 64 << 20
"""Bytes of the largest file of states that is read: those of 10,000 ranks have less."""


def _steps(context: click.Context, _: click.Parameter, text: str | None) -> range | None:
    """Return the steps of an option such as ``1190:1210``."""
    if text is None or context.resilient_parsing:
        return None
    first, _separator, last = text.partition(":")
    # Python's own whole numbers have signs, too.
    steps = range(int(first), int(last)) if first.isdecimal() and last.isdecimal() else None
    if not steps:
        raise click.BadParameter(
            f"{text!r} is not FIRST:END, two whole numbers with END above FIRST, as in 1190:1210"
        )
    return steps


def _wanted(
    context: click.Context, _: click.Parameter, text: str | None
) -> tuple[str, int] | dict[str, str] | None:
    """Return what ``train-3.tfrecord:17``, ``day=1/a:17``, ``user_id=a`` or ``ts=10:30`` means."""
    if text is None or context.resilient_parsing:
        return None
    shard, _separator, record = text.rpartition(":")
    feature, separator, value = text.partition("=")
    # A slash tells a path such as day=1/a from a value.
    if shard and record.isdecimal() and ("/" in shard or not separator):
        return shard, int(record)
    if not feature or not separator:
        raise click.BadParameter(
            f"{text!r} is not SHARD:RECORD, as in train-00003.tfrecord:17, or FEATURE=VALUE"
        )
    return {feature: value}


_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("urls", metavar="[URL...]", nargs=-1, shell_complete=local_files)
@click.option("--step", type=WholeNumber(0), help="The step, counted from 0 as in a state.")
@click.option(
    "--steps", callback=_steps, metavar="FIRST:END", help="These steps; END is not among them."
)
@click.option(
    "--find",
    callback=_wanted,
    metavar="SHARD:RECORD|FEATURE=VALUE",
    help="Tell at which steps this record, or each with this value, comes; in a mix, in --steps.",
)
@click.option(
    "--epochs",
    type=WholeNumber(1),
    default=1,
    show_default=True,
    help="With --find: search this many epochs, beginning with the first or the state's.",
)
@click.option("--rank", type=WholeNumber(0), help="This rank only. [all ranks]")
@click.option(
    "--world-size", type=WholeNumber(1), help="Number of ranks. [that of the state, or 1]"
)
@click.option(
    "--state",
    type=_FILE,
    metavar="FILE",
    help="A state that the run saved, or those of all ranks: JSON, or a file of torch.save.",
)
@stream_options
@click.option(
    "--audit",
    metavar="ADDRESS",
    help="Check the audit log in this directory, a URL or a path, instead.",
)
@click.option(
    "--read",
    "reads",
    is_flag=True,
    help="Read shards where the records of a step cannot be computed, from --state on.",
)
@click.option(
    "--values",
    type=_FILE,
    metavar="FILE",
    help="Read all records once, and list those whose --key is a line of FILE, for exclude.",
)
@click.option("--show", is_flag=True, help="Print the records, as streamrec cat does.")
@click.option("--key", metavar="FEATURE", help="Print only this feature of each record.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@storage_option
@debug_option
def which(
    *,
    step: int | None,
    steps: range | None,
    find: tuple[str, int] | dict[str, str] | None,
    epochs: int,
    rank: int | None,
    world_size: int | None,
    state: Path | None,
    show: bool,
    key: str | None,
    as_json: bool,
    audit: str | None,
    reads: bool,
    values: Path | None,
    **dataset: Any,
) -> None:
    """Tell which records a step had, and which step a record was in.

    This is computed from the index of the shards; only --show and --key read shards. With a filter
    or packs, or without an index, --read reads the stream from --state to the step.
    --values reads all records, and needs no index. URL, --config and --set give the settings of the
    training: source, index, batch_size, shuffle, seed and the others.
    --audit checks a log of a run, which has these settings; those given here replace them.
    """
    if audit is not None:
        refuse_unused("with --audit", *OF_PLACES)
        print_audit(audit, given_settings(**dataset), rank, reads=reads, as_json=as_json)
        return
    if values is not None:
        _print_values(given_settings(**dataset), key, values)
        return
    if [step, steps, find].count(None) != 2 and (find is None or None not in (step, steps)):
        raise click.UsageError("give one of --step, --steps and --find")
    if find is None:
        refuse_unused("without --find", "epochs")
    if show and key is not None:
        raise click.UsageError("--show prints whole records, --key a feature of each: give one")
    from streamrec.streams.which_read import ends_in

    wanted = step if step is not None else steps
    saved = None if state is None else _read_state(state)
    of_run = {"rank": rank, "world_size": world_size, "state": saved}
    given = {**ends_in(saved), **given_settings(**dataset)}
    if reads:
        _print_read(given, wanted, of_run, as_json=as_json)
        return
    of_run |= {"find": find, "find_epochs": epochs}
    _print_computed(checked(given), wanted, of_run, show=show, key=key, as_json=as_json)


def _print_values(given: Mapping[str, Any], key: str | None, values: Path) -> None:
    """List the records that have some values."""
    refuse_unused("with --values", "rank", "as_json", "reads", *(OF_PLACES - {"key", "values"}))
    if key is None:
        raise click.UsageError("--values needs --key FEATURE, the feature that has the values")
    print_found(given, key, values)


def _print_computed(
    settings: DatasetSettings,
    steps: int | range | None,
    of_run: Mapping[str, Any],
    *,
    show: bool,
    key: str | None,
    as_json: bool,
) -> None:
    """Compute the places of some steps or of a record, and print them, or the records there."""
    from streamrec.streams.which import places

    with no_collection():
        found = places(settings, steps, **of_run)
    if show or key is not None:
        _print_records(found, settings, [key] if key is not None else None, as_json=as_json)
    else:
        click.echo("\n".join(_lines(found, as_json=as_json)).encode())


def _print_read(
    given: Mapping[str, Any], steps: int | range | None, of_run: Mapping[str, Any], *, as_json: bool
) -> None:
    """Read the stream, and print the places of the records of some steps."""
    from streamrec.streams.which_read import read_places

    refuse_unused("with --read", "find", "epochs", "show", "key")
    assert steps is not None  # there is no --find
    found = read_places(checked(given), steps, **of_run)
    click.echo("\n".join(_lines(found, COLUMNS_READ, as_json=as_json)).encode())


OF_PLACES = frozenset(
    ("step", "steps", "find", "epochs", "world_size", "state", "show", "key", "values")
)
"""Options of places, which have no effect on the check of an audit log."""


def given_settings(
    urls: Sequence[str],
    config: Path | None,
    dataset: str | None,
    changes: Mapping[str, Any],
    storage_options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the settings that the options give, by name.

    Raises:
        UsageError: A dataset is named, but no configuration.
        ConfigError: The configuration cannot be read.
    """
    from streamrec.cli.bench_measuring import refuse_dataset_alone

    refuse_dataset_alone(config, dataset)
    plain = {} if config is None else _settings_in(config, dataset)
    if urls:
        plain["source"] = urls[0] if len(urls) == 1 else list(urls)
    if storage_options:
        plain["storage_options"] = dict(storage_options)
    return {**plain, **changes}


def stream_settings(
    urls: Sequence[str],
    config: Path | None,
    dataset: str | None,
    changes: Mapping[str, Any],
    storage_options: Mapping[str, Any],
    **defaults: Any,
) -> DatasetSettings:
    """Return the settings of a stream: those of the options, and before them the defaults.

    Raises:
        UsageError: There is no source or batch size.
        ConfigError: Settings are wrong.
    """
    return checked({**defaults, **given_settings(urls, config, dataset, changes, storage_options)})


def checked(plain: Mapping[str, Any]) -> DatasetSettings:
    """Return the settings of a stream that are given by name.

    Raises:
        UsageError: There is no source or batch size.
        ConfigError: Settings are wrong.
    """
    from streamrec.config import DatasetSettings, validate

    if "source" not in plain:
        raise click.UsageError("there is no source; give a URL, or --config FILE")
    if plain.get("batch_size") is None:
        raise click.UsageError("there is no batch size; give that of the run, --set batch_size=N")
    return validate(DatasetSettings, dict(plain))


def _settings_in(config: Path, dataset: str | None) -> dict[str, Any]:
    # What reads a feeder's configuration takes a tenth of a second to import.
    from streamrec.measure.targets import settings_in

    return settings_in(config, dataset)


TORCH = b"PK\x03\x04", b"\x80"
"""How files of ``torch.save`` begin: an archive, or before PyTorch 1.6 a pickle."""


def _read_state(path: Path) -> Any:
    """Return the content of a file of states.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_STATE + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); correct --state") from None
    if data.startswith(TORCH):
        from streamrec.adapters.torch import load_checkpoint

        return load_checkpoint(path)
    if len(data) > LARGEST_STATE:
        raise ConfigError(f"{path} is too large for a state; give what state_dict() returned")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{path} is not JSON; write it with json.dump(stream.state_dict(), file)"
        ) from None


COLUMNS = ("step", "rank", "row", "epoch", "lane", "record", "shard")
"""The columns of the table; JSON has all fields."""
COLUMNS_READ = ("step", "rank", "row", "record", "shard")
OF_A_MIX = "component"
"""The column before that of the shard in the table of a mix."""


def _lines(
    found: Sequence[DeliveredRecord | ReadRecord],
    columns: Sequence[str] = COLUMNS,
    *,
    as_json: bool,
) -> list[str]:
    """Return a line for each place."""
    plain = [_plain(place) for place in found]
    if as_json:
        return [json.dumps(place, ensure_ascii=False) for place in plain]
    if any(place[OF_A_MIX] is not None for place in plain):
        columns = (*columns[:-1], OF_A_MIX, columns[-1])
    rows = [tuple(columns), *(tuple(str(place[name]) for name in columns) for place in plain)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The names of shards, which come last, may be of any length.
    return ["  ".join(map(str.rjust, row[:-1], widths)) + f"  {row[-1]}" for row in rows]


def _plain(place: DeliveredRecord | ReadRecord) -> dict[str, Any]:
    from streamrec.masking import masked

    return place._asdict() | {"shard": masked(place.shard)}


def _print_records(
    found: Sequence[DeliveredRecord],
    settings: DatasetSettings,
    features: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    """Print the record of each place; with JSON, beside its place."""
    from streamrec.cli.json_form import Examples
    from streamrec.datasets.found_records import records_at

    examples = Examples(features)
    waiting = []
    with closing(records_at(found, settings.storage_options or {})) as records:
        for place, record in zip(found, records, strict=True):
            line = "null" if record is None else examples.line(record)
            if as_json:
                line = f'{json.dumps(_plain(place), ensure_ascii=False)[:-1]}, "value": {line}}}'
            waiting.append(line)
            # Until then a wrong name of a feature would only print empty lines.
            if examples.has_all:
                click.echo("\n".join(waiting).encode())
                waiting.clear()
    examples.finish()
    if waiting:
        click.echo("\n".join(waiting).encode())


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
    from streamrec.datasets.found_records import find_values
    from streamrec.masking import masked
    from streamrec.report.words import quantity

    if "source" not in given:
        raise click.UsageError("there is no source; give a URL, or --config FILE")
    values = _values_in(path)
    found = find_values(validate(DatasetSettings, dict(given)), feature, values)
    for one in found.records:
        line = {"shard": masked(one.shard), "record": one.record, "value": one.values[0]}
        click.echo(json.dumps(line, ensure_ascii=False).encode())
    records = quantity(len(found.records), "record", "records")
    text = f"{records}; {found.missing:,} of {found.wanted:,} values not found"
    click.echo(text, err=True)


def _values_in(path: Path) -> set[str]:
    from streamrec.formats.shards.key_index import values_in

    try:
        values = set(values_in(path.read_bytes()))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read ({reason}); correct --values") from None
    if not values:
        raise ConfigError(f"{path} has no value; write each value on a line of its own")
    return values


AUDIT_COUNTS = (
    "objects",
    "nbytes",
    "steps",
    "computed",
    "read",
    "unchecked",
    "skipped",
    "masked",
    "again",
)
"""The figures of a rank, as JSON has them."""


def print_audit(
    address: str, changes: Mapping[str, Any], rank: int | None, *, reads: bool, as_json: bool
) -> None:
    """Check an audit log, and print what was found; exit with 1 unless it agrees.

    Args:
        address: The log's directory.
        changes: Settings that replace those of the log.
        rank: The only rank to check; ``None``: all.
        reads: Read the shards again where the records of a step cannot be computed.
        as_json: Print JSON lines.
    """
    from streamrec.streams.audit_check import check_audit

    options = changes.get("storage_options")
    report = check_audit(address, changes, storage_options=options, rank=rank, reads=reads)
    lines = _audit_json(report) if as_json else _audit_lines(report, reads=reads)
    with ending_with(0 if report.agrees else FAILED):
        click.echo("\n".join(lines).encode())


def _audit_json(report: AuditReport) -> Iterator[str]:
    for one in report.ranks:
        counts = {name: getattr(one, name) for name in AUDIT_COUNTS}
        named = {"rank": one.rank, "world_size": one.world_size, **counts, "spans": one.spans}
        yield json.dumps({**named, "faults": one.faults}, ensure_ascii=False)
    ends = {"gaps": report.gaps, "strays": report.strays, "agrees": report.agrees}
    yield json.dumps(ends, ensure_ascii=False)


def _audit_lines(report: AuditReport, *, reads: bool) -> Iterator[str]:
    from streamrec.report.words import quantity

    for one in report.ranks:
        yield f"rank {one.rank} of {one.world_size}: {', '.join(_audit_facts(one))}"
    for one in report.ranks:
        yield from one.faults
    yield from report.gaps
    yield from report.strays
    unchecked = sum(one.unchecked for one in report.ranks)
    if not report.agrees:
        yield "the log does not agree with the settings, or is not complete"
    elif unchecked:
        steps = quantity(unchecked, "step was", "steps were")
        # What is not compared with --read has no order that a second run would have.
        why = "with ordered=False nothing can be compared" if reads else "add --read for that"
        yield f"nothing is missing, but {steps} not compared; {why}"
    else:
        yield "all steps in the log are those of the settings"


def _audit_facts(one: RankReport) -> Iterator[str]:
    """Yield what the log has of a rank."""
    from streamrec.report.words import quantity

    yield quantity(one.steps, "step", "steps")
    if one.spans:
        yield f"from {min(one.spans)[0]} to {max(end for _, end in one.spans) - 1}"
    told = {
        "as computed": one.computed,
        "as read again": one.read,
        "not compared": one.unchecked,
        "skipped": one.skipped,
        "delivered again": one.again,
    }
    yield from (f"{count} {what}" for what, count in told.items() if count)
    if one.masked:
        yield quantity(one.masked, "masked record", "masked records")
    if one.faults:
        yield quantity(len(one.faults), "fault", "faults")
