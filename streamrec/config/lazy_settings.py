"""Settings that each stream has, for which pydantic is imported only where it has to judge.

pydantic and its models take 80 ms of CPU time in each process, and most programs have no setting
wrong. So values that are plainly right are taken as they are (:mod:`streamrec.config.plain_values`
says which), and all others go to a model of pydantic, which is built of the same annotations.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

from streamrec.masking import mask_urls

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from streamrec.config.plain_values import Kind
    from streamrec.config.validation import Settings

_REQUIRED: Any = object()
"""In place of the default of a setting that must be there."""


class _Fields:
    """The attribute ``model_fields`` of a class: pydantic's description of each setting."""

    def __get__(self, _: object, kind: type[LazySettings]) -> dict[str, FieldInfo]:
        return dict(model_of(kind).model_fields)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class LazySettings:
    """The base of these settings: frozen, complete in their names, and without secrets in a repr.

    The annotations are pydantic's. They are evaluated when its model is built, so their names may
    be imported for type checkers alone if :mod:`streamrec.config.validation` has them. Methods are
    named as those of pydantic's models.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    """The default of each setting, by name."""
    kinds: ClassVar[Mapping[str, Kind]] = {}
    """What is plainly right for each setting; one that has none is so in its default alone."""
    checks: ClassVar[Mapping[str, Callable[[Any, Mapping[str, Any]], None]]] = {}
    """Checks of a setting against those before it, which raise ValueError."""
    unshown: ClassVar[Sequence[str]] = ()
    """The settings that a repr leaves out."""
    ignores_others: ClassVar[bool] = False
    """True: names that no setting has are ignored, and not an error."""
    model_fields: ClassVar[Any] = _Fields()

    def __init_subclass__(cls) -> None:
        own = vars(cls).get("__annotations__", {})
        names = (name for name, kind in own.items() if not kind.startswith("ClassVar"))
        cls.defaults = {**cls.defaults, **{name: vars(cls).get(name, _REQUIRED) for name in names}}

    def __init__(self, **values: Any) -> None:
        checked = read_plainly(type(self), values)
        vars(self).update(_read_by_pydantic(type(self), values) if checked is None else checked)

    @classmethod
    def model_validate(cls, values: Mapping[str, Any], *, strict: bool | None = None) -> Self:
        """Check values as pydantic does; raise its error."""
        return cls.model_construct(**_read_by_pydantic(cls, values, strict=strict))

    @classmethod
    def model_validate_json(cls, text: str, *, strict: bool | None = None) -> Self:
        """Check values in JSON as pydantic does; raise its error."""
        return cls.model_construct(**vars(model_of(cls).model_validate_json(text, strict=strict)))

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Return settings of values that need no check."""
        made = cls.__new__(cls)
        vars(made).update(_copied_defaults(cls) | values)
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with other values for some settings, which need no check."""
        return self.model_construct(**{**vars(self), **(update or {})})

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the settings as pydantic does."""
        return model_of(type(self)).model_construct(**vars(self)).model_dump(**options)

    @classmethod
    def table_of(cls, _location: Sequence[int | str]) -> tuple[Any, int]:
        """Return the table that a location is in, and the number of parts that name a setting."""
        return cls, 1

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: Callable[[Any], Any]) -> Any:
        """Let a model of pydantic have these settings in it."""
        from pydantic_core import core_schema

        def take(value: Any, check: Callable[[Any], Any]) -> Any:
            return value if isinstance(value, cls) else cls.model_construct(**vars(check(value)))

        return core_schema.no_info_wrap_validator_function(
            take,
            handler(model_of(cls)),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value, info: value.model_dump(mode=info.mode), info_arg=True
            ),
        )

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(vars(self).items())

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        shown = (pair for pair in self if pair[0] not in self.unshown)
        return f"{type(self).__name__}({', '.join(f'{n}={mask_urls(v)!r}' for n, v in shown)})"

    if not TYPE_CHECKING:  # a type checker knows that they are frozen

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"settings are frozen; {name!r} cannot be set")


_Model = TypeVar("_Model", bound="Settings | LazySettings")


def validate(
    model: type[_Model], values: Mapping[str, Any], *, where: str = "", strict: bool = True
) -> _Model:
    """Build a settings object from plain values.

    Args:
        model: The settings class.
        values: The values by the settings' names.
        where: The source of the values for errors, such as the configuration file's path.
        strict: Types are those of a file: a text is not a number, and 1 is not True.

    Raises:
        ConfigError: Settings are wrong; the message has one sentence for each of them.
    """
    if issubclass(model, LazySettings):
        plain = read_plainly(model, values)
        if plain is not None:
            return model.model_construct(**plain)
    from streamrec.config.validation import judge

    return judge(model, values, where=where, strict=strict)


def read_plainly(model: type[LazySettings], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return all settings of values that are plainly right; ``None``: pydantic must judge them."""
    if not model.ignores_others and not values.keys() <= model.defaults.keys():
        return None
    settings: dict[str, Any] = {}
    try:
        for name, default in _copied_defaults(model).items():
            value = values.get(name, default)
            settings[name] = value if value is default else model.kinds[name](value)
            if name in model.checks:
                model.checks[name](settings[name], settings)
    except (ValueError, TypeError, KeyError, ArithmeticError):
        return None
    return None if _REQUIRED in settings.values() else settings


def _copied_defaults(model: type[LazySettings]) -> dict[str, Any]:
    """Return the defaults; a list is a new one, which its owner may change."""
    return {
        name: list(value) if type(value) is list else value
        for name, value in model.defaults.items()
    }


def _read_by_pydantic(
    model: type[LazySettings], values: Mapping[str, Any], *, strict: bool | None = None
) -> dict[str, Any]:
    return vars(model_of(model).model_validate(values, strict=strict))


_models: dict[type[LazySettings], type[BaseModel]] = {}


def model_of(kind: type[LazySettings]) -> type[BaseModel]:
    """Return the model of pydantic for settings, built at its first use."""
    if kind not in _models:
        from streamrec.config.validation import build_model

        required = {name for name, default in kind.defaults.items() if default is _REQUIRED}
        _models[kind] = build_model(kind, required)
    return _models[kind]


def jsonable(value: Any) -> Any:
    """Return settings, and what they hold, as JSON has it: the ``default`` of ``json.dumps``."""
    if isinstance(value, LazySettings):
        return vars(value)
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


WIDTH = 100
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_FIELD = re.compile(
    # A field, its further lines, and the string after it, which Python itself forgets.
    r'^    (\w+): [^\n]*\n(?:(?:     |    [\])])[^\n]*\n)*    """(.*?)"""',
    re.MULTILINE | re.DOTALL,
)


def meanings(model: type[LazySettings]) -> dict[str, str]:
    """Return the meaning of each setting of a class, by name; none where there is no source."""
    texts: dict[str, str] = {}
    # From the base on, so that a class's own words go before those of its base.
    for kind in reversed(model.__mro__):
        if kind.__module__.startswith("streamrec."):
            texts |= _meanings_of(kind)
    return {name: texts[name] for name in model.defaults if name in texts}


def with_settings(
    doc: str | None, model: type[LazySettings], without: Container[str] = ()
) -> str | None:
    """Return a docstring with a list of the settings after it; ``None`` with python -OO."""
    return doc and f"{inspect.cleandoc(doc)}\n\nSettings:\n\n{_list_settings(model, without)}\n"


def _list_settings(model: type[LazySettings], without: Container[str]) -> str:
    """Return a list of the settings with their defaults and meanings."""
    return "\n".join(
        _fill(f"{name} = {model.defaults[name]!r}: {meaning.replace('``', '')}")
        for name, meaning in meanings(model).items()
        if name not in without
    )


def _fill(text: str) -> str:
    """Return a text in lines; textwrap takes twice as long as to find all meanings."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _meanings_of(kind: type) -> dict[str, str]:
    """Return the meanings of the settings that a class itself declares."""
    if "__annotations__" not in vars(kind):
        return {}
    try:
        return _meanings_in(inspect.getfile(kind)).get(kind.__name__, {})
    # Without the source's file, help goes without meanings.
    except (OSError, TypeError):
        return {}


@cache
def _meanings_in(path: str) -> dict[str, dict[str, str]]:
    """Return the meanings of all settings of a file, by class.

    Each program that opens a stream waits for this: Python's own parser takes ten times as long.
    """
    _, *parts = _CLASS.split(Path(path).read_text())
    bodies = zip(parts[::2], parts[1::2], strict=True)
    return {name: dict(_FIELD.findall(body)) for name, body in bodies}
