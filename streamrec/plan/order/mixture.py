"""The draws of a mix: the component of each record of a lane.

Record ``n`` of a lane is drawn by a hash of (seed, epoch, lane, ``n``): only ``n`` has to be saved,
and neither other lanes nor the world size have an effect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from streamrec.plan.order.permutation import numbers, seed_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy.typing as npt

    from streamrec.config.consistency import Schedule

    Numbers = npt.NDArray[np.int64]

DRAW = 0x44524157  # "DRAW": separates these numbers from those of permutations
COMPONENT = 0x434F4D50  # "COMP": separates the seeds of components
NOTHING = -1
"""The draw where every component with a weight has ended."""
WHOLE = 1 << 64


def component_seed(seed: int, component: int) -> int:
    """Return the seed of a component's permutations, so that two of equal size differ."""
    # 63 bits, as a fingerprint's numbers must stay below 2^63.
    return seed_of(COMPONENT, seed, component) >> 1


def waiting_components(weights: Schedule) -> list[str]:
    """Return the names of the components that have no weight until it changes, sorted.

    Such a component may join a mix that runs: the order of all others does not depend on it.
    """
    names = weights[0][1]
    return sorted(name for name in names if not any(parts[name] for _, parts in weights))


def component_seeds(seed: int, weights: Schedule) -> list[int]:
    """Return the seed of each component, in the order of their names."""
    waiting = waiting_components(weights)
    places = {name: i for i, name in enumerate(sorted(weights[0][1].keys() - {*waiting}))}
    # By its name alone, since others may join the mix before it.
    places |= {name: _hash(name) for name in waiting}
    return [component_seed(seed, places[name]) for name in sorted(places)]


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def draws_of(weights: Schedule, lanes: int, seed: int) -> Draws:
    """Create the draws of a mix; its components are numbered by the order of their names."""
    phases = ((first, tuple(parts[name] for name in sorted(parts))) for first, parts in weights)
    return Draws(tuple(phases), lanes, seed)


def text_of(weights: Schedule, exhausted: str) -> str:
    """Return the text of a mix for its fingerprint."""
    phases = (f"from {first}: {json.dumps(parts, sort_keys=True)}" for first, parts in weights)
    waiting = waiting_components(weights)
    last = [f"waiting: {json.dumps(waiting)}"] if waiting else []
    return "; ".join([*phases, exhausted, *last])


def names_in(text: str) -> set[str]:
    """Return the names of the components in a text of :func:`text_of`; of any other, none."""
    try:
        parts, _ = json.JSONDecoder().raw_decode(text, len("from 0: "))
    except (ValueError, RecursionError):
        return set()
    return set(parts) if isinstance(parts, dict) else set()


def lasting_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text of :func:`text_of` without components that may join, and the names of these.

    Of any other text, return the text itself.
    """
    phases, at = [], 0
    try:
        while text.startswith("from ", at):
            begin = text.index(": ", at) + 2
            parts, end = json.JSONDecoder().raw_decode(text, begin)
            phases.append((text[at:begin], parts))
            at = end + len("; ")
        exhausted, _, waiting = text[at:].partition("; waiting: ")
        names = tuple(json.loads(waiting)) if waiting else ()
        kept = [{name: parts[name] for name in parts if name not in names} for _, parts in phases]
    except (ValueError, TypeError, RecursionError):
        return text, ()
    told = zip(phases, kept, strict=True)
    texts = (f"{head}{json.dumps(parts, sort_keys=True)}" for (head, _), parts in told)
    return "; ".join([*texts, exhausted]), names


@dataclass(frozen=True)
class Draws:
    """The draws of all lanes.

    Args:
        phases: Pairs of a record and the weights that hold from it on: the record's number in an
            epoch of the mix, counted over all lanes; one weight a component, at least one of them
            above 0. The first phase begins at 0, each other one later than the one before.
        lanes: The number of lanes.
        seed: The seed of the draws.
    """

    phases: tuple[tuple[int, tuple[float, ...]], ...]
    lanes: int
    seed: int

    def choices(
        self, lane: int, epoch: int, first: int, count: int, ended: Collection[int] = ()
    ) -> Numbers:
        """Return the components of a lane's records ``first … first+count-1``.

        A draw of an ended component is repeated without it. So the others keep their shares, and
        the moment at which the end became known makes no difference.

        Args:
            lane: The lane's number.
            epoch: The epoch of the mix.
            first: The number in that epoch of the first record.
            count: The number of records.
            ended: Components that have no more records.

        Returns:
            int64 ``[count]``; ``NOTHING`` where no component is left.
        """
        draws = np.arange(count, dtype=np.uint64) + np.uint64(first)
        out = np.empty(count, np.int64)
        for phase, begin, end in self._parts(lane, first, count):
            out[begin:end] = self._draw(phase, lane, epoch, draws[begin:end], ended)
        return out

    def weighted(self, lane: int, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Return which components have a weight at each draw: bool ``[components, count]``."""
        out = np.empty((len(self.phases[0][1]), count), np.bool_)
        for phase, begin, end in self._parts(lane, first, count):
            out[:, begin:end] = np.array(self.phases[phase][1])[:, None] > 0
        return out

    def shares(self, lane: int, number: int) -> list[float]:
        """Return each component's share of the lane's records from that record on, about."""
        # The latest phase that has begun; the first one begins at 0, so that there is one.
        weights = next(w for g, w in reversed(self.phases) if self.begin(lane, g) <= number)
        return [weight / sum(weights) for weight in weights]

    def begin(self, lane: int, record: int) -> int:
        """Return the lane's first record that is not before ``record``, which counts all lanes'."""
        return max(0, -((lane - record) // self.lanes))

    def _parts(self, lane: int, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the phases of these draws, each with the begin and end of its draws."""
        bounds = [max(0, min(count, self.begin(lane, g) - first)) for g, _ in self.phases]
        for phase, (begin, end) in enumerate(pairwise([*bounds, count])):
            if begin < end:
                yield phase, begin, end

    def _draw(
        self,
        phase: int,
        lane: int,
        epoch: int,
        draws: npt.NDArray[np.uint64],
        ended: Collection[int],
        without: tuple[int, ...] = (),
    ) -> Numbers:
        components, limits = _limits(self.phases[phase][1], frozenset(without))
        if not len(components):
            return np.full(len(draws), NOTHING)
        # Another seed for each repetition: the same number would be a part of the share just taken
        # out.
        seed = seed_of(DRAW, self.seed, epoch, lane, len(without))
        drawn: Numbers = components[np.searchsorted(limits, numbers(draws, seed), "right")]
        for component in set(components.tolist()) & set(ended):
            again = np.flatnonzero(drawn == component)
            if len(again):
                excluded = (*without, component)
                drawn[again] = self._draw(phase, lane, epoch, draws[again], ended, excluded)
        return drawn


@dataclass(frozen=True)
class DrawChange:
    """The draws from a record on, whatever the phases of those before.

    Args:
        record: The number of the record: of all that all lanes deliver, or of one lane's.
        draws: The draws.
    """

    record: int
    draws: Draws

    def of_lane(self, lane: int) -> DrawChange:
        """Return the change for one lane, from one of its own records on."""
        return replace(self, record=self.draws.begin(lane, self.record))


@lru_cache(1 << 10)
def _limits(
    weights: tuple[float, ...], without: frozenset[int]
) -> tuple[Numbers, npt.NDArray[np.uint64]]:
    """Return the components with a weight, and the exact limits between them below 2^64."""
    # Exact fractions, since sums of floats could differ from machine to machine.
    shares = {c: Fraction(w) for c, w in enumerate(weights) if w > 0 and c not in without}
    sums = list(accumulate(shares.values()))
    limits = [int(WHOLE * part / sums[-1]) for part in sums[:-1]]
    return np.array(list(shares), np.int64), np.array(limits, np.uint64)
