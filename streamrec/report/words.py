"""Numbers and foreign text as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import ByteSize
from rich.filesize import decimal

from streamrec.masking import printable

MOST_TEXT = 400
"""The most characters of an error's text that are shown."""
DAY, HOUR, MINUTE = 86400, 3600, 60


def clip(text: object, most: int = MOST_TEXT) -> str:
    """Return foreign text on one line, without control characters, cut after ``most`` of them."""
    plain = " ".join(printable(str(text)).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


RECORDS = "record", "records"
"""The words for one record, and for several."""


def quantity(count: int, one: str, many: str) -> str:
    """Return a number of things."""
    return f"{count:,} {one if count == 1 else many}"


def size(count: float, digits: int | None = None) -> str:
    """Return a number of bytes, in powers of ten as rates are.

    Args:
        count: The number.
        digits: The digits of a number that others are computed from; ``None``: one after the
            point.
    """
    if digits is None:
        text = decimal(max(int(count), 0))
        # Chosen before it is rounded: 999,999 bytes would be 1,000.0 kB, and not 1.0 MB.
        return decimal(int(float(f"{count:.3g}"))) if text.startswith("1,000.0") else text
    # Rounded before the unit is chosen, for the same reason.
    rounded = int(float(f"{max(count, 0):.{digits}g}"))
    text, unit = decimal(rounded, precision=digits).split()
    return f"{float(text):g} {unit}"


def memory(count: int) -> str:
    """Return a number of bytes, in powers of two as budgets are."""
    text = ByteSize(max(count, 0)).human_readable(separator=" ")
    # The unit is chosen before the number is rounded: the next power of two has the next unit.
    return memory(1 << count.bit_length()) if text.startswith("1024.0") else text


IN_BYTES = ("memory_budget", "shuffle_window", "max_record_bytes", "max_bytes", "memory_bytes")
"""The settings and facts of a machine that are bytes in powers of two."""


def setting(name: str, value: object) -> str:
    """Return the value of a setting, or of a fact of a machine."""
    return memory(value) if name in IN_BYTES and isinstance(value, int) else str(value)


def rate(count: float, digits: int | None = None) -> str:
    """Return bytes by second; ``digits`` as for :func:`size`."""
    return f"{size(count, digits)}/s"


def number(count: float) -> str:
    """Return a number with three digits, or all of them before the point."""
    return f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:.3g}"


def money(amount: float, currency: str) -> str:
    """Return an amount of money; of little, two digits that are not 0."""
    if amount >= 1 or amount <= 0:
        return f"{amount:,.2f} {currency}"
    return f"{amount:.2g} {currency}" if amount >= 1e-4 else f"<0.0001 {currency}"


def percent(part: float) -> str:
    """Return a part of one."""
    return f"{part:.0%}" if part == 0 or part >= 0.01 else "<1%"


def seconds(count: float) -> str:
    """Return a short time."""
    # Each bound is where the number before it would round to the next unit, or to one more digit.
    if count >= 0.9995:
        return f"{count:.1f} s"
    if 0 < count < 0.995e-4:
        return f"{1e6 * count:.0f} us"
    return f"{1e3 * count:.0f} ms" if count >= 0.00995 else f"{1e3 * count:.1f} ms"


def duration(count: float) -> str:
    """Return a long time in its two largest units."""
    whole = max(int(count), 0)
    if whole >= DAY:
        return f"{whole // DAY} d {whole % DAY // HOUR} h"
    if whole >= HOUR:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // MINUTE} min {whole % MINUTE} s" if whole >= MINUTE else f"{whole} s"


def clock(moment: float) -> str:
    """Return a moment of the last days, in UTC as logs are."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S")
