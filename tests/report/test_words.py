from __future__ import annotations

import pytest

from streamrec.report import words


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (words.size, 57_000_000, "57.0 MB"),
        (words.size, -1, "0 bytes"),
        (words.rate, 1_500.7, "1.5 kB/s"),
        (words.memory, 512 << 20, "512.0 MiB"),
        (words.memory, -1, "0 B"),
        (words.percent, 0.0, "0%"),
        (words.percent, 0.004, "<1%"),
        (words.percent, 0.01, "1%"),
        (words.percent, 0.97, "97%"),
        (words.size, 1000, "1.0 kB"),
        (words.size, 10**12, "1.0 TB"),
        (words.size, 999_949, "999.9 kB"),
        (words.size, 999_950, "1.0 MB"),
        (words.rate, 10**9 - 1, "1.0 GB/s"),
        (words.memory, (1 << 20) - 100, "1023.9 KiB"),
        (words.memory, (1 << 20) - 1, "1.0 MiB"),
        (words.memory, (1 << 30) - 1, "1.0 GiB"),
        (words.seconds, 0, "0.0 ms"),
        (words.seconds, 2.5e-5, "25 us"),
        (words.seconds, 0.0042, "4.2 ms"),
        (words.seconds, 0.142, "142 ms"),
        (words.seconds, 0.9994, "999 ms"),
        (words.seconds, 0.9996, "1.0 s"),
        (words.seconds, 9.96e-3, "10 ms"),
        (words.seconds, 9.996e-5, "0.1 ms"),
        (words.seconds, 2.5, "2.5 s"),
        (words.duration, -3, "0 s"),
        (words.duration, 59, "59 s"),
        (words.duration, 95, "1 min 35 s"),
        (words.duration, 3 * 3600 + 130, "3 h 2 min"),
        (words.duration, 86400 * 12 + 7200, "12 d 2 h"),
        (words.clock, 0, "1970-01-01 00:00:00"),
    ],
)
def test_numbers(function: object, value: float, text: str) -> None:
    assert callable(function)
    assert function(value) == text


def test_counts() -> None:
    assert words.quantity(1, "batch", "batches") == "1 batch"
    assert words.quantity(1200, "batch", "batches") == "1,200 batches"


def test_foreign_text_is_one_bounded_line() -> None:
    hostile = "a\n\tb\x1b[31m\u202e" + "x" * 10_000
    shown = words.clip(hostile)
    assert shown.startswith("a b?[31m?xxx")
    assert len(shown) == words.MOST_TEXT
    assert shown.endswith("…")
    assert words.clip("https://me:secret@host/a?X-Amz-Signature=1") == "https://host/a?..."
    assert words.clip("short", 5) == "short"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (1234.5, "1,234.50 USD"),
        (1.0, "1.00 USD"),
        (0.016, "0.016 USD"),
        (1e-6, "<0.0001 USD"),
        (0.0, "0.00 USD"),
    ],
)
def test_money(amount: float, text: str) -> None:
    assert words.money(amount, "USD") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999_999, "1 MB"),
        (1e6, "1 MB"),
        (8 << 20, "8.39 MB"),
        (60e6, "60 MB"),
        (1.25e9, "1.25 GB"),
        (512_345_678, "512 MB"),
        (128e12, "128 TB"),
    ],
)
def test_an_amount_to_compute_with_has_three_digits(count: float, text: str) -> None:
    assert words.size(count, 3) == text
    assert words.rate(count, 3) == f"{text}/s"


@pytest.mark.parametrize(
    ("count", "text"),
    [(415.3, "415"), (5500, "5,500"), (79, "79"), (0.125, "0.125"), (3.14159, "3.14")],
)
def test_a_number_has_three_digits(count: float, text: str) -> None:
    assert words.number(count) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_budget", 64 << 20, "64.0 MiB"),
        ("memory_budget", "auto", "auto"),
        ("batch_size", 256, "256"),
    ],
)
def test_settings_in_bytes_have_a_unit(name: str, value: object, text: str) -> None:
    assert words.setting(name, value) == text
