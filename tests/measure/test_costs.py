from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.errors import ConfigError
from streamrec.measure.costs import DEFAULT, costs, read_prices
from streamrec.measure.figures import Figures, Job, Limits, Listing, Machine, Target

if TYPE_CHECKING:
    from pathlib import Path

LISTING = Listing(shards=1000, bytes=10**12, requests=2, seconds=1.0)
JOB = Job(
    ended="seconds",
    seconds=10.0,
    first_batch_seconds=0.1,
    batches=100,
    records=1000,
    bytes=9 * 10**9,
    bytes_read=10**10,
    requests=1000,
    stalled=0.0,
    waits={},
)


def figures(url: str = "s3://bucket/*", kind: Any = "store", **more: Any) -> Figures:
    machine = Machine(
        cpu="", cores=1, memory_bytes=1, system="", python="", streamrec="", kernel="native"
    )
    spent = Limits(seconds=60.0, bytes=20 * 10**9, requests=5002)
    return Figures(
        taken="2026-01-01T00:00:00+00:00",
        target=Target(kind=kind, urls=[url]),
        machine=machine,
        limits=spent,
        spent=spent,
        **more,
    )


def priced(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "prices.toml"
    text = DEFAULT.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize("url", ["s3://bucket/*", "gs://bucket/*"])
def test_requests_and_pages_have_prices_of_their_own(url: str) -> None:
    found = costs(figures(url, listing=LISTING, job=JOB), read_prices())
    assert found is not None
    assert found.currency == "USD"
    assert found.spent == pytest.approx(5000 * 0.4e-6 + 2 * 5e-6)
    assert found.epoch == found.epoch_requests
    assert found.epoch_requests == pytest.approx(100_000 * 0.4e-6 + 2 * 5e-6)
    assert "same region" in found.prices
    assert "https://" in found.prices


def test_bytes_cost_elsewhere(tmp_path: Path) -> None:
    path = priced(tmp_path, 'reader = "same region"', 'reader = "internet"')
    found = costs(figures(listing=LISTING, job=JOB), read_prices(path))
    assert found is not None
    assert found.epoch is not None
    assert found.epoch_requests is not None
    assert found.spent == pytest.approx(20 * 0.09 + 5000 * 0.4e-6 + 2 * 5e-6)
    assert found.epoch - found.epoch_requests == pytest.approx(1000 * 0.09)


def test_without_a_job_there_is_no_epoch() -> None:
    found = costs(figures(listing=LISTING), read_prices())
    assert found is not None
    assert found.epoch is None
    assert found.epoch_requests is None


@pytest.mark.parametrize("url", ["/data/*", "https://host/x", "az://bucket/x"])
def test_other_stores_have_no_prices(url: str) -> None:
    assert costs(figures(url, listing=LISTING), read_prices()) is None


def test_a_feeder_has_no_prices() -> None:
    assert costs(figures("tcp://host:1/x", "feeder"), read_prices()) is None


def test_the_prices_are_dated_and_name_their_sources() -> None:
    prices = read_prices()
    assert prices.taken > dt.date(2026, 1, 1)
    assert all(store.source.startswith("https://") for store in prices.stores.values())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('reader = "same region"', 'reader = "moon"', "'moon'.*'same region'"),
        ("0.0004", "-0.0004", "get_per_1000.*greater than or equal to 0"),
        ("0.0004", "inf", "get_per_1000.*finite"),
        ("list_per_1000", "list_per_100", "list_per_100"),
        ("taken = 2026-11-25", 'taken = "yesterday"', "taken"),
        ("currency =", "currency", "TOML"),
    ],
)
def test_a_wrong_file_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read_prices(priced(tmp_path, old, new))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        read_prices(tmp_path / "none.toml")
