from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from streamrec import kernel
from streamrec.errors import ConfigError
from streamrec.kernel import choice, reference
from streamrec.kernel.choice import VARIABLE, KernelNotice, choose
from tests.kernel.conftest import IMPLEMENTATIONS

HERE = {"python": "streamrec.kernel.reference", "native": "streamrec.kernel.native"}


def test_what_runs_is_named() -> None:
    assert kernel.scan_frames.__module__.startswith(HERE[kernel.implementation])


@pytest.mark.parametrize("module", IMPLEMENTATIONS)
def test_every_function_of_the_contract_is_there(module: object) -> None:
    assert set(kernel.__all__) - {"implementation"} <= set(dir(module))


@pytest.mark.parametrize("module", IMPLEMENTATIONS, ids=lambda module: module.__name__)
def test_the_environment_chooses(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {path: name for name, path in HERE.items()}[module.__name__]  # type: ignore[attr-defined]
    monkeypatch.setenv(VARIABLE, name)
    assert choose() == (name, module)


def test_the_native_one_runs_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert choose()[0] == ("native" if len(IMPLEMENTATIONS) == 2 else "python")


def test_the_twin_runs_where_nothing_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(choice._MODULES, "native", "streamrec.kernel.not_built")
    monkeypatch.setattr(choice, "explain", lambda error: KernelNotice("was not built", "build it"))
    with pytest.warns(
        UserWarning, match=r"kernel in C was not built; so .* slower: build it, or set STREAMREC_"
    ):
        assert choose() == ("python", reference)


def test_the_twin_runs_without_a_word_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "python")
    monkeypatch.setitem(choice._MODULES, "native", "streamrec.kernel.not_built")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose() == ("python", reference)


def test_the_twin_runs_with_a_warning_where_what_was_built_does_not_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(choice._MODULES, "native", "streamrec.kernel.of_another_system")
    monkeypatch.setattr(
        choice, "explain", lambda error: KernelNotice(f"cannot be loaded ({error})", "")
    )
    with pytest.warns(UserWarning, match=r"cannot be loaded \(.*of_another_system.*\); so the one"):
        assert choose() == ("python", reference)


INFO = "import sys; sys.argv = ['streamrec', 'info', 'x']; from streamrec.cli import main; main()"
NOT_BUILT = "import sys; sys.modules['streamrec.kernel._native'] = None;"


def places() -> list[str]:
    """Return where modules are found, without other copies of the package."""
    here = Path(kernel.__file__).parents[2]
    found = (Path(place) for place in sys.path)
    return [str(place) for place in found if place == here or not (place / "streamrec").is_dir()]


def run(wanted: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={VARIABLE: wanted, "PYTHONPATH": ":".join(places())},
        check=False,
        capture_output=True,
        text=True,
    )


def test_another_word_is_refused() -> None:
    done = run("nativ", INFO)
    assert done.returncode == 2
    assert "STREAMREC_KERNEL is 'nativ': set it to native or python" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_was_not_built_is_refused() -> None:
    done = run("native", NOT_BUILT + INFO)
    assert done.returncode == 2
    assert "STREAMREC_KERNEL is 'native', but the kernel in C was not built" in done.stderr
    assert "pip install -e ." in done.stderr
    assert "or unset STREAMREC_KERNEL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(len(IMPLEMENTATIONS) < 2, reason="the kernel in C was not built")
def test_what_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(f"{name}: undefined symbol")

    monkeypatch.setenv(VARIABLE, "native")
    monkeypatch.setattr(choice, "import_module", refuse)
    with pytest.raises(ConfigError, match=r"cannot be loaded \(.*: undefined symbol\);"):
        choose()
