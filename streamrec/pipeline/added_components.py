"""Components that join a mix while it runs: the state of a run before it is read on with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamrec.errors import MalformedPosition, OtherDataset
from streamrec.plan.order.coordinates import POINT
from streamrec.plan.order.mixture import names_in

if TYPE_CHECKING:
    from streamrec.pipeline.dataset_identity import Identity
    from streamrec.plan.state.fingerprint import Fingerprint
    from streamrec.plan.state.position import Position


def join_components(identity: Identity, own: Fingerprint, point: Position) -> Position:
    """Return the position of a saved state in a mix that components have joined since.

    Args:
        identity: The identity of the dataset.
        own: The fingerprint of the stream that goes on from the state.
        point: The saved state; of any other stream than a mix, it stays as it is.

    Raises:
        StateError: It belongs to another dataset or order.
    """
    known = names_in(point.fingerprint.mix)
    names = [] if identity.components is None else list(identity.components.names)
    missing = sorted(known.difference(names)) if names else []
    if missing:
        raise OtherDataset(
            f"the state has the components {', '.join(missing)}, for which this mix has no source; "
            f"name each with the weight 0, as in {{{missing[0]!r}: (url, 0)}}"
        )
    new = [name for name in identity.waiting if name not in known]
    if not known or not new:
        own.check(point.fingerprint)
        return point
    identity.before_joining(own, new).check(point.fingerprint)
    if point.sources.shape[1] != len(names) - len(new):
        raise MalformedPosition(
            "the state has a different number of components than its mix; give the state as it "
            "was saved"
        )
    return _with_columns(identity, own, point, [name not in new for name in names])


def _with_columns(
    identity: Identity, own: Fingerprint, point: Position, is_known: list[bool]
) -> Position:
    """Return a position with the beginnings of the components that it does not know."""
    lanes = range(point.rank, identity.lanes, point.world_size)
    sources = np.zeros((len(lanes), len(is_known)), POINT)
    sizes = np.zeros(sources.shape, np.int64)
    for number, order in enumerate(identity.orders):
        sources["extent"][:, number] = [order.first(lane, point.origin) for lane in lanes]
    sources[:, is_known], sizes[:, is_known] = point.sources, point.sizes
    return replace(point, fingerprint=own, sources=sources, sizes=sizes)
