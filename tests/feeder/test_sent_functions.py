from __future__ import annotations

import operator
import threading
from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError
from streamrec.feeder.sent_functions import Unsendable, pickled, unpickled
from streamrec.pipeline.functions import importable

if TYPE_CHECKING:
    from collections.abc import Callable


class Times:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: int) -> int:
        return self.factor * number


@pytest.mark.parametrize("kind", ["lambda", "local", "object", "partial", "main"])
def test_what_is_sent_by_value(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factor = 3

    def local(number: int) -> int:
        return factor * number

    functions: dict[str, Callable[..., Any]] = {
        "lambda": lambda number: factor * number,
        "local": local,
        "object": Times(factor),
        "partial": partial(operator.mul, factor),
        "main": local,
    }
    if kind == "main":
        monkeypatch.setattr(local, "__module__", "__main__")
    assert importable(functions[kind]) is None
    assert unpickled("map", pickled("map", functions[kind]))(14) == 42


def test_what_cannot_be_sent() -> None:
    lock = threading.Lock()
    with pytest.raises(Unsendable, match=r"'map' is .*<lambda>.*lock.*or set engine="):
        pickled("map", lambda columns: (lock, columns))


def test_what_cannot_be_loaded() -> None:
    pickle = b64encode(b"cno_such_module\nf\n.").decode()
    with pytest.raises(ConfigError, match=r"setting 'map' \(ModuleNotFoundError"):
        unpickled("map", pickle)
