"""Independent tasks on a cluster of Ray, and a dataset that such tasks write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from streamrec.datasets.merge_shards import merge_index
from streamrec.errors import StreamrecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrec.datasets.convert import Conversion, Outcome


def convert_on_ray(
    conversion: Conversion,
    tasks: int | None,
    progress: Callable[[str, int, int | None], None] = lambda *_: None,
    **ray_remote_args: Any,
) -> Outcome:
    """Write a dataset by tasks on Ray, and complete it.

    Args:
        conversion: The dataset. Its ``workers``, by default 1, are the CPUs of each task. All nodes
            see the source and the destination under the same names.
        tasks: The number of tasks; ``None``: one for each so many CPUs of the cluster, and for each
            shard at most.
        progress: Is called with a word, the tasks that are done, and all of them.
        **ray_remote_args: Options of the tasks, as for :func:`run_tasks`.

    Raises:
        StreamrecError: That of a task that failed; or a task died more often than it may.
    """
    if not ray.is_initialized():
        ray.init()
    cores = conversion.workers or 1
    conversion = replace(conversion.anywhere(), workers=cores)
    count = tasks or _tasks(conversion, cores)
    options = {"num_cpus": cores, **ray_remote_args}
    done: set[int] = set()

    def tell(task: int) -> None:
        done.add(task)
        progress("writing", len(done), count)

    try:
        parts = run_tasks(conversion.run_task, count, on_done=tell, **options)
    except ray.exceptions.RayError as error:
        raise StreamrecError(
            f"a task on Ray did not end: {error}; see Ray's logs, and run the same command again"
        ) from error
    whole = _join(parts)
    for split in whole.splits:
        merge_index(split.template, storage_options=conversion.destination.storage_options)
    return whole


def _tasks(conversion: Conversion, cores: int) -> int:
    cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(1, min(cpus // cores, conversion.destination.shards or cpus))


def _join(parts: list[Outcome]) -> Outcome:
    """Return what all tasks did together."""
    whole, *others = parts
    for part in others:
        whole.skipped += part.skipped
        whole.refusals += part.refusals
        for split, more in zip(whole.splits, part.splits, strict=True):
            split.records += more.records
            split.was_complete &= more.was_complete
    return whole


Result = TypeVar("Result")
RETRIES = 10
"""The most reruns of a task whose node or process died. Without an end, one that always takes
its process down would run forever."""


def run_tasks(
    run: Callable[[int, int], Result],
    tasks: int,
    *,
    on_done: Callable[[int], object] | None = None,
    **ray_remote_args: Any,
) -> list[Result]:
    """Run ``run(i, tasks)`` for each task ``i`` on Ray, and return the results in the tasks' order.

    A task whose node or process dies is run again elsewhere, so it must end the same however often
    it begins: ``streamrec.ShardedWriter`` with ``task=(i, tasks)`` does. Ray is connected to if it
    is not yet: to ``RAY_ADDRESS``, to a cluster of this machine, or to one that is started here.

    Args:
        run: Sent to the nodes, with what it refers to. ``streamrec`` must be installed there.
        tasks: The number of tasks.
        on_done: Called in this process with the number of each task that is done.
        **ray_remote_args: Options of the tasks, as for ``ray.remote``, such as ``num_cpus`` and
            ``max_retries``, by default 10.

    Raises:
        Exception: That of the first task that failed; the others are cancelled.
        ray.exceptions.RayError: A task died more often than it may.
    """
    if not ray.is_initialized():
        ray.init()
    options = {"max_retries": RETRIES, **ray_remote_args}

    def call(task: int, tasks: int) -> Result:  # since Ray takes no methods
        return run(task, tasks)

    remote = ray.remote(**options)(call)
    running = {remote.remote(task, tasks): task for task in range(tasks)}
    results: dict[int, Result] = {}
    try:
        while running:
            done, _ = ray.wait(list(running))
            for reference in done:
                results[running[reference]] = ray.get(reference)
                task = running.pop(reference)
                if on_done is not None:
                    on_done(task)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from error
    finally:
        for reference in running:
            ray.cancel(reference)
    return [results[task] for task in range(tasks)]
