from __future__ import annotations

from typing import Any

import pytest

from streamrec.flow import callers


class Loop:
    def __init__(self, inner: Loop | None = None) -> None:
        self.inner = inner

    def fit(self, ask: Any) -> Any:
        return self.inner.evaluate(ask) if self.inner else ask()

    def evaluate(self, ask: Any) -> Any:
        return ask()


class Evaluation(Loop):
    """A loop of another class."""


def test_the_nearest_object_is_found() -> None:
    inner = Loop()
    outer = Loop(inner)
    assert outer.fit(lambda: callers.nearest(Loop)) is inner
    assert Evaluation(inner).fit(lambda: callers.nearest(Evaluation, int)) is not inner
    assert callers.nearest(Loop) is None


def test_a_method_is_told_by_its_name_and_its_object() -> None:
    assert Loop(Loop()).fit(lambda: callers.runs(["evaluate"], Loop))
    assert not Loop().fit(lambda: callers.runs(["evaluate"], Loop))
    assert not Loop(Loop()).fit(lambda: callers.runs(["evaluate"], Evaluation))


def test_all_that_run_a_code_are_found() -> None:
    inner = Loop()
    outer = Loop(inner)
    codes: Any = {Loop.fit.__code__: "fit", Loop.evaluate.__code__: "evaluate", None: "none"}
    found = outer.fit(lambda: list(callers.running(codes)))
    assert found == [("evaluate", inner), ("fit", outer)]


def module_of_the_asker() -> str | None:
    return callers.module_of(1)


def argument_of_the_asker() -> Any:
    return callers.arguments_of(1).get("argument")


def test_a_warning_points_at_the_code_outside() -> None:
    names: dict[str, Any] = {"__name__": "streamrec.deep", "callers": callers}
    exec("def warn(): callers.warn_user('odd')\ndef call(): warn()", names)
    for warn in (lambda: callers.warn_user("odd"), names["warn"], names["call"]):
        with pytest.warns(UserWarning, match="odd") as warned:
            warn()
        assert warned[0].filename == __file__


def test_a_caller_is_told_by_its_place() -> None:
    argument = 7
    assert module_of_the_asker() == __name__
    assert callers.module_of(1) != __name__
    assert argument_of_the_asker() == argument
