"""The filters of a PNG's rows, as the standard words them."""

from __future__ import annotations


def paeth(left: int, above: int, corner: int) -> int:
    """PNG, clause 9.4."""
    guess = left + above - corner
    return min((left, above, corner), key=lambda each: abs(guess - each))


def filtered(kind: int, row: list[int], above: list[int], pixel: int) -> list[int]:
    """PNG, clause 9.2."""
    lefts, corners = [0] * pixel + row, [0] * pixel + above
    guesses = [
        (0, a, b, (a + b) // 2, paeth(a, b, c))[kind]
        for a, b, c in zip(lefts, above, corners, strict=False)
    ]
    return [(x - guess) % 256 for x, guess in zip(row, guesses, strict=True)]
