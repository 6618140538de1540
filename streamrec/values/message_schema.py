"""Protobuf messages from a small readable table, without generated code.

The messages live in a descriptor pool of their own, so they never clash with messages of the same
name that another library registered in the process: an installed TensorFlow has its own
``tensorflow.Example``, and protobuf refuses two in one pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Field(NamedTuple):
    """One field of a message, in the words and the order of a ``.proto`` file.

    Names of scalars are in lower case, those of messages in mixed case.

    ``repeated int64 value = 1;`` is ``Field("repeated int64", "value", 1)``.
    """

    type: str
    """A scalar, a message of the same table, either after ``repeated``, or ``map<string, T>``."""
    name: str
    number: int
    """The tag on the wire: never change one that has been released."""
    oneof: str | None = None
    """The name of the ``oneof`` group, of whose fields at most one is set."""


def unreadable() -> tuple[type[Exception], ...]:
    """Return what protobuf raises of bytes that are not a message.

    The second one comes where protobuf runs in Python, of strings that are not UTF-8.
    """
    from google.protobuf.message import DecodeError

    return DecodeError, UnicodeDecodeError


class Messages(dict[str, Any]):
    """Message classes by name, as protoc would make them from a proto3 file.

    Repeated numbers are written packed, and read in both encodings. The classes are made when the
    first of them is asked for: most streams need none, and protobuf takes long to import.

    Args:
        package: The prefix of the messages' full names.
        messages: The fields of each message, by the message's name.
    """

    def __init__(self, package: str, messages: Mapping[str, Sequence[Field]]) -> None:
        super().__init__()
        self._package, self._messages = package, messages
        self._made: dict[str, dict[str, Any]] = {}

    def __missing__(self, name: str) -> Any:
        """Make the classes.

        Raises:
            TypeError: A field's type is neither a scalar nor a message of the table.
            KeyError: The table has no message of this name.
        """
        if name not in self._messages:
            raise KeyError(name)
        # Messages hold one another, so of threads that make them all keep those of the first one.
        # Without a lock: a fork meanwhile would leave it locked in the child for ever.
        made = _classes(self._package, self._messages)
        self.update(self._made.setdefault(self._package, made))
        return self[name]


def _classes(package: str, messages: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add(message, field, f".{package}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(types[name]) for name in messages}


def _add(message: Any, field: Field, package: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Kind

    kind = field.type
    if kind.startswith("map<"):
        kind = f"repeated {_add_entry(message, field, package)}"
    is_repeated, kind = kind.startswith("repeated "), kind.removeprefix("repeated ")
    label = Kind.LABEL_REPEATED if is_repeated else Kind.LABEL_OPTIONAL
    proto = message.field.add(name=field.name, number=field.number, label=label)
    if kind.islower():
        proto.type = Kind.Type.Value(f"TYPE_{kind.upper()}")
    else:
        proto.type, proto.type_name = Kind.TYPE_MESSAGE, f"{package}.{kind}"
    if field.oneof:
        groups = [group.name for group in message.oneof_decl]
        if field.oneof not in groups:
            message.oneof_decl.add(name=field.oneof)
            groups.append(field.oneof)
        proto.oneof_index = groups.index(field.oneof)


def _add_entry(message: Any, field: Field, package: str) -> str:
    """Declare the message of one map entry, which is how protobuf represents maps."""
    key, value = field.type.removeprefix("map<").removesuffix(">").replace(" ", "").split(",")
    name = "".join(word.capitalize() for word in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for part in (Field(key, "key", 1), Field(value, "value", 2)):
        _add(entry, part, package)
    return f"{message.name}.{name}"
