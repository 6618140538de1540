from __future__ import annotations

from streamrec import kernel
from streamrec.kernel import reference


def test_the_twin_runs_and_says_so() -> None:
    assert kernel.implementation == "python"
    assert kernel.scan_frames is reference.scan_frames


def test_every_function_of_the_contract_is_exported() -> None:
    assert set(reference.__all__) <= set(kernel.__all__)
