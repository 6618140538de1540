"""Validation of settings: the base of their classes, and the sentences about wrong ones.

A message has one sentence for each wrong setting, which begins "the setting 'name' ": a validator's
message goes on from there, and says what is wrong and what to do.
"""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    InstanceOf,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic_core import PydanticCustomError

from streamrec.config.habits import HABITS, OF_A_CLIENT
from streamrec.errors import ConfigError
from streamrec.masking import mask_urls
from streamrec.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from pydantic.fields import FieldInfo


_SECRETS = ("storage_options", "token")
"""The settings whose values errors do not show."""

_WANTED = {
    "byte_size": 'bytes, such as "1GiB"',
    "byte_size_unit": 'bytes, such as "1GiB"',
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
"""What a value should be, by pydantic's type of the fault, where its own words puzzle people."""


def _in_whole(value: object) -> object:
    """Refuse a text that has more than a number and a unit: pydantic leaves out what follows."""
    if isinstance(value, str) and not re.fullmatch(r"\s*\d*\.?\d+\s*[^\W\d]*\s*", value):
        raise PydanticCustomError("byte_size", "not a number and a unit")
    return value


if TYPE_CHECKING:
    Bytes: TypeAlias = int
else:
    Bytes = Annotated[ByteSize, BeforeValidator(_in_whole)]
"""A number of bytes, or a text such as ``"256MiB"``."""

NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]
Wait: TypeAlias = Annotated[float, Field(gt=0, le=1e7)]
"""Seconds, up to 115 days: an event loop cannot set a longer timer."""

NAMES: dict[str, Any] = {
    "AfterValidator": AfterValidator,
    "BeforeValidator": BeforeValidator,
    "Bytes": Bytes,
    "Field": Field,
    "InstanceOf": InstanceOf,
    "NonEmpty": NonEmpty,
    "NonNegativeFloat": NonNegativeFloat,
    "NonNegativeInt": NonNegativeInt,
    "PositiveFloat": PositiveFloat,
    "PositiveInt": PositiveInt,
    "SecretStr": SecretStr,
    "Wait": Wait,
}
"""The names in annotations of settings whose modules import pydantic for type checkers alone."""


class Settings(BaseModel):
    """The base of settings that few programs have: frozen, and without secrets in a repr.

    Those of each stream are :class:`~streamrec.config.lazy_settings.LazySettings`.
    """

    # Defaults too: the checks of a setting against others must run where it is left out.
    # Built at the first use, as an import of the package should not wait for validators.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return ((name, mask_urls(value)) for name, value in super().__repr_args__())

    @classmethod
    def table_of(cls, _location: Sequence[int | str]) -> tuple[Any, int]:
        """Return the table that a location is in, and the number of parts that name a setting."""
        return cls, 1


def build_model(kind: type[Any], required: Container[str]) -> type[BaseModel]:
    """Build the model of a class of settings from its annotations.

    Args:
        kind: The class.
        required: The settings that must be there.
    """
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        own = vars(base).get("__annotations__", {})
        described = SimpleNamespace(__annotations__={n: own[n] for n in own if n in kind.defaults})
        place = vars(sys.modules[base.__module__])
        hints |= get_type_hints(described, place, NAMES, include_extras=True)
    fields = {
        name: (hints[name], ... if name in required else default)
        for name, default in kind.defaults.items()
    }

    def fits(value: Any, others: ValidationInfo) -> Any:
        kind.checks[cast("str", others.field_name)](value, others.data)
        return value

    checks: Any = {"fits": field_validator(*kind.checks)(fits)} if kind.checks else {}
    config = ConfigDict(
        extra="ignore" if kind.ignores_others else "forbid", frozen=True, validate_default=True
    )
    return create_model(
        kind.__name__,
        __config__=config,
        __module__=kind.__module__,
        __validators__=checks,
        **cast("dict[str, Any]", fields),
    )


_Model = TypeVar("_Model", bound=Any)


def judge(
    model: type[_Model], values: Mapping[str, Any], *, where: str = "", strict: bool = True
) -> _Model:
    """Build a settings object, or say what is wrong.

    Raises:
        ConfigError: Settings are wrong; the message has one sentence for each of them.
    """
    try:
        plain = {
            name: _plain(value, model.model_fields.get(name)) for name, value in values.items()
        }
        return cast("_Model", model.model_validate(plain, strict=strict))
    except ValidationError as error:
        faults = "; ".join(_sentences(model, error).values())
        raise ConfigError(f"{where}: {faults}" if where else faults) from None


def check_values(
    model: type[_Model], values: Mapping[str, Any]
) -> tuple[_Model | None, dict[tuple[str, ...], str]]:
    """Build a settings object from the values of a file, where a text is not taken for a number.

    Args:
        model: The settings class.
        values: The values by the settings' names, as TOML and JSON have them.

    Returns:
        The settings, ``None`` where one is wrong; and a sentence for each that is, by its path.
    """
    # JSON's strict mode knows that a file has no tuples and no objects; Python's refuses them.
    text = json.dumps(values, default=str)
    try:
        return cast("_Model", model.model_validate_json(text, strict=True)), {}
    except ValidationError as error:
        return None, _sentences(model, error)


def _plain(value: Any, field: FieldInfo | None) -> Any:
    """Return a value of Python in the form that a file would have it."""
    if isinstance(value, tuple):
        return [_plain(one, None) for one in value]
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:  # a number of NumPy
        return value.item()
    if isinstance(value, float) and value.is_integer() and "ByteSize" in repr(field):
        return int(value)  # 1e9 bytes
    return value


def any_byte_size(text: object) -> int:
    """Return a number of bytes in any form that settings have; 0: it has none of them."""
    try:
        return int(TypeAdapter[int](Bytes).validate_python(text))
    except ValidationError:
        return 0


def _sentences(model: type[Any], error: ValidationError) -> dict[tuple[str, ...], str]:
    """Return a sentence for each wrong setting, by its path."""
    by_setting: dict[tuple[str, ...], list[Any]] = {}
    for fault in error.errors():
        # Behind a setting's name, pydantic puts the members of a union that it tried.
        path = fault["loc"][: model.table_of(fault["loc"])[1]]
        by_setting.setdefault(tuple(map(str, path)), []).append(fault)
    return {path: _sentence(model, path, few) for path, few in by_setting.items()}


def _sentence(model: type[Any], path: tuple[str, ...], faults: list[Any]) -> str:
    # Of a union pydantic has a fault for each member; the first has the input that all of them saw.
    name, first = ".".join(path), faults[0]
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}{_nearest(model, path)}"
    if first["type"] == "missing":
        return f"the setting {name!r} is missing; add it"
    if first["type"] == "value_error":
        error = first["ctx"]["error"]
        # A validator's message goes on from the name; that of Pack is a sentence of its own.
        return f"the setting {name!r}{': ' if isinstance(error, ConfigError) else ' '}{error}"
    expected = " or ".join(dict.fromkeys(map(_say_wanted, faults)))
    value = first["input"]
    text = type(value).__name__ if path[-1] in _SECRETS else repr(value)
    return f"the setting {name!r} is {text} but must be {expected}"


_LENGTH = re.compile(r"(\w+) should (?:have|match) (.*?)(?: after validation.*)?")
"""pydantic's messages on how long a value is."""


def _say_wanted(fault: Any) -> str:
    """Return what a value must be, of one type that was tried."""
    if fault["type"] in _WANTED:
        return _WANTED[fault["type"]]
    message: str = fault["msg"]
    if length := _LENGTH.fullmatch(message):
        return f"a {length[1].lower()} with {length[2]}"
    return message.removeprefix("Input should be ")


def _nearest(model: type[Any], path: tuple[str, ...]) -> str:
    # First: the name of another library need not be near to ours.
    if hint := OF_A_CLIENT.get(path[-1]) or HABITS.get(path[-1]):
        return f": {hint}"
    return nearest(path[-1], model.table_of(path)[0].model_fields)
