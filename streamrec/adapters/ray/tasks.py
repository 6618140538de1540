"""Independent tasks on a cluster of Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import ray

if TYPE_CHECKING:
    from collections.abc import Callable

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
