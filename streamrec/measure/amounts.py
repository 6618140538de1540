"""Amounts as people read them. Pure: no I/O."""

from __future__ import annotations

_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float, unit: str = "") -> str:
    """Return a value with its unit and three digits or more.

    Args:
        value: The value, not negative.
        unit: ``B`` or ``B/s`` (with decimal prefixes), ``s``, ``%`` (of a part of 1), ``USD``,
            or another one, which follows the number; ``/s`` among them.
    """
    if unit in ("B", "B/s"):
        scale, prefix = next(((s, p) for s, p in _LARGE if value >= s), (1.0, ""))
        return f"{_digits(value / scale)} {prefix}{unit}"
    if unit == "s":
        return _duration(value)
    if unit == "%":
        return f"{value * 100:g} %"
    if unit == "USD":
        return f"{value:,.2f} USD" if value >= 1 or not value else f"{value:.3g} USD"
    return f"{_digits(value)}{'' if unit.startswith('/') else ' '}{unit}".strip()


def _duration(seconds: float) -> str:
    for scale, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= scale * (2 if scale > 1 else 1):
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds * 1e6)} us" if seconds else "0 s"


def _digits(value: float) -> str:
    """Return a number with three digits, or all of them before the point."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
