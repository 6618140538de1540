"""The configuration of the daemon."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from streamrec.config.cache_and_audit import absolute_cache
from streamrec.config.dataset import DatasetSettings
from streamrec.config.environment import SERVER_PREFIX, overrides
from streamrec.config.lazy_settings import LazySettings
from streamrec.config.named_files import read_small_file
from streamrec.config.places import (
    PLACES,
    absolute,
    absolute_options,
    absolute_source,
    absolute_values,
)
from streamrec.config.server_settings import ServerSettings, TlsSettings
from streamrec.config.validation import Settings, check_values
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrec.config.validation import NonEmpty


_NO_FILES: list[str] = []


class ServedSettings(DatasetSettings):
    """The settings of a dataset that a feeder serves."""

    tokens: list[NonEmpty] = _NO_FILES
    """Files of tokens that open this dataset alone."""


MOST_BYTES = 1 << 20
"""Bytes of the largest configuration."""


def _check_names(datasets: dict[str, Any]) -> dict[str, Any]:
    for name in datasets:
        if not name or not name.isprintable():
            raise ValueError(
                f"has a dataset named {name!r}; give it a name of characters that can be shown"
            )
    return datasets


class DaemonSettings(Settings):
    """The configuration of ``streamrec serve``: ``[server]`` and ``[datasets.NAME]`` tables."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    datasets: Annotated[
        dict[str, ServedSettings], Field(min_length=1), AfterValidator(_check_names)
    ]

    @classmethod
    def table_of(cls, location: Sequence[int | str]) -> tuple[type[Any], int]:
        """Return the table of a location: the daemon's, a dataset's, or the whole file."""
        if len(location) == 1:
            return cls, 1
        if location[0] != "server":
            return ServedSettings, 3
        return (
            (TlsSettings, 3)
            if location[1:2] == ("tls",) and len(location) > 2
            else (ServerSettings, 2)
        )


_Model = TypeVar("_Model", bound=Settings | LazySettings)

Checks: TypeAlias = Callable[
    [ServerSettings | None, Mapping[str, ServedSettings], bool], Iterable[str]
]
"""Gives a sentence for each fault beyond the types: of the server and the datasets, where
settings of a wrong type have their defaults; the last is True if all of the server's are right."""


def load_daemon(
    path: str | Path,
    variables: Mapping[str, str] | None = None,
    checks: Checks = lambda _, __, ___: (),
) -> DaemonSettings:
    """Read the daemon's TOML file.

    Args:
        path: The file. Relative paths in it are those of its directory.
        variables: Environment variables; those with :data:`SERVER_PREFIX` override ``[server]``.
        checks: More checks.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or something in it is wrong; then the
            message has a line for each fault.
    """
    values = _with_absolute_paths(read_toml(path), str(Path(path).absolute().parent))
    server = values.get("server", {})
    changed, names, faults = overrides(ServerSettings, server, variables or {}, SERVER_PREFIX)
    if "server" in values or changed:
        # A table that was not there stays away, so that its absence is judged as such.
        values["server"] = changed
    settings, wrong = check_values(DaemonSettings, values)
    # Further checks compare settings, and would blame right ones beside a wrong one.
    is_right = not faults and not any(setting[0] == "server" for setting in wrong)
    faults += (_with_variable(fault, names.get(setting[1:])) for setting, fault in wrong.items())
    faults += checks(*_right_parts(values), is_right)
    if settings is None or faults:
        raise ConfigError(_report(path, faults))
    return settings


def _with_absolute_paths(values: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return the file's settings with absolute paths; what is of a wrong type stays as it is."""
    tables = values.get("datasets")
    server = values.get("server")
    # Before the validation: paths are those of the file's directory, whatever the working directory
    # is.
    changed = dict(values)
    if isinstance(server, dict):
        changed["server"] = server | _tokens(server, directory)
        if isinstance(server.get("tls"), dict):
            changed["server"]["tls"] = _each(server["tls"], lambda path: absolute(path, directory))
    if isinstance(tables, dict):
        changed["datasets"] = {
            name: _dataset(table, directory) if isinstance(table, dict) else table
            for name, table in tables.items()
        }
    return changed


def _dataset(table: dict[str, Any], directory: str) -> dict[str, Any]:
    places: dict[str, Any] = {
        name: absolute(table[name], directory)
        for name in PLACES & table.keys()
        if isinstance(table[name], str)
    }
    # A source is a pattern: special characters of the directory must not become a part of it.
    source = _each(table.get("source"), lambda text: absolute_source(text, directory))
    others = {"source": source, "cache": absolute_cache(table.get("cache"), directory)}
    options = table.get("storage_options")
    if isinstance(options, dict):
        others["storage_options"] = absolute_options(options, directory)
    if isinstance(table.get("exclude"), dict):
        places["exclude"] = absolute_values(table["exclude"], directory)
    return table | places | _collect_given(table, others) | _tokens(table, directory)


def _tokens(table: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return the setting of files of tokens, if there is one."""
    places = _each(table.get("tokens"), lambda path: absolute(path, directory))
    return _collect_given(table, {"tokens": places})


def _collect_given(table: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changed.items() if name in table}


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """Change each text of a text, a list or a mapping of them."""
    if isinstance(value, dict):
        return {name: _each(part, change) for name, part in value.items()}
    if isinstance(value, list):
        return [_each(part, change) for part in value]
    return change(value) if isinstance(value, str) else value


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a file of TOML.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        # Editors on Windows begin a file with a mark, which TOML does not know.
        return tomllib.loads(read_small_file(path, MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); name a readable TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML ({error}); correct the file") from None


def _right_parts(
    values: Mapping[str, Any],
) -> tuple[ServerSettings | None, dict[str, ServedSettings]]:
    """Return the server's settings and those of each dataset, without those of wrong types."""
    datasets = values.get("datasets")
    tables = datasets.items() if isinstance(datasets, dict) else ()
    parts = ((name, _right_part(ServedSettings, table)) for name, table in tables)
    server = _right_part(ServerSettings, values.get("server", {}))
    return server, {name: settings for name, settings in parts if settings is not None}


def _right_part(model: type[_Model], table: Any) -> _Model | None:
    """Return the settings of a table without the wrong ones.

    ``None``: a wrong setting is required, or the value is not a table.
    """
    if not isinstance(table, dict):
        return None
    settings, wrong = check_values(model, table)
    if settings is None:
        # The others are checked all the same, so that one run tells all faults.
        names = {path[0] for path in wrong if path}
        rest = {name: value for name, value in table.items() if name not in names}
        settings, _ = check_values(model, rest)
    return settings


def _with_variable(fault: str, variable: str | None) -> str:
    return fault if variable is None else f"{variable}: {fault}"


def _report(path: str | Path, faults: Sequence[str]) -> str:
    if len(faults) == 1:
        return f"{path}: {faults[0]}"
    lines = "".join(f"\n  {fault}" for fault in faults)
    return f"{path} has {len(faults)} faults:{lines}"
