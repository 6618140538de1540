"""The cases of streams beside busy trainers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.fetching.images import BATCH_SIZE, FOR, WAYS, stream_arguments
from bench.measure import Case, Comparison, no_service
from bench.services import burner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from bench.fetching.images import Images, Place, Way
    from bench.measure import ServiceInfo

IDLE = "beside an idle trainer"
STEPS = "beside a trainer: 10 ms of Python after each batch"
HELD = "beside a trainer: a thread of Python that never stops"
MATRICES = "beside a trainer: a thread of matrix products and Python"
BURNING = "beside another process that never stops"
ALONE = "trainer without data"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Load:
    """A load that a stream runs beside."""

    group: str
    work: Mapping[str, Any] = field(default_factory=dict)
    service: Callable[[], AbstractContextManager[ServiceInfo]] = no_service


def beside_trainers(
    images: Images, place: Place, iterations: int, *, passes: int, few: int
) -> list[Case]:
    """Return a case for each load and each way to iterate, and the trainer without data.

    Args:
        images: Images that are read.
        place: Place that they are read from; its group does not matter.
        iterations: Iterations of the trainer's loop in 10 ms.
        passes: Passes that a plain ``for`` reads.
        few: Passes that ``async for`` reads, which shares the trainer's interpreter.
    """
    steps = {"iterations": iterations}
    loads = (
        Load(IDLE),
        Load(STEPS, steps),
        Load(HELD, {"beside": "python"}),
        Load(MATRICES, {"beside": "matrix"}),
        Load(BURNING, service=burner),
    )
    ways = {FOR: passes, WAYS[0]: few}
    rows = [_case(images, place, load, way, n) for load in loads for way, n in ways.items()]
    counts = images.part(passes)
    alone = {"records": counts.records, "label_sum": counts.label_sum, "batch_size": BATCH_SIZE}
    arguments = {**alone, **steps, "beside": None, "passes": passes}
    rows.insert(2 * len(ways), Case(STEPS, ALONE, "bench.readers.trainer", arguments))
    return rows


def _case(images: Images, place: Place, load: Load, way: Way, passes: int) -> Case:
    options = {"storage_options": place.storage_options}
    of_idle = Comparison("of idle", (f"{IDLE}: {way.name}",))
    of_burning = Comparison("of a machine as busy", (f"{BURNING}: {way.name}",))
    of_alone = Comparison("of no data", (f"{load.group}: {ALONE}",))
    comparisons = {IDLE: (), BURNING: (of_idle,), STEPS: (of_idle, of_alone)}
    return Case(
        load.group,
        way.name,
        "bench.readers.stream",
        stream_arguments(images, passes, way, **options, **load.work),
        environment={**place.environment, **ONE_THREAD},
        service=load.service,
        companions={"store": place.served.pid},
        counters=place.served,
        comparisons=comparisons.get(load.group, (of_idle, of_burning)),
    )
