"""The rank of a process in the mesh of a framework: ``streamrec.rank_of``.

A mesh has dimensions that divide the data, and others, such as tensor parallelism, whose processes
all need the same batches. Nothing of a framework is imported unless its mesh was given.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from streamrec.errors import ConfigError
from streamrec.streams.ranks import Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["rank_of"]

DATA = {
    "batch", "data", "data_parallel", "dp", "dp_replicate", "dp_shard", "dp_shard_in_ep",
    "dp_shard_mod_ep", "ddp", "fsdp", "fsdp_transpose", "replica", "replicate",
}  # fmt: skip
"""The dimensions that divide the data, by the names that PyTorch, torchtitan, Accelerate, JAX and
MaxText give them."""
REPLICAS = {
    "context", "context_autoregressive", "cp", "ep", "expert", "mdl", "model", "mp", "pipe",
    "pipeline", "pp", "seq", "sequence", "sp", "stage", "tensor", "tensor_parallel",
    "tensor_sequence", "tensor_transpose", "tp",
}  # fmt: skip
"""The dimensions whose processes need the same batches."""


def rank_of(mesh: Any, data: Iterable[str] | None = None) -> Rank:
    """Return the rank and the world size that this process reads: ``streamrec.rank_of``.

    Processes that differ in tensor, pipeline, context or expert parallelism alone have one rank:
    they are replicas, and get the same batches. With ``rank=streamrec.rank_of(mesh)``,
    ``streamrec.open`` and ``connect`` have the rank and the world size both.

    Args:
        mesh: A ``DeviceMesh`` of PyTorch with names, the module ``megatron.core.parallel_state``,
            or a ``Mesh`` or sharding of batches of JAX.
        data: The names of the dimensions that divide the data, for a mesh that has other names;
            ``None``: by their usual names.

    Raises:
        ConfigError: It is not known of a dimension whether it divides the data, there is no such
            dimension, or this process is not in the mesh.
    """
    if hasattr(mesh, "get_data_parallel_rank"):
        return _of_megatron(mesh)
    if hasattr(mesh, "mesh_dim_names"):
        return _of_torch(mesh, data)
    if hasattr(mesh, "axis_names") or hasattr(mesh, "devices_indices_map"):
        return _of_jax(mesh, data)
    raise ConfigError(
        f"rank_of takes a mesh, not {type(mesh).__name__}; give it a DeviceMesh of PyTorch, "
        "megatron.core.parallel_state, or a Mesh or NamedSharding of JAX"
    )


def data_dimensions(names: Sequence[str], data: Iterable[str] | None) -> list[str]:
    """Return the names of the dimensions that divide the data, in the order of the mesh.

    Raises:
        ConfigError: It is not known of one, or there is none of a name that was given.
    """
    if data is None:
        known = DATA | REPLICAS
        strange = [name for name in names if name.lower() not in known]
        if strange:
            raise ConfigError(
                f"the mesh has the dimension {strange[0]!r}, and its name does not tell whether it "
                "divides the data; name all dimensions that do, as in rank_of(mesh, data=('dp',))"
            )
        return [name for name in names if name.lower() in DATA]
    wanted = _names_in(data)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ConfigError(
            f"the mesh has no dimension {missing[0]!r}, but {', '.join(names)}; name some of these "
            "in data="
        )
    return [name for name in names if name in wanted]


def _names_in(data: Any) -> list[str]:
    """Return the names of dimensions that were given, each a text; a text is one name."""
    names: Any = [data] if isinstance(data, str) else data
    # A list, as an iterator gives its names only once.
    wanted: list[Any] = list(names) if isinstance(names, Iterable) else [None]
    if not all(isinstance(name, str) for name in wanted):
        raise ConfigError(
            f"data= takes the names of dimensions, as in rank_of(mesh, data=('dp',)), not {data!r}"
        )
    return wanted


def _of_torch(mesh: Any, data: Iterable[str] | None) -> Rank:
    if mesh.mesh_dim_names is None or None in mesh.mesh_dim_names:
        raise ConfigError(
            "a dimension of the mesh has no name, so it is not known which divide the data; "
            "make it with mesh_dim_names=('dp', 'tp')"
        )
    place = mesh.get_coordinate()
    if place is None:
        raise ConfigError(
            "this process is not in the mesh; make the mesh of all processes that read, or read no "
            "stream in this process"
        )
    names = list(mesh.mesh_dim_names)
    # The last dimension counts fastest, as in the numbers of the ranks themselves.
    rank, sizes = 0, []
    for name in data_dimensions(names, data):
        at = names.index(name)
        sizes.append(mesh.size(at))
        rank = rank * mesh.size(at) + place[at]
    return Rank(rank, prod(sizes))


def _of_megatron(parallel_state: Any) -> Rank:
    if not parallel_state.model_parallel_is_initialized():
        raise ConfigError(
            "Megatron's groups are not there yet; call parallel_state.initialize_model_parallel "
            "before rank_of"
        )
    # Without context parallelism, whose processes share the tokens of a batch.
    return Rank(
        parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    )


def _of_jax(mesh: Any, data: Iterable[str] | None) -> Rank:
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, Sharding

    from streamrec.adapters import jax

    spec: Any = PartitionSpec

    if isinstance(mesh, Sharding):
        if data is not None:
            raise ConfigError("a sharding says itself how it divides the data; leave out data=")
        return jax.rank_of(mesh)
    if isinstance(mesh, AbstractMesh):
        raise ConfigError(
            "an abstract mesh of JAX has no devices, so it does not tell where this process is; "
            "give the Mesh that it was made of"
        )
    names = data_dimensions(mesh.axis_names, data)
    return jax.rank_of(NamedSharding(mesh, spec(tuple(names))))
