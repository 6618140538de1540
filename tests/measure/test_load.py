from __future__ import annotations

import pytest

from streamrec.measure.load import busy_part, used_part
from tests.measure.worlds import a_job


@pytest.mark.parametrize(
    ("ran", "waited", "busy"),
    [
        (4.0, 4.0, 0.5),
        (9.0, 1.0, None),  # little
        (0.5, 0.5, None),  # of a job that hardly needs a core
        (18.0, 9.0, None),  # its own threads wait for one another
        (8.0, 2.0, 0.2),
        (8.1, 2.0, None),
        (1.0, 1.0, 0.5),
        (0.99, 0.99, None),
        (14.9, 14.9, 0.5),
        (15.0, 15.0, None),  # three quarters of both cores
        (0.0, 0.0, None),
        (None, 1.0, None),
        (1.0, None, None),
        (None, None, None),
    ],
)
def test_others_have_the_cores(ran: float | None, waited: float | None, busy: float | None) -> None:
    job = a_job(seconds=10.0, core_seconds=ran, core_wait_seconds=waited)
    assert busy_part(job, 2) == busy


def test_the_part_of_the_cores() -> None:
    assert used_part(a_job(seconds=10.0, core_seconds=5.0), 4) == 0.125
    assert used_part(a_job(), 4) is None
    assert used_part(a_job(seconds=0.0, core_seconds=5.0), 4) is None
    assert busy_part(a_job(seconds=0.0, core_seconds=5.0, core_wait_seconds=5.0), 4) == 0.5
