"""The variables of the environment: those of launchers, which tell a rank, and those of settings.

The launchers are those that torchrun, Accelerate, Lightning, mpi4py and the cluster detection of
JAX know. Of the others ``PREFIX_GRACE`` overrides the setting ``grace``, and ``PREFIX_TLS__CERT``
the setting ``cert`` of ``tls``.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from streamrec.errors import ConfigError
from streamrec.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Launcher(NamedTuple):
    """A launcher and its variables; of each tuple, the first one that is set counts."""

    name: str
    rank: str
    """The variable with the rank."""
    sizes: tuple[str, ...]
    """The variables with the number of ranks; none where the launcher has no such variable."""
    local_sizes: tuple[str, ...] = ()
    """The variables with the number of ranks on this machine."""
    marks: tuple[str, ...] = ()
    """Other variables that only its processes have."""


LAUNCHERS = (
    Launcher("torchrun", "RANK", ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE",)),
    Launcher("Horovod", "HOROVOD_RANK", ("HOROVOD_SIZE",), ("HOROVOD_LOCAL_SIZE",)),
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ),
    Launcher(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
    ),
    Launcher(
        "MVAPICH",
        "MVP_COMM_WORLD_RANK",
        ("MVP_COMM_WORLD_SIZE",),
        ("MVP_COMM_WORLD_LOCAL_SIZE",),
        ("MVP_COMM_WORLD_LOCAL_RANK",),
    ),
    Launcher("mpirun_rsh", "MPIRUN_RANK", ("MPIRUN_NPROCS",)),
    Launcher(
        "jsrun",
        "JSM_NAMESPACE_RANK",
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
    ),
    # PALS says how many ranks there are in the variable of PMI alone.
    Launcher(
        "PALS",
        "PALS_RANKID",
        ("PALS_SIZE", "PMI_SIZE"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        ("PALS_LOCAL_RANKID",),
    ),
    # MPICH, Intel MPI and others that are started by Hydra, and srun --mpi=pmi2.
    Launcher(
        "PMI",
        "PMI_RANK",
        ("PMI_SIZE",),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PMI_ID"),
    ),
    Launcher("Flux", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",)),
    Launcher(
        "srun",
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    ),
    # The number of ranks is the number of hosts that the variable lists.
    Launcher("a TPU pod", "TPU_WORKER_ID", ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")),
    # These tell the rank, and leave the number of ranks to a library.
    Launcher("PMIx", "PMIX_RANK", ()),
    Launcher("ALPS", "ALPS_APP_PE", ()),
)
"""All launchers: those that start single ranks come before those that may start a rank's parent."""

_NO_STEPS = {"batch", "interactive", "4294967291", "4294967290"}
"""Values of SLURM_STEP_ID in a batch script and in the shell of salloc (slurm.h of Slurm)."""


class LaunchedRank(NamedTuple):
    """The rank of this process, as a launcher tells it."""

    rank: int
    world_size: int
    source: str
    """The names of the variables."""


def find_launched_rank(last: str | None = None) -> LaunchedRank | None:
    """Return the rank by the first launcher that tells one; ``None``: no launcher was there.

    A launcher of one rank tells nothing: this rank may start others by itself.

    Args:
        last: The source of an earlier answer, after which nothing is looked for.

    Raises:
        ConfigError: Variables are missing, contradict each other, or are not numbers.
    """
    answers: list[LaunchedRank] = []
    unclear: list[str] = []
    is_alone = False
    for launcher in LAUNCHERS:
        answer, complaint = _read(launcher)
        # The nearest launcher must be whole; of those after it, only what they tell counts.
        if complaint and not answers and launcher.sizes:
            raise ConfigError(complaint)
        if complaint:
            unclear.append(complaint)
        # torchrun starts the ranks themselves: its only one does not start others.
        elif answer is not None and answer.world_size == 1 and launcher.rank != "RANK":
            is_alone = True
        elif answer is not None:
            answers.append(answer)
        if answer is not None and answer.source == last:
            break
    # Only a launcher without a number of ranks was there, and no other told it.
    if not answers and unclear and not is_alone:
        raise ConfigError(unclear[0])
    _check(answers)
    return answers[0] if answers else None


_CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC")
"""The JSON object ``{"cluster": {TASK: [ADDRESS, ...]}, "task": ...}`` of TensorFlow's clusters
(https://www.tensorflow.org/guide/distributed_training#TF_CONFIG), and of Vertex AI."""
_NO_TRAINERS = {"ps", "evaluator"}
"""Tasks of a cluster that do not train."""


def find_other_processes() -> str | None:
    """Return the variable that tells of other processes of the job; ``None``: there is none.

    Whether its processes are ranks, it does not say: that depends on who divides the batches.
    """
    for name in _CLUSTERS:
        cluster = _field(_json_in(name), "cluster")
        tasks = cluster.items() if isinstance(cluster, dict) else ()
        trainers = [each for task, each in tasks if task not in _NO_TRAINERS]
        if sum(len(each) for each in trainers if isinstance(each, list)) > 1:
            return name
    hosts = _json_in("SM_HOSTS")  # of SageMaker
    if isinstance(hosts, list) and len(hosts) > 1:
        return "SM_HOSTS"
    # Of an indexed Job of Kubernetes, which does not say how many indexes there are.
    return "JOB_COMPLETION_INDEX" if _first(("JOB_COMPLETION_INDEX",))[1] not in ("", "0") else None


def _json_in(name: str) -> Any:
    try:
        return json.loads(os.environ.get(name) or "null")
    except (ValueError, RecursionError):
        return None


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def local_ranks() -> int:
    """Return how many ranks the launcher has started on this machine; 1 where none says so."""
    for launcher in LAUNCHERS:
        _, text = _first(launcher.local_sizes)
        if launcher.name == "srun":
            # Those of a batch script are of the job, whose steps are yet to come.
            text = _tasks_here(text) if _is_step() else ""
        if text.isdigit() and int(text):
            return int(text)
    return 1


def _read(launcher: Launcher) -> tuple[LaunchedRank | None, str]:
    """Return what a launcher tells, or a sentence about what is missing."""
    names, rank, size = _values(launcher)
    variables = [name for name in (*names, *launcher.marks) if os.environ.get(name)]
    # A WORLD_SIZE=1 alone contradicts nothing: there is one rank with or without it.
    if not variables or (size == "1" and not rank and variables == [names[-1]]):
        return None, ""
    if not rank or not size:
        return None, _missing(launcher, variables, rank, size)
    return _numbers(names, rank, size), ""


def _values(launcher: Launcher) -> tuple[tuple[str, ...], str, str]:
    """Return the names of the variables with the rank and the number of ranks, and their values."""
    rank = os.environ.get(launcher.rank, "")
    size_name, size = _first(launcher.sizes)
    if launcher.name == "srun" and not _is_step():
        # A batch script has most of a task's variables. It is one process, whose number is 0.
        return (launcher.rank,) * (rank != "0"), rank, ""
    if launcher.name == "PALS" and not rank:
        return (), "", ""  # the number of ranks is in the other launchers' processes too
    if launcher.name == "a TPU pod":
        if not size and rank == "0":
            return (), "", ""  # a machine by itself
        rank, size = _of_all_slices(rank, len(size.split(",")) if size else 0)
    return (launcher.rank, size_name), rank, size


def _is_step() -> bool:
    """Return whether this is a task of srun."""
    step = os.environ.get("SLURM_STEP_ID", "")
    return step not in _NO_STEPS and bool(step or os.environ.get("SLURM_STEP_NUM_TASKS"))


def _of_all_slices(rank: str, hosts: int) -> tuple[str, str]:
    """Return the number of a TPU host, and of all hosts, where there are several slices."""
    slices = os.environ.get("MEGASCALE_NUM_SLICES", "")
    if slices.isdigit() and rank.isdigit() and hosts:
        slice_id = os.environ.get("MEGASCALE_SLICE_ID", "0")
        if not slice_id.isdigit():
            raise ConfigError(
                f"MEGASCALE_SLICE_ID={slice_id!r} must be a whole number; correct it, or give "
                "rank= and world_size="
            )
        return str(int(slice_id) * hosts + int(rank)), str(hosts * int(slices))
    return rank, str(hosts or "")


def _missing(launcher: Launcher, variables: list[str], rank: str, size: str) -> str:
    there = " and ".join(f"{name}={os.environ[name]!r}" for name in variables)
    lacking = [launcher.rank] * (not rank) + list(launcher.sizes[:1]) * (not size)
    if not lacking:
        return (
            f"the environment has {there}: {launcher.name} has started this process, but does not "
            "say how many processes there are; set RANK and WORLD_SIZE, or give rank= and "
            "world_size="
        )
    return (
        f"the environment has {there} and no {' and no '.join(lacking)}, so the rank is not known; "
        f"set {' and '.join(lacking)} as well, or give rank= and world_size="
    )


def _numbers(names: tuple[str, ...], rank: str, size: str) -> LaunchedRank:
    settings = " and ".join(f"{name}={os.environ[name]!r}" for name in names)
    try:
        number, world_size = int(rank), int(size)
    except ValueError:
        raise ConfigError(
            f"{settings} must be whole numbers; correct them, or give rank= and world_size="
        ) from None
    if not 0 <= number < world_size:
        raise ConfigError(
            f"{settings}: the rank must be from 0 to below the number of ranks; correct them, or "
            "give rank= and world_size="
        )
    return LaunchedRank(number, world_size, " and ".join(names))


def _check(answers: list[LaunchedRank]) -> None:
    """Compare the nearest launcher with those that may have started its parent.

    Each process of an outer launcher may start several ranks, so the inner one may have more of
    them. torchrun numbers its hosts anew, by the order in which they come.

    Raises:
        ConfigError: Two launchers tell different ranks.
    """
    if not answers or "TORCHELASTIC_RUN_ID" in os.environ:
        return
    nearest = answers[0]
    for other in answers[1:]:
        # An outer launcher of fewer processes has started the parents of these ranks, so both are
        # right.
        if other.world_size >= nearest.world_size and other[:2] != nearest[:2]:
            raise ConfigError(
                f"this process is rank {nearest.rank} of {nearest.world_size} by {nearest.source}, "
                f"and rank {other.rank} of {other.world_size} by {other.source}; unset what is "
                "wrong, or give rank= and world_size="
            )


def _first(names: tuple[str, ...]) -> tuple[str, str]:
    """Return the first of the variables that is set, and its value."""
    return next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("", ""))


def _tasks_here(text: str) -> str:
    """Return the tasks of this node from those of all nodes, as Slurm writes them: ``2(x3),1``."""
    counts = [
        count
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        for _ in range(int(times or 1))
    ]
    node = os.environ.get("SLURM_NODEID", "0")
    # By the node's number within the job, in whose order Slurm lists the counts.
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else ""


SERVER_PREFIX = "STREAMREC_SERVER_"
"""The beginning of the names of the variables that override the daemon's ``[server]``."""

_OF_A_SERVICE = re.compile(r"SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)\w*)?")
"""The ends of the variables that Kubernetes sets in every pod beside a Service: one that is named
like the prefix (``streamrec-server``) must not stop the daemon."""


def overrides(
    model: type[Any], values: Any, variables: Mapping[str, str], prefix: str
) -> tuple[Any, dict[tuple[str, ...], str], list[str]]:
    """Put environment variables over the values of a table.

    Args:
        model: The settings class of the table.
        values: The values; they are not changed.
        variables: All environment variables.
        prefix: The beginning of the names of those that are meant.

    Returns:
        The new values; the variables' names by the paths of what they set; and a sentence for each
        variable that sets nothing.
    """
    changed, names, faults = values, {}, []
    for variable in sorted(variables):
        name = variable.removeprefix(prefix)
        # Without the prefix it is none of ours.
        if name == variable or _OF_A_SERVICE.fullmatch(name):
            continue
        path = tuple(name.lower().split("__"))
        annotation = _annotation(model, path)
        if annotation is None:
            settings = {prefix + setting.upper() for setting in model.model_fields}
            faults.append(
                f"the environment variable {variable} names no setting{nearest(variable, settings)}"
            )
            continue
        changed = _place(changed, path, _plain(annotation, variables[variable]))
        names[path] = variable
    return changed, names, faults


def _annotation(kind: Any, path: tuple[str, ...]) -> Any:
    """Return the type of the setting at a path; ``None``: there is none."""
    if not path:
        return kind
    for table in _members(kind):
        fields = getattr(table, "model_fields", None)
        if fields is not None:
            field = fields.get(path[0])
            return None if field is None else _annotation(field.annotation, path[1:])
        # A table whose keys are names of the user's.
        if get_origin(table) is dict:
            return _annotation(get_args(table)[1], path[1:])
    return None


def _members(kind: Any) -> tuple[Any, ...]:
    """Return a type, or those of a union."""
    return (kind,) if isinstance(kind, type) or get_origin(kind) is dict else get_args(kind)


def _plain(annotation: Any, text: str) -> Any:
    """Return a variable's value as a file would have it; wrong ones are for the validation."""
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(annotation)
    for value in _readings(text):
        try:
            # By the setting's own type: "8" is a number for one setting and a text for another.
            adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError:
            continue
        return value
    return text


def _readings(text: str) -> Iterator[Any]:
    """Yield what a text may mean: JSON, the text itself, or a list with commas."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    # A text stands for itself, since its quotes may be meant; null is no value of a setting.
    if value is not None and not isinstance(value, str):
        yield value
    yield text
    yield [part.strip() for part in text.split(",")]


def _place(values: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return a copy of tables with a value at a path; what is not a table stays as it is."""
    if not path:
        return value
    if not isinstance(values, dict):
        return values
    inner = values.get(path[0], {})
    return {**values, path[0]: _place(inner, path[1:], value)}
