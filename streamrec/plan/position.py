"""The name under which batches that earlier versions pickled find their positions."""

from streamrec.plan.state.position import Position

__all__ = ["Position"]
