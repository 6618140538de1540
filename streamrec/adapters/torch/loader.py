"""The loader: an iterable of batches of tensors on a device, with the state of what it gave.

Where a loader's length is not known, Lightning takes one batch more, to see which is the last. A
state of what was taken would leave that batch out. Its loops of validation, tests and predictions
break off where a limit says so, as the sanity check does, and expect the same batches next time.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch.utils.data import IterableDataset, get_worker_info

from streamrec.adapters.torch import agree_at_first
from streamrec.adapters.torch.worker import Notice, epoch_of, from_loader, of_all, of_loader
from streamrec.errors import ConfigError, StreamrecError
from streamrec.flow import callers
from streamrec.pipeline.batch.batch import Batch
from streamrec.pipeline.batch.torch_batch import Pair, each_tensor, pinned
from streamrec.streams import handle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from streamrec.adapters.passes import Pairs
    from streamrec.pipeline.batch.torch_columns import Casts
    from streamrec.streams.state import Mark
    from streamrec.streams.stream import Stream


def device_of(device: Any) -> torch.device | None:
    """Read the argument ``device``.

    Raises:
        ConfigError: There is no such device.
    """
    try:
        parsed = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"torch has no device {device!r} ({error}); give one such as 'cuda' or 'cuda:1'"
        ) from None
    if parsed is not None and parsed.type == "cuda":
        _check_cuda(parsed)
    elif parsed is not None:
        _check_other(parsed)
    return parsed


def _check_other(device: torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"device={str(device)!r} cannot be used here: {why}; correct it, or leave it out"
        ) from None


def _check_cuda(device: torch.device) -> None:
    if torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError(
            f"device={str(device)!r}: this torch was built without CUDA; install one with it, or "
            "leave device out"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={str(device)!r}: torch finds no GPU here; check the driver by `nvidia-smi`, "
            "or leave device out"
        )
    # This does not start CUDA, which a process that forks must not do.
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r}: torch finds {torch.cuda.device_count()} GPUs here, from "
            "'cuda:0' on; give the number of one of them"
        )


def mover_to(device: torch.device | None) -> Mover:
    """Return a way to move batches to a device."""
    if device is not None and device.type == "cuda":
        return CudaMover(device)
    return Mover(device)


class Mover:
    """Moves batches at once; to no device, it leaves them where they are.

    Args:
        device: Where to.
    """

    ahead = False
    """True if a batch is to be sent before the one ahead of it is used."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device

    def send(self, batch: Any) -> Any:
        """Begin to move a batch."""
        if self._device is None:
            return batch
        return each_tensor(batch, lambda tensor: tensor.to(self._device))

    def arrive(self, batch: Any) -> Any:
        """Return a batch that was sent, for use."""
        return batch


class CudaMover(Mover):
    """Copies batches from pinned memory on a stream of its own, beside the computation.

    The pinned memory is of torch's pool, which reuses it when the copy is done.
    """

    ahead = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        cuda: Any = torch.cuda
        self._side = cuda.Stream(device)

    def send(self, batch: Any) -> Any:
        """Begin to copy a batch, and return at once."""
        # The memory of an earlier batch may be used anew: only after the work that was on it.
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            sent = each_tensor(batch, self._copy)
            return sent, self._side.record_event()

    def arrive(self, batch: Any) -> Any:
        """Have the computation wait for a batch that was sent."""
        sent, copied = batch
        torch.cuda.current_stream(self._device).wait_event(copied)
        return sent

    def _copy(self, tensor: Tensor) -> Tensor:
        return pinned(tensor).to(self._device, non_blocking=True)


IGNORED = -100
"""The label that losses leave out: the ``ignore_index`` of PyTorch's cross entropy."""


def ignore_masked(labels: Any, mask: Tensor | None) -> Any:
    """Return labels with :data:`IGNORED` in masked rows, for trainers that take no mask.

    Labels that are not a dense tensor of signed integers stay as they are, and so do those of a
    batch without any other row, whose mean loss would be NaN. A warning then says so.
    """
    if mask is None or bool(mask.all()):
        return labels
    is_dense = isinstance(labels, torch.Tensor) and not (labels.is_nested or labels.is_sparse)
    if is_dense and labels.dtype in _SIGNED and bool(mask.any()):
        return labels.masked_fill(~mask.reshape(-1, *[1] * (labels.ndim - 1)), IGNORED)
    callers.warn_user(
        "the trainer takes no mask, so its loss counts masked rows (padding, excluded and damaged "
        "records) where the labels are not signed integers, or where a whole batch is masked; open "
        'the stream with remainder="drop"'
    )
    return labels


_SIGNED = torch.int8, torch.int16, torch.int32, torch.int64


PACKAGES = ("lightning.pytorch.loops", "pytorch_lightning.loops")
FETCHERS = ("fetchers._DataFetcher",)
EVALUATIONS = ("evaluation_loop._EvaluationLoop", "prediction_loop._PredictionLoop")
MOST = 9
"""One more than the most batches that are looked back; Lightning takes one ahead."""

Fetcher: TypeAlias = Any
"""Lightning's fetcher, or ``None``."""


def fetcher() -> Fetcher:
    """Find the fetcher of Lightning that calls, in this thread."""
    return _caller(FETCHERS)


def is_evaluating() -> bool:
    """Return whether a loop of Lightning that evaluates calls, in this thread."""
    return _caller(EVALUATIONS) is not None


def _check_end(stream: Stream) -> None:
    """Refuse an evaluation of Lightning or Hugging Face that would never end.

    Raises:
        ConfigError: The stream repeats its records without an end, and the loop has no limit.
    """
    if _evaluates_without_limit() and handle.of(stream).is_endless:
        raise ConfigError(
            "the stream was opened with epochs=None, so this evaluation would never end; open it "
            "without epochs=, or limit the loop where the trainer can: Lightning's "
            "limit_val_batches=, limit_test_batches= or limit_predict_batches="
        )


def _evaluates_without_limit() -> bool:
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is not None and callers.runs(("evaluation_loop",), trainer):
        return True
    loop = _caller(EVALUATIONS)
    # The first of these also tells in the sanity check, before hours of training, what is to come.
    limits: Any = getattr(loop, "_max_batches", None) or getattr(loop, "max_batches", ())
    # Of loaders that are read side by side, the shortest may end the loop.
    mode = getattr(getattr(loop, "_combined_loader", None), "_mode", None)
    return inf in limits and mode != "min_size"


def _caller(names: tuple[str, ...]) -> Any:
    """Return the nearest caller whose ``self`` is of one of Lightning's classes."""
    places = [f"{package}.{name}".rsplit(".", 1) for package in PACKAGES for name in names]
    kinds = [getattr(sys.modules.get(module), name, None) for module, name in places]
    present = tuple(kind for kind in kinds if kind is not None)
    if not present:
        return None
    return callers.nearest(*present)


def batches_waiting(fetcher: Fetcher) -> int:
    """Return how many batches a fetcher has taken, and not handed on."""
    # Lightning's own list: without it the state is that of what was taken.
    return len(getattr(fetcher, "batches", ()))


class Loader(IterableDataset[Any]):
    """Batches of tensors; made by :func:`streamrec.adapters.torch.as_loader`.

    Args:
        stream: The stream to take from.
        casts: The dtypes asked for.
        device: Where the tensors are to be; ``None`` leaves them where they are.
        pairs: The names of inputs and targets; ``None``: all features, by name.
        restart: Begin each loop at the beginning of the run; ``None``: where it is an evaluation.
        gather: The ranks whose states the state holds: True: all; a process group: its own.
    """

    def __init__(
        self,
        stream: Stream,
        casts: Casts,
        device: torch.device | None,
        pairs: Pairs | None = None,
        restart: bool | None = None,
        gather: Any = False,
    ) -> None:
        self._stream, self._casts, self._device = stream, casts, device
        self._pairs, self._restarts, self._gathers = pairs, restart, gather
        self._mover: Mover = mover_to(device)
        self._notice, self._loads = Notice(), 0
        self._ahead: tuple[Any, Any] = (None, None)
        """The batch after the one that was given last, and what the mover returned for it."""
        self._has_given = False
        """True within a run, from its first batch on."""
        self._is_loaded = False
        """True from when a state is loaded to the next batch."""
        self._is_ended = False
        """True from the end of a run to the next one."""
        self._is_over = False
        """True if a worker is to end its run at once."""
        self._is_unnoticed = False
        """True in a worker, up to the first batch of a run."""
        self._has_agreed = False
        self._fetcher: Fetcher = None
        self._history: deque[Mark] = deque(maxlen=MOST)
        """The points after the last batches, where Lightning reads ahead."""

    def __repr__(self) -> str:
        return f"<Loader of {self._stream!r}>"

    def __len__(self) -> int:
        """Return the number of batches (or single records) of a run; opens the stream.

        Raises:
            TypeError: It is not known.
        """
        self._stream.__enter__()
        return len(self._stream)

    def __bool__(self) -> bool:
        """Return True, without looking for the length."""
        return True

    # -- iterating ---------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        _check_end(self._stream)
        iter(self._stream)
        if get_worker_info() is None:
            self._notice.clear()
            # Once, as it waits for all ranks: later loops need not be run on each of them.
            self._has_agreed = self._has_agreed or agree_at_first(self._stream)
        else:
            self._begin_in_worker()
        self._fetcher = fetcher()
        # A trainer that counts its batches does not ask for one more to see the end.
        if (self._has_given or self._fetcher) and handle.of(self._stream).take_end():
            iter(self._stream)
        elif self._begins_anew():
            self._stream.restart()
        self._is_ended = False
        self._history.clear()
        self._history.append(handle.of(self._stream).mark())
        return self

    def _begins_anew(self) -> bool:
        """Return whether this loop begins where the run began, also after a ``break``."""
        if self._restarts is not None:
            return self._restarts
        if self._has_given and not self._fetcher and not torch.is_grad_enabled():
            warnings.warn(
                "a loop without gradients goes on where the loop before was broken off; for "
                "an evaluation of all records, give as_loader(restart=True); else restart=False",
                stacklevel=3,
            )
        return is_evaluating()

    def _begin_in_worker(self) -> None:
        if self._device is not None and self._device.type != "cpu":
            raise ConfigError(
                f"a worker of a DataLoader does not move batches to {self._device}; leave out "
                "device=, and move them in the training process by batch.to(device)"
            )
        self._is_unnoticed = True
        # A worker has a copy of the stream, which stands where the training process pickled it.
        epoch = self._notice.next_epoch
        if epoch is not None and not self._is_loaded:
            self._go_to_epoch(epoch)

    def __next__(self) -> Any:
        if self._is_over:
            self._is_over = False
            raise StopIteration
        if self._is_unnoticed:
            # Once a run: a worker that outlives a load would read on from before it.
            self._notice.check(self._loads)
        try:
            sent = self._take()
        except StopIteration:
            self._has_given, self._is_ended = False, True
            raise
        if self._is_unnoticed:
            self._notice.begin(self._stream)
        self._has_given, self._is_loaded, self._is_unnoticed = True, False, False
        if self._fetcher:
            self._history.append(handle.of(self._stream).mark())
        return self._mover.arrive(sent)

    def _take(self) -> Any:
        """Take a batch or a record and send it; a batch that is to be sent ahead follows it."""
        coming = self._stream.peek(2) if self._mover.ahead else []
        mark, item = handle.of(self._stream).mark(), None
        try:
            item = self._next()
            batch, sent = self._ahead
            # The stream may have been moved since, and then what was sent ahead is another batch.
            if batch is not item:
                sent = self._mover.send(self._tensors(item))
        except BaseException as error:
            # It was taken for nobody: it could not be converted, the device had no memory for it,
            # or an interrupt came. What went wrong in the stream itself has left it where it was.
            if item is not None or not isinstance(error, StopIteration | StreamrecError):
                handle.of(self._stream).go_back(mark)
            raise
        self._ahead = (None, None)
        if len(coming) == 2 and coming[0] is item:  # else the items are single records
            with suppress(Exception):  # raised when it is that batch's turn
                self._ahead = coming[1], self._mover.send(self._tensors(coming[1]))
        return sent

    def _next(self) -> Any:
        return next(self._stream)

    def _tensors(self, item: Any) -> Any:
        if isinstance(item, Batch):
            batch = item.to_torch(self._casts)
            return Pair(self._pairs.of(batch, batch.mask)) if self._pairs else batch
        if isinstance(item, dict):
            record = self._casts.columns(item)
            return self._pairs.of(record) if self._pairs else record
        if self._pairs:
            raise ConfigError(
                "the stream gives raw records, which have no features to make pairs of; open it "
                "with features, or leave out inputs and targets"
            )
        return item

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch (or single record) given.

        It has one text, of JSON, under the name of the rank: always the same structure, and for
        each rank its own, as ``torch.distributed.checkpoint`` needs it. With ``gather`` it has the
        texts of all ranks, under a name that does not depend on their number.

        Raises:
            ConfigError: A worker of a DataLoader reads, and knows the state alone.
        """
        if get_worker_info() is None and self._notice.is_read:
            raise ConfigError(
                "a worker of a DataLoader reads this loader, and this process does not know how "
                "far; take batch.next_position.to_dict(), or use torchdata's StatefulDataLoader, "
                "or num_workers=0"
            )
        rank = handle.of(self._stream).assignment.rank
        own = of_loader(self._state(), rank, is_ended=self._is_ended)
        # A worker is a process of its own, and no rank of a group.
        return own if not self._gathers or get_worker_info() else of_all(own, self._gathers)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state, of this loader or of a bare stream; or from those of all ranks.

        Raises:
            StateError: As :meth:`streamrec.Stream.load_state_dict`.
        """
        states, is_ended = from_loader(state)
        self._stream.load_state_dict(states)
        self._forget()
        self._is_loaded = True
        if get_worker_info() is None:
            self._loads = self._notice.note_load()
        else:
            self._note_load_in_worker(is_ended=is_ended)

    def _note_load_in_worker(self, *, is_ended: bool) -> None:
        """Note at once where the next worker begins: torchdata's loader may end this one unused."""
        if is_ended:
            self._is_over = True
            self._notice.next_epoch = self._stream.epoch
        else:
            self._stream.__enter__()
            self._notice.begin(self._stream)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; as :meth:`streamrec.Stream.set_epoch`.

        Accelerate calls it before each loop, with a number that it counts from 0.

        Raises:
            ConfigError: A state was just loaded, and the epoch lies before it.
        """
        if self._is_loaded and epoch < epoch_of(self._stream.state_dict()):
            raise ConfigError(
                f"set_epoch({epoch}) would leave the state that was loaded, which is of a later "
                "epoch; count the epochs on from that one, or rewind the stream and load no state"
            )
        self._go_to_epoch(epoch)
        self._notice.next_epoch = epoch

    def _go_to_epoch(self, epoch: int) -> None:
        self._stream.set_epoch(epoch)
        self._forget()

    def _forget(self) -> None:
        self._has_given = self._is_loaded = self._is_ended = self._is_over = False

    def _state(self) -> dict[str, Any]:
        """Return the state after what the trainer has got."""
        waiting = batches_waiting(self._fetcher)
        if waiting:
            # The oldest that is known, where more batches wait than are looked back.
            mark = self._history[max(-1 - waiting, -len(self._history))]
            return handle.of(self._stream).state_at(mark)
        return self._stream.state_dict()

    def __getstate__(self) -> dict[str, Any]:
        arguments = (self._stream, self._casts, self._device, self._pairs, self._restarts)
        # A process group cannot be sent, and a worker gathers nothing.
        return {
            "own": (*arguments, self._gathers is True),
            "notice": self._notice,
            "loads": self._loads,
        }

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        self.__init__(*pickled["own"])  # type: ignore[misc]
        self._notice, self._loads = pickled["notice"], pickled["loads"]
