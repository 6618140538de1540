"""devstore: a loopback object store that speaks enough S3 and GCS for the demo, tests and benches.

::

    async with DevStore(latency=0.05, bandwidth=60e6) as store:  # or a plain `with`, in a thread
        store.put("bucket/key", data)
        store.faults = [FaultRule(ranged=True, nth=3, reset_after=1000)]
        ...  # store.endpoint, store.storage_options
        assert store.statistics.by_kind["HeadObject"] == 0

As a process of its own: ``python -m streamrec.devstore --help``.
"""

from streamrec.devstore.objects import Recipe, SyntheticObjects
from streamrec.devstore.refusals import FaultRule
from streamrec.devstore.sending import RequestRecord, RequestStatistics
from streamrec.devstore.server import DevStore

Fault, Statistics = FaultRule, RequestStatistics
"""The names under which programs import these two classes since the first version."""

__all__ = [
    "DevStore",
    "Fault",
    "FaultRule",
    "Recipe",
    "RequestRecord",
    "RequestStatistics",
    "Statistics",
    "SyntheticObjects",
]
