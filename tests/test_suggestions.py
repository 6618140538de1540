from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import streamrec
from streamrec.suggestions import close_names, did_you_mean, install, nearest, needs

KNOWN = ("shuffle", "shuffle_window", "batch_size")


def test_the_closest_name_is_first() -> None:
    assert close_names("shufle", KNOWN) == ["shuffle"]
    assert close_names("shuffle_windw", KNOWN, most=2) == ["shuffle_window", "shuffle"]
    assert close_names("s4", ["s3"]) == []
    assert close_names("s4", ["s3"], cutoff=0.5) == ["s3"]


@pytest.mark.parametrize(
    ("name", "meant", "hint"),
    [
        ("batchsize", None, "did you mean 'batch_size'?"),
        ("lanes", None, "leave it out"),
        ("lanes", "batch_size", "did you mean 'batch_size'?"),
    ],
)
def test_a_hint_is_a_question_or_another_hint(name: str, meant: str | None, hint: str) -> None:
    assert did_you_mean(name, iter(KNOWN), meant=meant) == hint


def test_half_a_sentence_has_the_name_or_all_of_them() -> None:
    assert nearest("batchsize", KNOWN) == "; did you mean 'batch_size'?"
    assert nearest("lanes", KNOWN) == "; there are batch_size, shuffle, shuffle_window"


def test_nothing_else_looks_for_close_names() -> None:
    root = Path(streamrec.__file__).parent
    looking = {path.name for path in root.rglob("*.py") if "difflib" in path.read_text()}
    assert looking == {"suggestions.py"}


ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ADAPTERS = {
    "import streamrec.adapters.jax": ("jax", "jax"),
    "import streamrec.adapters.keras": ("keras", "keras"),
    "import streamrec.adapters.orbax": ("orbax", "jax"),
    "import streamrec.adapters.ray": ("ray", "ray"),
    "import streamrec.adapters.tensorflow": ("tensorflow", "tensorflow"),
    "from streamrec.adapters.torch import as_loader; as_loader(None)": ("torch", "torch"),
    "from streamrec.adapters.torch import agree; agree(None)": ("torch", "torch"),
    "from streamrec.adapters.huggingface import as_dataset; as_dataset(None)": (
        *("torch", "huggingface"),
    ),
    "from streamrec.adapters.huggingface import collate; collate([])": ("torch", "huggingface"),
}


@pytest.mark.parametrize(("code", "package"), ADAPTERS.items(), ids=str)
def test_an_adapter_names_its_extra(code: str, package: tuple[str, str]) -> None:
    hidden, extra = package
    # JAX is a part of the same extra as Orbax, and may be missing here too.
    text = f"import sys; sys.modules[{hidden!r}] = None; {code}"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: streamrec.adapters."), done.stderr
    assert last.endswith(install(extra))


def test_each_extra_that_is_named_is_declared() -> None:
    named = {
        name
        for path in (ROOT / "streamrec").rglob("*.py")
        for name in re.findall(r"(?:install\('|needs\(\"[\w.]+\", \")(\w+)", path.read_text())
    }
    assert len(named) > 5
    assert named <= EXTRAS.keys()


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'streamrec\.none'"):
        with needs("streamrec.adapters.x", "torch"):
            raise ModuleNotFoundError("No module named 'streamrec.none'", name="streamrec.none")
