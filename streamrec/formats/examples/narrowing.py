"""Narrower dtypes for features, named apart from their specs: the setting ``dtypes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.formats.examples.descriptions import is_pair
from streamrec.formats.examples.dtypes import HELD_AS, dtype_name
from streamrec.kernel.contract import DataType

if TYPE_CHECKING:
    from collections.abc import Sequence


def dtype_names(dtypes: Any) -> list[str] | dict[str, str]:
    """Return the setting ``dtypes`` by the names of its dtypes.

    Args:
        dtypes: A dtype, or a list of dtypes, for all features that hold such numbers; or a mapping
            from features to dtypes. Each is a name, a NumPy type or a ``tf.DType``.

    Raises:
        ConfigError: No feature can have such a dtype, or a list has two for the same features.
    """
    if isinstance(dtypes, Mapping):
        return {name: dtype_name(dtype) for name, dtype in dtypes.items()}
    names = [dtype_name(each) for each in (dtypes if isinstance(dtypes, list) else [dtypes])]
    if len({HELD_AS[name] for name in names}) < len(names):
        raise ConfigError(
            f"dtypes is {names}, and two of them are for the same features; give one for integers "
            "and one for floats, or a mapping by feature"
        )
    return names


def narrowed(plain: Mapping[str, Any], dtypes: Sequence[str] | Mapping[str, str]) -> dict[str, Any]:
    """Return specs in their plain form, with other dtypes.

    Args:
        plain: Specs in their plain form.
        dtypes: Names of dtypes for all features that hold such numbers, or by feature.

    Raises:
        ConfigError: There is no such feature, or it holds something else.
    """
    parts = plain if is_pair(plain) else {"": plain}
    by_name = dtypes if isinstance(dtypes, Mapping) else {}
    known = {name for part in parts.values() for name in part}
    if missing := by_name.keys() - known:
        raise ConfigError(
            f"dtypes names the feature {min(missing)!r}, but the features are "
            f"{', '.join(map(repr, sorted(known)))}; correct the name"
        )
    for_all = {} if isinstance(dtypes, Mapping) else {HELD_AS[name]: name for name in dtypes}
    changed = {
        key: {
            name: _narrowed(name, spec, by_name.get(name), for_all) for name, spec in part.items()
        }
        for key, part in parts.items()
    }
    return changed if is_pair(plain) else changed[""]


def _narrowed(
    name: str, spec: Mapping[str, Any], own: str | None, for_all: Mapping[DataType, str]
) -> Mapping[str, Any]:
    held = None if spec.get("raw") else HELD_AS.get(spec.get("dtype", ""))
    if own is not None and (held is DataType.BYTES or held is not HELD_AS[own]):
        raise ConfigError(
            f"dtypes gives the feature {name!r} the dtype {own!r}, but it holds "
            f"{spec.get('dtype', 'pictures')}; give it a dtype of its kind, or leave it out"
        )
    dtype = own or (for_all.get(held) if held else None)
    return spec if dtype is None else {**spec, "dtype": dtype}
