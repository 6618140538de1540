"""A function that is sent reads there what it reads here, or is refused."""

from __future__ import annotations

import builtins
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from base64 import b64encode
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError
from streamrec.feeder.functions import sent_functions
from streamrec.feeder.functions.function_code import is_own
from streamrec.feeder.functions.sent_functions import SentFunctions, identity_of, unpickle
from tests.support import IN_TORCHS_WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]

OTHER = """
import threading

limit = 1
table = {"a": 1}
lock = threading.Lock()


def read():
    return limit, dict(table)


def __getattr__(name):
    if name == "made":
        return limit + 1
    raise AttributeError(name)
"""
PROGRAM = """
import builtins
import functools
import json
import os
import random
import threading
from functools import partial

import numpy as np

import own_package.settings
import own_other as other
from own_other import read as read_other
from own_other import table

limit = 1
words = ["a"]
lock = threading.Lock()
rng = np.random.default_rng(3)
legacy = random.Random(3)
big = bytearray(1)


def by_global(c): return limit, tuple(words)
def by_helper(c): return by_global(c)
def by_import(c): return read_other()
def by_name(c): return dict(table)
def by_module(c): return other.limit, other.read()
def by_made_attribute(c): return other.made
def by_submodule(c): return own_package.settings.limit
def by_comprehension(c): return [limit for _ in range(2)]
def by_default(c, words=words): return tuple(words)
def by_option(c): return json.own_option


class Lazy:
    @functools.cached_property
    def all(self): return tuple(words)
    def __call__(self, c): return Lazy().all
by_lazy = Lazy()


def by_inner_import(c):
    import json as inner
    return inner.own_option
def by_environment(c): return os.environ["OWN_VARIABLE"]


def decorated(function):
    @functools.wraps(function)
    def inner(c): return function(c), limit
    return inner


@decorated
def by_decorator(c): return tuple(words)


@functools.lru_cache
def cached(): return limit
def by_cache(c): return cached.__wrapped__()


class Base:
    shared = words
    def __call__(self, c): return self.held, self.shared, limit, type(self).shared


class By(Base):
    def __init__(self): self.held = words
    def method(self, c): return super().__call__(c)
    @classmethod
    def of_class(cls, c): return tuple(cls.shared), limit


by_object = By()
by_method = by_object.method
by_class = By.of_class
by_partial = partial(lambda c, words: (tuple(words), limit), words=words)


def by_closure():
    held = words
    return lambda c: (tuple(held), limit)


by_closure = by_closure()


def by_module_of_closure():
    import own_other as inner
    return lambda c: (inner.limit, inner.read())


by_module_of_closure = by_module_of_closure()


class Holds:
    def __call__(self, c): return self.module.limit
with_held_module = Holds()
with_held_module.module = other
with_listed_module = partial(lambda c, modules: modules[0].limit, modules=[other])
def with_default_module(c, module=other): return module.limit
def with_dict_of_module(c): return other.__dict__["limit"]

def with_lock(c): return lock
def with_other_lock(c): return other.lock
def with_globals(c): return globals()["limit"]
def with_getattr(c): return getattr(other, "limit")
def with_builtin(c): return len(own_limits)
def with_builtin_attribute(c): return builtins.own_limits
def with_builtin_function(c): return own_function(c)
def with_plain_builtins(c): return len([...]), open, help, range(3)
def with_eval(c): return eval("limit")
def with_setting(c):
    global limit
    limit += 1
    return c
def with_import(c):
    import own_other
    return own_other.limit
def with_relative_import(c):
    from . import settings
    return settings
def with_big(c): return len(big)

def draw_global(c): return rng.random()
def draw_numpy(c): return np.random.randint(3)
def draw_random(c): return random.random()
draw = random.gauss
def draw_imported(c): return draw(0, 1)
def draw_default(c, legacy=legacy): return legacy.random()
def draw_helper(c): return draw_numpy(c)
draw_bound = partial(lambda c, rng: rng.random(), rng=rng)
class Draws:
    def __init__(self): self.rng = rng
    def __call__(self, c): return self.rng.random()
draw_object = Draws()
def draw_inner(c):
    import numpy.random as r
    from random import shuffle as mixed
    return mixed([1, 2])
def draw_fixed(c):
    rng = np.random.default_rng(5)
    return rng.normal(), random.Random(5).random()
"""
ALIKE = sorted({*re.findall(r"^(?:def )?(by_\w+)", PROGRAM, re.MULTILINE)})


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "own_other.py").write_text(OTHER)
    (tmp_path / "own_program.py").write_text(PROGRAM)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").write_text("")
    (tmp_path / "own_package/settings.py").write_text("limit = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(json, "own_option", 1, raising=False)
    monkeypatch.setenv("OWN_VARIABLE", "1")
    yield importlib.import_module("own_program")
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def change(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change all that the functions read, as a program does between epochs."""
    program.limit = 5
    program.words += ["b"]
    program.other.limit = 6
    program.other.table["b"] = 2
    program.own_package.settings.limit = 7
    monkeypatch.setattr(json, "own_option", 8)
    monkeypatch.setenv("OWN_VARIABLE", "9")


def sent(function: Callable[..., Any], setting: str = "map") -> SentFunctions:
    return SentFunctions.of({setting: function})


@pytest.mark.parametrize("name", ALIKE)
def test_it_reads_what_is_here_now(
    name: str, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = getattr(program, name)
    early = sent(function)
    assert early.error is None
    assert sent(function) == early
    before = repr(function(None))
    change(program, monkeypatch)
    late = sent(function)
    after = repr(function(None))
    assert before != after
    assert late != early
    if name == "by_environment":  # a process begins with it
        return
    assert repr(unpickle(early.data)["map"](None)) == before
    assert repr(unpickle(late.data)["map"](None)) == after


def test_what_it_does_not_read_is_not_sent(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    early = sent(program.by_submodule)
    program.limit, program.other.limit = 2, 3
    monkeypatch.setenv("OWN_VARIABLE", "4")
    assert sent(program.by_submodule) == early


def test_relative_paths_are_looked_up_elsewhere(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may open a file; a process keeps the directory that it was started in."""
    early = sent(program.by_submodule)
    monkeypatch.chdir(tmp_path)
    late = sent(program.by_submodule)
    assert late != early
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert sent(program.by_submodule).error is None


def test_functions_share_what_they_read(program: Any) -> None:
    functions = {"filter": program.By().method, "map": program.by_global}
    loaded = unpickle(SentFunctions.of(functions).data)
    assert loaded["filter"](None)[0] is loaded["filter"](None)[1]
    loaded["filter"](None)[0].append("c")
    assert loaded["map"](None) == (1, ("a", "c"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("with_lock", r"reads 'lock' of own_program \(TypeError: cannot pickle .*lock"),
        ("with_other_lock", r"reads 'other.lock' of own_program \(TypeError: cannot pickle .*lock"),
        ("with_globals", "uses globals, which reads what its code does not name"),
        ("with_getattr", "uses the module other as a whole; name what it reads"),
        ("with_eval", "uses eval, which reads"),
        ("with_builtin", "reads 'own_limits', which the program has put into builtins"),
        ("with_builtin_attribute", "reads 'builtins.own_limits', which the program has put into"),
        ("with_builtin_function", "reads 'own_function', which the program has put into builtins"),
        ("with_setting", "sets the global 'limit'"),
        ("with_import", "imports own_other when it is called; import it at the top"),
        ("with_relative_import", "imports its package when it is called"),
        ("with_default_module", "reads the module own_other through a value that holds it; name"),
        ("with_dict_of_module", "uses the module other as a whole; name what it reads"),
        ("with_big", "reads more than 0 MiB of this program"),
    ],
)
def test_what_cannot_be_sent(
    name: str, why: str, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "own_limits", [1], raising=False)
    monkeypatch.setattr(builtins, "own_function", program.by_global, raising=False)
    if name == "with_big":
        monkeypatch.setattr(sent_functions, "MOST", 1 << 16)
        program.big = os.urandom(1 << 16)
    refused = sent(getattr(program, name))
    named = f"the setting 'map' is own_program:{name}, which cannot be sent to the engine process"
    assert str(refused.error).startswith(named)
    with pytest.raises(ConfigError, match=rf"it {why}.*; let the function .*or set engine="):
        raise refused.error or AssertionError
    assert sent(getattr(program, name)) == refused


@pytest.mark.parametrize("name", ["with_held_module", "with_listed_module"])
def test_a_module_that_a_value_holds(name: str, program: Any) -> None:
    """It is not told what is read of such a module, so it would arrive empty."""
    refused = sent(getattr(program, name)).error
    assert "it reads the module own_other through a value that holds it" in str(refused)


def test_the_page_names_the_limit() -> None:
    page = ROOT / "docs/how-to/filter-and-map.md"
    assert f"{sent_functions.MOST >> 20} MiB" in page.read_text()


@pytest.mark.parametrize(
    ("name", "generator"),
    [
        ("draw_global", "draws from rng"),
        ("draw_numpy", "draws from np.random.randint"),
        ("draw_random", "draws from random.random"),
        ("draw_imported", "draws from draw"),
        ("draw_inner", "draws from mixed"),
        ("draw_helper", "draws from np.random.randint"),
        ("draw_default", "draws from a random generator of the program"),
        ("draw_bound", "draws from a random generator of the program"),
        ("draw_object", "draws from rng"),
    ],
)
def test_a_generator_is_not_copied(name: str, generator: str, program: Any) -> None:
    error = sent(getattr(program, name), "transform").error
    assert f", which {generator}; an engine process would have a copy of it" in str(error)
    assert "as in `def augment(batch, rng)`" in str(error)


def test_a_generator_of_its_own_is_no_obstacle(program: Any) -> None:
    function = program.draw_fixed
    assert unpickle(sent(function).data)["map"](None) == function(None)


@IN_TORCHS_WORKER
def test_torchs_generator(program: Any) -> None:
    torch = pytest.importorskip("torch")

    def noise(batch: Any) -> Any:
        return torch.randn(3)

    assert "draws from torch.randn" in str(sent(noise).error)


def test_what_python_puts_into_builtins_is_no_obstacle(program: Any) -> None:
    assert sent(program.with_plain_builtins).error is None


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("imported", ["module", "function"])
def test_a_setting_that_torch_holds_in_c(imported: str, is_set: bool, program: Any) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor

    def make(batch: Any) -> Any:
        return torch.tensor([0.5]) if imported == "module" else tensor([0.5])

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if is_set else before)
    try:
        refused = str(sent(make).error or "")
        assert (
            "and the program has changed the result of torch.get_default_dtype" in refused
        ) == is_set
        assert sent(program.by_global).error is None, "which has nothing to do with torch"
    finally:
        torch.set_default_dtype(before)


def test_a_cache_of_results_begins_empty(program: Any) -> None:
    calls = []

    @functools.cache
    def helper(number: int) -> int:
        calls.append(number)
        return number + 1

    assert helper(1) == helper(1) == 2
    loaded: Any = unpickle(sent(lambda _: helper(1)).data)["map"]
    cached = loaded.__closure__[0].cell_contents
    assert cached.cache_info().currsize == 0
    assert (cached(1), cached.cache_info().currsize) == (2, 1)
    assert calls == [1], "the copy has a list of its own"


LIBRARY = """
import numpy as np
flags = [1]
class Flip:
    def __call__(self, batch): return np.random.rand() < self.odds()
    @staticmethod
    def odds(): return flags[0]
def scale(batch): return batch, flags[0]
class Options:
    def __init__(self): self.limit = 1
    def __call__(self, arguments): self.limit = len(arguments)
options = Options()
"""


@pytest.fixture
def library(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "lib/site-packages"
    folder.mkdir(parents=True)
    (folder / "own_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("own_library")


def test_what_is_set_in_a_library(library: Any) -> None:
    """As `absl.flags.FLAGS` is, which cannot be pickled."""

    def limited(columns: Any) -> Any:
        return library.options.limit

    library.options.limit = 7
    early = sent(limited)
    assert unpickle(early.data)["map"](None) == 7
    library.options.limit = 8
    assert sent(limited) != early
    library.options.lock = threading.Lock()
    assert "it reads 'library.options' of tests.feeder.functions.test_sent" in str(
        sent(limited).error
    )


def test_an_installed_class_that_draws(library: Any) -> None:
    """As those of torchvision do; other code of a library is imported there."""
    assert not is_own("own_library")
    flip = library.Flip()
    error = str(sent(flip).error)
    assert "which uses own_library.Flip, which draws from np.random.rand; an engine" in error
    assert unpickle(sent(library.scale).data)["map"] is library.scale


def test_a_package_installed_from_a_folder_is_the_users(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lib/site-packages"
    (folder / "own_local-1.0.dist-info").mkdir(parents=True)
    (folder / "own_local-1.0.dist-info/direct_url.json").write_text("{}")
    (folder / "own_local.py").write_text("limit = 1\ndef f(c): return limit\n")
    monkeypatch.syspath_prepend(str(folder))
    local: Any = importlib.import_module("own_local")
    assert is_own("own_local")
    local.limit = 2
    assert unpickle(sent(local.f).data)["map"](None) == 2


def test_odd_modules(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs put objects among the modules, and some modules refuse to be looked at."""

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("the backend is missing")

    monkeypatch.setitem(sys.modules, "odd_object", object())
    monkeypatch.setitem(sys.modules, "odd_nothing", None)
    monkeypatch.setitem(sys.modules, "odd_lazy", Lazy("odd_lazy"))
    lazy: Any = sys.modules["odd_lazy"]
    lazy.__file__ = "/usr/lib/python3/dist-packages/odd_lazy.py"

    def careful(columns: Any) -> Any:
        try:
            return lazy.backend
        except RuntimeError:
            return columns

    assert sent(careful).error is None
    assert sent(program.by_global).error is None


def test_whose_code_it_is() -> None:
    assert is_own("__main__")
    assert not any(map(is_own, ("json", "numpy.random", "streamrec.errors", "no_such", "")))


def test_the_setting_that_cannot_be_sent_is_named(program: Any) -> None:
    functions = {"filter": program.by_global, "map": program.with_lock}
    assert "setting 'map' is own_program:with_lock" in str(SentFunctions.of(functions).error)
    functions = {"filter": program.with_lock, "map": program.by_global}
    assert "setting 'filter' is own_program:with_lock" in str(SentFunctions.of(functions).error)


def test_what_cannot_be_loaded() -> None:
    pickle = b64encode(b"cno_such_module\nf\n.").decode()
    with pytest.raises(ConfigError, match=r"functions of the settings \(ModuleNotFoundError"):
        unpickle(pickle)


# -- the identity of a map whose results are cached ------------------------------------------------

MAP = """
import numpy as np

WORDS = {"a", "bb", "ccc", "dddd"}


class Table:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, value):
        return value * self.factor if value in {"q", "w", "ee"} else super().__hash__()


table = Table(2)


def prepared(columns):
    return np.sum([table(word) for word in WORDS])
"""


PRINTED = """
from streamrec.feeder.functions.sent_functions import identity_of
print(identity_of(prepared))
"""


def identity_elsewhere(source: str, folder: Path, hash_seed: str) -> str:
    folder.mkdir()
    (folder / "program.py").write_text(source + PRINTED)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(folder / "program.py")]
    return subprocess.check_output(command, env=environment, text=True)


def test_a_map_is_the_same_in_another_process_and_place(tmp_path: Path) -> None:
    first = identity_elsewhere(MAP, tmp_path / "a", "1")
    assert identity_elsewhere("\n# a comment\n" + MAP, tmp_path / "b", "2") == first
    assert identity_elsewhere(MAP.replace('"q"', '"r"'), tmp_path / "c", "1") != first


@pytest.mark.parametrize("name", ALIKE)
def test_another_map_is_what_reads_something_else(
    name: str, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = getattr(program, name)
    early = identity_of(function)
    assert identity_of(function) == early
    change(program, monkeypatch)
    assert identity_of(function) != early
