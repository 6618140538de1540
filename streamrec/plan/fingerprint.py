"""The name under which batches that earlier versions pickled find their fingerprints."""

from streamrec.plan.state.fingerprint import Fingerprint

__all__ = ["Fingerprint"]
