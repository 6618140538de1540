from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamrec.cli.bench_measuring import measure
from streamrec.errors import ObjectNotFound
from streamrec.measure.figures import Figures
from tests.measure.samples import figures

if TYPE_CHECKING:
    from streamrec.measure.benchmark import Benchmark


@pytest.mark.parametrize("is_listed", [True, False])
def test_what_was_listed_is_printed_where_the_job_fails(
    is_listed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(benchmark: Benchmark) -> None:
        if is_listed:
            benchmark._found["listing"] = figures().listing
        raise ObjectNotFound("there is no shard", url="s3://b/x")

    with pytest.raises(ObjectNotFound):
        measure(
            figures().target,
            fail,
            html=None,
            trace=None,
            as_json=True,
            seconds=60.0,
            max_bytes=1,
            max_requests=1,
            step_seconds=None,
        )
    printed = capsys.readouterr().out
    if is_listed:
        found = Figures.model_validate_json(printed)
        assert (found.listing, found.job) == (figures().listing, None)
    else:
        assert printed == ""
