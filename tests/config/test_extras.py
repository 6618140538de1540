from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streamrec.config.extras import install, needs

ROOT = Path(__file__).parents[2]
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
