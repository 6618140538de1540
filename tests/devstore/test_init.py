from __future__ import annotations

from streamrec import devstore


def test_what_the_package_offers_is_there() -> None:
    assert all(hasattr(devstore, name) for name in devstore.__all__)
    assert sorted(devstore.__all__) == devstore.__all__
