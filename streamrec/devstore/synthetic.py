"""A backend of objects that repeat the contents of a few files, under many names.

A TFRecord shard repeated end to end is a valid TFRecord shard. Terabytes of valid shards thus take
the memory of one.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, PositiveInt, field_validator

from streamrec.config import Settings, validate
from streamrec.devstore.objects import Content, ReadOnlyObjects, StoredObject, digest
from streamrec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_PIECE = 1 << 20


class Recipe(Settings):
    """The description of a bucket's objects."""

    templates: list[Path] = Field(min_length=1)
    """Files with the contents, not empty; the objects use them in turn."""
    name: str = "shard-{:05}"
    """The name of an object, to be formatted with its number, from 0."""
    objects: PositiveInt
    """The number of objects."""
    copies: PositiveInt = 1
    """The number of times that an object repeats its template."""

    @field_validator("name")
    @classmethod
    def _numbered(cls, name: str) -> str:
        try:
            different = name.format(0) != name.format(1)
        except (ValueError, LookupError):
            different = False
        if not different:
            raise ValueError("holds no number; write it like shard-{:05}")
        return name


class SyntheticObjects(ReadOnlyObjects):
    """A read-only backend of synthetic objects.

    Args:
        recipes: The recipe of each bucket, by its name.

    Raises:
        OSError: A template cannot be read.
        ConfigError: A template is empty.
    """

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        self._buckets = {bucket: _objects_of(recipe) for bucket, recipe in recipes.items()}
        self._keys = {bucket: sorted(objects) for bucket, objects in self._buckets.items()}

    @classmethod
    def from_json(cls, plain: Any) -> SyntheticObjects:
        """Return the backend for a JSON object of recipes by bucket.

        Raises:
            ConfigError: The argument is not such an object, or names or values are wrong.
        """
        if not isinstance(plain, dict) or not all(isinstance(one, dict) for one in plain.values()):
            raise ConfigError(
                "synthetic objects must be a JSON object of recipes by bucket; correct the file"
            )
        return cls(
            {name: validate(Recipe, one, where=name, strict=False) for name, one in plain.items()}
        )

    def buckets(self) -> list[str]:
        """Return the buckets' names, sorted."""
        return sorted(self._buckets)

    def keys_of(self, bucket: str, _prefix: str = "") -> list[str]:
        """Return the keys, sorted."""
        return self._keys[bucket]

    async def describe(self, bucket: str, key: str) -> StoredObject:
        """Return the object's metadata; each template is hashed once, in a thread."""
        template = self._buckets[bucket][key]
        if "stored" not in vars(template):
            await asyncio.to_thread(lambda: template.stored)
        return template.stored

    def open(self, bucket: str, key: str) -> Content:
        """Open the object's content for reading."""
        return Content(self._buckets[bucket][key].read)

    def __getitem__(self, name: str) -> bytes:
        bucket, _, key = name.partition("/")
        template = self._buckets[bucket][key]
        return bytes(template.content) * template.copies


class _Template:
    def __init__(self, path: Path, copies: int) -> None:
        # Not mapped from the file: reading an evicted page again would delay all responses.
        self.content = memoryview(path.read_bytes())
        if not self.content:
            raise ConfigError(f"{path} is empty; name a file that holds a shard")
        self.modified = path.stat().st_mtime
        self.copies = copies

    @cached_property
    def stored(self) -> StoredObject:
        """The metadata of the template's objects."""
        etag = digest(f"{digest(self.content)} {self.copies}".encode())
        return StoredObject(len(self.content) * self.copies, etag, self.modified)

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes from ``start`` on, up to the end of a copy, in memory that all share."""
        begin = start % len(self.content)
        return self.content[begin : begin + min(stop - start, LARGEST_PIECE)]


def _objects_of(recipe: Recipe) -> dict[str, _Template]:
    """Return the template of each object by its key."""
    templates = cycle([_Template(path, recipe.copies) for path in recipe.templates])
    return {recipe.name.format(n): next(templates) for n in range(recipe.objects)}
