"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import blocking
from tests.by_day import PROFILE, is_day
from tests.skips import Skips
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# A loaded machine is no defect: no test depends on how fast it runs. How many examples each profile
# gives is in relation to Hypothesis' hundred; `tests.support.examples` scales a test's own number.
settings.register_profile("local", deadline=None)

# Automatic runs take few examples, and the same ones each time: no change is to fail by what
# another one did. New examples are looked for at night, `pytest --hypothesis-profile=night`, by
# those who can look into what is found.
settings.register_profile("day", deadline=None, derandomize=True, max_examples=examples(10))
settings.register_profile(
    "night",
    deadline=None,
    derandomize=False,
    max_examples=examples(1000),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("day" if os.environ.get("CI") else "local")

# Their assertions say what differs; a deviation of the GCS emulator is known by that.
pytest.register_assert_rewrite("tests.stores.conformance", "tests.stores.gcs_probes")

# Without this, S3 clients that find no credentials ask the network's metadata address for some.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# A tenth of the CPU time of the many processes that tests start: NumPy's OpenBLAS has a thread spin
# on each core, and pydantic looks through all installed packages for plugins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")

# The same for Google's.
os.environ["NO_GCE_CHECK"] = "true"


@pytest.hookimpl(trylast=True)  # behind Hypothesis, which reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Tell the tests and their processes which cases are to run."""
    os.environ[PROFILE] = settings.get_current_profile_name()
    config.pluginmanager.register(Skips(), "streamrec-skips")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests for the night to the other profiles than that of the day."""
    if not is_day():
        return
    for_the_night = [item for item in items if item.get_closest_marker("night")]
    config.hook.pytest_deselected(items=for_the_night)
    items[:] = [item for item in items if not item.get_closest_marker("night")]


FEW_MODULES = 50
"""So many more modules make a look through all objects slower than to freeze them."""

_frozen_modules = 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Take the tests themselves out of each garbage collection: they stay to the end."""
    gc.disable()  # a tenth of the time, as there is no garbage among them
    try:
        return (yield)
    finally:
        gc.enable()
        _freeze()


def pytest_runtest_logfinish() -> None:
    """Take libraries that tests have imported out, too."""
    if len(sys.modules) >= _frozen_modules + FEW_MODULES:
        gc.collect()  # what tests have left
        _freeze()


def _freeze() -> None:
    global _frozen_modules  # noqa: PLW0603 - a process has one collector
    _frozen_modules = len(sys.modules)
    gc.freeze()


class PropertyHangs(BaseException):
    """A property that has taken longer than its limit.

    It is no failure to Hypothesis, which would look for a smaller example, and hang again.
    """


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """End a property that hangs; all other tests are left to pytest-timeout."""
    if not getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return None

    def end(*_: object) -> None:
        raise PropertyHangs(f"it has taken more than {settings.timeout:g} s")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Name bytes by their length: serialized maps have no order, but tests must have one name."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def _loops_never_block() -> Iterator[None]:
    """Refuse calls that block an event loop, in all tests."""
    with blocking.refused():
        yield


@pytest.fixture
def started_threads() -> Callable[[], set[str]]:
    """Return the names of the threads that have started since the test began.

    Streams that other tests have left to the collector may still have theirs.
    """
    earlier = set(threading.enumerate())
    return lambda: {thread.name for thread in threading.enumerate() if thread not in earlier}
