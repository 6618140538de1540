"""Protobuf messages from a small readable table, without generated code.

The messages live in a descriptor pool of their own, so they never clash with messages of the same
name that another library registered in the process: an installed TensorFlow has its own
``tensorflow.Example``, and protobuf refuses two in one pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Field", "build"]

_Kind = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Kind.TYPE_BOOL,
    "bytes": _Kind.TYPE_BYTES,
    "double": _Kind.TYPE_DOUBLE,
    "float": _Kind.TYPE_FLOAT,
    "int32": _Kind.TYPE_INT32,
    "int64": _Kind.TYPE_INT64,
    "string": _Kind.TYPE_STRING,
    "uint32": _Kind.TYPE_UINT32,
    "uint64": _Kind.TYPE_UINT64,
}


class Field(NamedTuple):
    """One field of a message, in the words and the order of a ``.proto`` file.

    ``repeated int64 value = 1;`` is ``Field("repeated int64", "value", 1)``.
    """

    type: str
    """A scalar, a message of the same table, either after ``repeated``, or ``map<string, T>``."""
    name: str
    number: int
    """The tag on the wire: never change one that has been released."""
    oneof: str | None = None
    """The name of the ``oneof`` group, of whose fields at most one is set."""


def build(package: str, messages: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """Make message classes, as protoc would from a proto3 file.

    Repeated numbers are written packed, and read in both encodings.

    Args:
        package: The prefix of the messages' full names.
        messages: The fields of each message, by the message's name.

    Returns:
        The message classes by name.

    Raises:
        ValueError: A field's type is neither a scalar nor a message of the table.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add(message, field, f".{package}", messages)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(types[name]) for name in messages}


def _add(message: Any, field: Field, package: str, messages: Mapping[str, Any]) -> None:
    repeated, kind = _split(field.type)
    if kind.startswith("map<"):
        kind = _add_entry(message, field, package, messages)
        repeated = True
    label = _Kind.LABEL_REPEATED if repeated else _Kind.LABEL_OPTIONAL
    proto = message.field.add(name=field.name, number=field.number, label=label)
    _set_type(proto, kind, package, messages)
    if field.oneof:
        proto.oneof_index = _oneof(message, field.oneof)


def _split(kind: str) -> tuple[bool, str]:
    word, space, rest = kind.partition(" ")
    return (True, rest) if space and word == "repeated" else (False, kind)


def _add_entry(message: Any, field: Field, package: str, messages: Mapping[str, Any]) -> str:
    """Declare the message of one map entry, which is how protobuf represents maps."""
    key, value = field.type.removeprefix("map<").removesuffix(">").replace(" ", "").split(",")
    name = "".join(word.capitalize() for word in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for part in (Field(key, "key", 1), Field(value, "value", 2)):
        _add(entry, part, package, messages)
    return f"{package}.{message.name}.{name}"


def _set_type(proto: Any, kind: str, package: str, messages: Mapping[str, Any]) -> None:
    if kind in _SCALARS:
        proto.type = _SCALARS[kind]
        return
    if kind not in messages and not kind.startswith("."):
        raise ValueError(
            f"field {proto.name!r} has the type {kind!r}, which is no scalar and no message of the "
            "table; correct the type, or add the message"
        )
    proto.type = _Kind.TYPE_MESSAGE
    proto.type_name = kind if kind.startswith(".") else f"{package}.{kind}"


def _oneof(message: Any, name: str) -> int:
    names = [oneof.name for oneof in message.oneof_decl]
    if name not in names:
        message.oneof_decl.add(name=name)
        names.append(name)
    return names.index(name)
