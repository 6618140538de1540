"""Times one reading within the process that reads, and says what processes take of the machine.

Standard library only: readers run in interpreters that may have neither streamrec nor click. A
module of readers ends with :func:`main`, which runs the one that the command line names.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
GIGABYTES = 1
"""Size of small and of huge pages, each, that are touched: more than any reader takes."""
MADV_POPULATE_WRITE = 23
"""From madvise(2); the mmap module does not name it."""
Arguments = dict[str, Any]


class Usage(NamedTuple):
    """CPU time and memory of a process, all its threads included."""

    cpu_seconds: float
    """User and system time, in ticks of usually 10 ms."""
    peak_megabytes: float
    """Largest resident set; ``ru_maxrss`` would begin with the parent's."""


def usage(pid: int) -> Usage:
    """Return the usage of a running process since its start."""
    return Usage(cpu_seconds(pid), _status_megabytes(pid, "VmHWM:"))


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a running process has taken so far."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS


def helpers_usage(pid: int) -> Usage:
    """Return the usage of all processes that a process has started.

    Processes that have ended count once they have been waited for, and only for the CPU time. The
    memory is the sum of the peaks, and what they share counts once. Memory that is shared after a
    fork counts for each process.
    """
    helpers = children(pid)
    usages = [usage(child) for child in helpers]
    cpu = sum(one.cpu_seconds for one in usages) + sum(map(_reaped_cpu_seconds, [pid, *helpers]))
    # Ranges lie in memory that all of them have mapped.
    shared = [_shared_megabytes(child) for child in helpers]
    own = sum(one.peak_megabytes for one in usages) - sum(shared)
    return Usage(cpu, own + max(shared, default=0.0))


def _reaped_cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / TICKS


def _shared_megabytes(pid: int) -> float:
    return _status_megabytes(pid, "RssShmem:")


def resident_megabytes(pid: int) -> float:
    return _status_megabytes(pid, "VmRSS:")


def proportional_megabytes(pid: int) -> float:
    """Return the memory of a running process; of what it shares with others, its part."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return _kilobytes(rollup, "Pss:") * 1024 / 1e6


def descriptors(pid: int) -> int:
    """Return the number of descriptors that a running process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return int(_stat(pid)[17])


def tree(pid: int) -> list[int]:
    """Return the ids of a process and of all that descend from it."""
    return [pid, *(one for child in children(pid) for one in tree(child))]


def children(pid: int) -> list[int]:
    """Return the ids of the running processes that a process has started."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _parent(entry.name) == pid]


def _status_megabytes(pid: int, name: str) -> float:
    return _kilobytes(Path(f"/proc/{pid}/status").read_text(), name) * 1024 / 1e6


def _kilobytes(text: str, name: str) -> int:
    line = next(line for line in text.splitlines() if line.startswith(name))
    return int(line.split()[1])


def _parent(pid: str) -> int | None:
    try:
        return int(_stat(pid)[1])
    except OSError:  # it has ended meanwhile
        return None


def _stat(pid: int | str) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third on; the second may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# -- the time --------------------------------------------------------------------------------------


class Stopwatch:
    """Measures from before the dataset is opened to its last batch.

    Args:
        companions: Ids of the other processes that work for this reading, by name.
    """

    def __init__(self, companions: Mapping[str, int]) -> None:
        self.records = self.label_sum = 0
        self.nbytes: int | None = None
        """Size of the shards, where the reader knows it itself."""
        self._pids = {"client": os.getpid(), **companions}
        self._first: float | None = None
        self._first_records = 0
        self._last = self._longest_wait = 0.0
        self._stopped = self._started = self._helpers_before = 0.0
        self._before: dict[str, Usage] = {}
        self._after: dict[str, Usage] = {}

    def start(self, *, warm: bool = True) -> None:
        """Start, right before the dataset is opened and after all modules are imported."""
        if warm:
            warm_memory()
        self._before = {name: usage(pid) for name, pid in self._pids.items()}
        self._helpers_before = helpers_usage(os.getpid()).cpu_seconds
        self._started = time.perf_counter()

    def take(self, records: int, label_sum: int) -> None:
        """Count a batch that has arrived."""
        now = time.perf_counter()
        if self._first is None:
            self._first, self._first_records = now, records
        else:
            self._longest_wait = max(self._longest_wait, now - self._last)
        self._last = now
        self.records += records
        self.label_sum += label_sum

    def stop(self) -> None:
        """Stop, after the last batch and while the processes that were started still run.

        Those count as the engine, start included, since that is part of the cost.
        """
        self._stopped = time.perf_counter()
        self._after = {name: usage(pid) for name, pid in self._pids.items()}
        helpers = helpers_usage(os.getpid())
        if helpers.cpu_seconds > self._helpers_before or children(os.getpid()):
            self._before["engine"] = Usage(self._helpers_before, 0.0)
            self._after["engine"] = helpers
            # Batches lie in memory that the engine has mapped as well, and count there.
            client = self._after["client"]
            own = client.peak_megabytes - _shared_megabytes(os.getpid())
            self._after["client"] = client._replace(peak_megabytes=own)

    def report(self) -> dict[str, Any]:
        """Return what was measured as plain values."""
        return {
            "seconds": self._stopped - self._started,
            "first_batch_seconds": self._first and self._first - self._started,
            "first_batch_share": self._first_records / self.records if self.records else None,
            "longest_wait_seconds": self._longest_wait,
            "records": self.records,
            "label_sum": self.label_sum,
            "nbytes": self.nbytes,
            "cpu_seconds": {
                name: after.cpu_seconds - self._before[name].cpu_seconds
                for name, after in self._after.items()
            },
            "peak_megabytes": {name: after.peak_megabytes for name, after in self._after.items()},
            "idle_megabytes": self._before["client"].peak_megabytes,
        }


def warm_memory() -> None:
    """Touch memory in another process and free it, so that the reader gets that memory.

    A virtual machine's host may have taken free memory back, and returns it at 2 to 5 s of CPU time
    a GB. A reader that takes a gigabyte would be slower by up to several seconds now and then.
    """
    command = [sys.executable, "-m", "bench.stopwatch", str(GIGABYTES)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True)


def touch(size: int) -> None:
    """Have so many bytes of small pages in memory, and as many of huge ones."""
    small, huge = (
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)
    )
    if hasattr(mmap, "MADV_HUGEPAGE"):
        huge.madvise(mmap.MADV_HUGEPAGE)
    for memory in small, huge:
        try:
            memory.madvise(MADV_POPULATE_WRITE)  # a fifth of the CPU time of a loop in Python
        except OSError:  # Linux before 5.14
            for page in range(0, size, mmap.PAGESIZE):
                memory[page] = 1


# -- programs --------------------------------------------------------------------------------------


class Done(NamedTuple):
    """A piece of work that a reader has done."""

    records: int
    label_sum: int | None = None
    """Sum of the labels, where the records were parsed."""
    nbytes: int | None = None
    """Size of the frames, where the records were not parsed."""


def repeat(work: Callable[[], Iterator[Done]], seconds: float) -> dict[str, Any]:
    """Time endless work for a while, and return the report.

    Args:
        work: Function that begins the work; its first piece is done once before, untimed.
        seconds: Least time; the piece of work that runs then is finished.
    """
    next(work())
    watch = Stopwatch({})
    watch.start(warm=False)
    end = time.perf_counter() + seconds
    for done in work():
        watch.take(done.records, done.label_sum or 0)
        if done.nbytes is not None:
            watch.nbytes = (watch.nbytes or 0) + done.nbytes
        if time.perf_counter() >= end:
            break
    watch.stop()
    return watch.report()


def main(programs: Mapping[str, Callable[[Arguments], dict[str, Any]]]) -> None:
    """Run the program that the command line names, and print its report as one line of JSON."""
    report = programs[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    touch(int(sys.argv[1]) << 30)
