"""The shared parts of adapters: arguments, pairs by name, and passes over a stream.

Frameworks that make a new iterator for each epoch make some only to look at a batch or two, drop
iterators before their end, and begin the next one before the last one is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from streamrec.errors import ConfigError, StreamrecError
from streamrec.streams import handle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrec.pipeline.batch.batch import Batch
    from streamrec.plan.state.position import Position
    from streamrec.streams.stream import Stream


def check_stream(stream: Any, call: str) -> None:
    """Refuse what is not a stream at once, not only when it is iterated.

    Args:
        stream: The argument.
        call: The adapter's function, for the error.

    Raises:
        ConfigError: It is something else.
    """
    # By what it can do: a wrapper of a user is a stream, too. Models and loaders have a state.
    if not (hasattr(stream, "state_dict") and hasattr(stream, "peek")):
        raise ConfigError(
            f"{call} takes a stream, not {type(stream).__name__}; give it "
            "streamrec.open(source, features, batch_size=...) or streamrec.connect(address)"
        )


Names: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""The name of a feature; or several, as a sequence or as the values of a mapping from own names."""
Convert: TypeAlias = Callable[[str, Any], Any]
"""From a column's name and values to an array of a framework."""


class Pairs(NamedTuple):
    """The names of inputs and targets."""

    inputs: Names
    targets: Names

    @classmethod
    def of_arguments(cls, inputs: Names | None, targets: Names | None) -> Self | None:
        """Return what an adapter's arguments ask for; ``None`` if it is not pairs.

        Raises:
            ConfigError: Only one of them is given, or one does not name features.
        """
        if inputs is None and targets is None:
            return None
        if inputs is None or targets is None:
            there, missing = ("targets", "inputs") if inputs is None else ("inputs", "targets")
            raise ConfigError(
                f"{there}= is given without {missing}=, and a pair takes both; name the features "
                f"of the {missing}, or leave both out"
            )
        return cls(names_of(inputs, "inputs"), names_of(targets, "targets"))

    @property
    def features(self) -> list[str]:
        """The names of all features of a pair."""
        return [name for names in self for name in _by_key(names).values()]

    def of(self, columns: Mapping[str, Any], mask: Any = None) -> tuple[Any, ...]:
        """Return ``(inputs, targets)``, or ``(inputs, targets, mask)`` where there is a mask.

        Raises:
            ConfigError: There is no feature of a name.
        """
        pair = pick(columns, self.inputs), pick(columns, self.targets)
        return pair if mask is None else (*pair, mask)


def names_of(names: Any, argument: str) -> Names:
    """Return names that can be gone through again for each batch, unlike those of a generator.

    Args:
        names: Of features, as an adapter is given them.
        argument: The name of the argument, for the error.

    Raises:
        ConfigError: They are something else.
    """
    if isinstance(names, str):
        return names
    if isinstance(names, Iterable):
        several = dict(names) if isinstance(names, Mapping) else tuple(names)
        texts = [*several, *(several.values() if isinstance(several, dict) else ())]
        if all(isinstance(name, str) for name in texts):
            return several
    raise ConfigError(
        f"{argument}= is {names!r}; give the name of a feature, a list of names, or a mapping from "
        "your names to features"
    )


def pick(columns: Mapping[str, Any], names: Names, convert: Convert | None = None) -> Any:
    """Return the column of a name; of several names, a dict of columns.

    Args:
        columns: The columns of a batch, or the values of a record.
        names: The names.
        convert: A function that each column is converted by.

    Raises:
        ConfigError: There is no feature of a name.
    """
    if not isinstance(names, str):
        return {key: pick(columns, name, convert) for key, name in _by_key(names).items()}
    if names not in columns:
        raise ConfigError(
            f"the stream has no feature {names!r}, but {', '.join(columns)}; name one of these"
        )
    return convert(names, columns[names]) if convert else columns[names]


def _by_key(names: Names) -> Mapping[str, str]:
    if isinstance(names, Mapping):
        return names
    return {name: name for name in ([names] if isinstance(names, str) else names)}


class Passes:
    """Iterators over the runs of a stream, one at a time.

    Each begins where the last one that delivered a whole run has ended. One that was dropped in the
    middle counts for nothing: the next one begins where it began, unless the stream was moved.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.taken = 0
        """The number of batches that were taken."""
        self.goes_on = False
        """True if a pass goes on with the next run at the end of one, and has no end."""
        self._lock = threading.Lock()
        self._number = 0
        """The number of the latest pass."""
        self._place: dict[str, Any] = {}
        """The state at which the present pass began."""
        self._last: Position | None = None
        """The position after the last batch that was taken, if any was in this pass."""
        self._restarts = False
        """True if what is taken next is the beginning of the run."""

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of a run; nothing is taken before the first is asked for.

        Raises:
            ConfigError: Another iterator has begun since.
        """
        number = self.begin()
        while (batch := self.take(number)) is not None:
            yield batch

    def begin(self) -> int:
        """Begin a pass, and return its number: only the latest may take batches."""
        with self._lock:
            self._number += 1
            self._begin()
            return self._number

    def take(self, number: int) -> Batch | None:
        """Return the next batch of the pass of this number; ``None`` at its end.

        Raises:
            ConfigError: Another pass has begun since.
        """
        with self._lock:
            # Keras and tf.data drop iterators late, so an old one may still ask.
            if self._number != number:
                raise ConfigError(
                    "another iterator over this stream has begun, and each of the two would miss "
                    "what the other takes; use one iterator at a time, or open a stream for each"
                )
            if self._restarts:
                self._begin()
            batch: Batch | None = next(self.stream, None)
            if batch is None and self.goes_on:
                self._last = None
                self._begin()
                batch = next(self.stream, None)
            self._last = None if batch is None else batch.next_position
            self.taken += batch is not None
            return batch

    def restart(self) -> None:
        """Have the next batch be the first of the run, also if the present pass goes on."""
        with self._lock:
            self._restarts = True

    def settle(self) -> None:
        """Let the next pass go on where the present one stands."""
        with self._lock:
            self._place, self._last = self.stream.state_dict(), None

    def example(self) -> Batch:
        """Return the batch with which the next pass begins, or goes on; it is not taken.

        Raises:
            ConfigError: The stream has no batch.
        """
        with self._lock:
            if not self.stream.peek():
                self._begin()
            self._check()
            batches = self.stream.peek()
        if not batches:
            next(self.stream, None)  # raises what went wrong, if that is the reason
            raise ConfigError(
                "the stream has no batch, so its columns are not known; check the shards, "
                "and the filter"
            )
        return batches[0]

    def _begin(self) -> None:
        last = self._last
        restarts, self._restarts = self._restarts, False
        dropped = last is not None and self.stream.state_dict() == last.to_dict()
        if self._is_at_end(dropped):
            # The end was taken: this begins the next run.
            iter(self.stream)
        elif restarts:
            self.stream.restart()
        # The stream stands where the dropped iterator left it, so nobody has moved it since.
        elif dropped:
            self.stream.load_state_dict(self._place)
        self._check()
        self._place, self._last = self.stream.state_dict(), None

    def _is_at_end(self, dropped: bool) -> bool:
        """Return whether the stream has given a whole run, and take its end if nobody has."""
        try:
            return handle.of(self.stream).take_end()
        except StreamrecError:
            # The next pass begins before the error, which then comes at its turn.
            if not dropped:
                raise
            return False

    def _check(self) -> None:
        if self.stream.fingerprint.global_batch is None:
            raise ConfigError("the stream gives single records; open it with a batch_size")
