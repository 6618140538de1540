from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.config.validation import Settings
from streamrec.errors import ConfigError
from streamrec.measure.quantities import ByteRate, Bytes, Part, Rate, Seconds, parse_settings


class Given(Settings):
    time: Seconds = 1.0
    part: Part = 0.0
    rate: Rate | None = None
    size: Bytes = 1
    speed: ByteRate | None = None


def given_by(text: str) -> Given:
    return parse_settings(Given, text, where="--given")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        (" , ", {}),
        ("time=50ms", {"time": 0.05}),
        ("time = 2s , part=30%", {"time": 2.0, "part": 0.3}),
        ("time=.5us", {"time": 5e-7}),
        ("time=8µs", {"time": 8e-6}),
        ("time=5min", {"time": 300.0}),
        ("time=1.5h", {"time": 5400.0}),
        ("time=0s", {"time": 0.0}),
        ("part=0.25", {"part": 0.25}),
        ("rate=3500/s", {"rate": 3500.0}),
        ("rate=0.5", {"rate": 0.5}),
        ("size=128MB", {"size": 128_000_000}),
        ("size=1MiB", {"size": 1 << 20}),
        ("speed=60MB/s", {"speed": 60_000_000}),
        ("speed=10Gbit", {"speed": 1_250_000_000}),
        ("speed=100 Mbit/s", {"speed": 12_500_000}),
    ],
)
def test_quantities(text: str, values: dict[str, float]) -> None:
    assert given_by(text) == Given(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("time", r"^--given: 'time' has no value; write it like NAME=VALUE$"),
        ("time=1s,time=2s", "'time' is there twice; leave one of them out"),
        ("tme=1s", "there is no setting 'tme'; did you mean 'time'"),
        ("time=50", "'time' is '50'; write a time and its unit, such as 50ms or 2s"),
        ("time=-1s", "write a time and its unit"),
        ("time=1d", "write a time and its unit"),
        ("part=many", "'part' is 'many'; write a part, such as 30% or 0.3"),
        ("rate=fast", "write a number a second, such as 3500/s"),
        ("rate=0/s", "'rate'.*greater than 0"),
        ("size=big", "write bytes and their unit, such as 128MB"),
        ("size=0", "'size'.*greater than 0"),
        ("speed=60MB/m", "write a rate such as 60MB/s or 10Gbit"),
        ("speed=10Gb", "write a rate such as 60MB/s or 10Gbit"),
        ("speed=10Gbps", "write a rate such as 60MB/s or 10Gbit"),
        ("time=1,part=x", "'time'.*; the setting 'part'"),
    ],
)
def test_wrong_texts_end_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        given_by(text)


@given(st.integers(0, 10**9))
def test_numbers_of_python_are_taken_as_they_are(number: int) -> None:
    assert Given(time=number, speed=number + 1) == given_by(f"time={number}s,speed={number + 1}B/s")


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        given_by(text)
    except ConfigError as error:
        assert str(error).startswith("--given: ")
