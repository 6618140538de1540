from __future__ import annotations

from streamrec import devstore


def test_what_the_package_offers_is_there() -> None:
    assert all(hasattr(devstore, name) for name in devstore.__all__)
    assert sorted(devstore.__all__) == devstore.__all__


def test_names_of_the_first_version() -> None:
    assert (devstore.Fault, devstore.Statistics) == (devstore.FaultRule, devstore.RequestStatistics)
