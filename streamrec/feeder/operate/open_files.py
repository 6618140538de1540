"""The daemon's limit of open files, of which each connection takes one."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING

from streamrec.feeder.operate.status_port import MOST as MOST_STATUS

if TYPE_CHECKING:
    from streamrec.config.daemon import DaemonSettings

ENOUGH = 1 << 20
"""Files beyond which no limit is raised; some systems allow a thousand times as many."""
OWN = 1024
"""Files for all but clients and the status port: above all the connections to stores."""

log = logging.getLogger("streamrec.feeder")


def raise_limit(server: DaemonSettings.Server) -> None:
    """Raise this process' soft limit as far as the hard one, and say so where that is not enough.

    With enough files the limits on connections are reached first, so that the status port answers
    and clients are told to go elsewhere.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    needed = server.max_connections + server.max_handshakes + MOST_STATUS + OWN
    if soft != resource.RLIM_INFINITY and soft < needed:
        log.warning(
            "the limit of open files is %d, and so many clients as max_connections allows need %d; "
            "raise the hard limit (ulimit -Hn, LimitNOFILE), or lower max_connections",
            soft,
            needed,
        )
