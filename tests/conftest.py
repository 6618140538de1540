"""Settings for all tests."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.by_day import PROFILE, is_day
from tests.skips import Skips
from tests.support import examples

if TYPE_CHECKING:
    from collections.abc import Callable

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

# Without this, S3 clients that find no credentials ask the network's metadata address for some.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# The same for Google's.
os.environ["NO_GCE_CHECK"] = "true"


@pytest.hookimpl(trylast=True)  # behind Hypothesis, which reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Tell the tests and their processes which cases are to run."""
    os.environ[PROFILE] = settings.get_current_profile_name()
    config.pluginmanager.register(Skips(), "streamrec-skips")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give properties a limit that ends them; leave the tests for the night out by day."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            # A failure raised in the test, the usual way, is one more example to Hypothesis: it
            # would try smaller ones, and hang again without end.
            limits = item.get_closest_marker("timeout") or pytest.mark.timeout().mark
            item.add_marker(
                pytest.mark.timeout(*limits.args, **{**limits.kwargs, "method": "thread"}),
                append=False,
            )
    if not is_day():
        return
    for_the_night = [item for item in items if item.get_closest_marker("night")]
    config.hook.pytest_deselected(items=for_the_night)
    items[:] = [item for item in items if not item.get_closest_marker("night")]


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Name bytes by their length: serialized maps have no order, but tests must have one name."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture
def started_threads() -> Callable[[], set[str]]:
    """Return the names of the threads that have started since the test began.

    Streams that other tests have left to the collector may still have theirs.
    """
    earlier = set(threading.enumerate())
    return lambda: {thread.name for thread in threading.enumerate() if thread not in earlier}
