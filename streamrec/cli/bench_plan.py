"""``streamrec bench plan``: what a job needs, worked out on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamrec.cli.bench_measuring import known_prices, prices_option
from streamrec.cli.options import debug_option, json_option

if TYPE_CHECKING:
    from pathlib import Path

STORE = "s3"
"""The store whose prices a plan has, where its text does not give them."""


@click.command()
@click.argument("job")
@prices_option
@json_option
@debug_option
def plan(*, job: str, prices: Path | None, as_json: bool) -> None:
    """Work out on paper what a job needs; nothing is measured.

    JOB is what is known of it, such as hosts=512,batch=1MB,step=150ms. Prices of the store are
    those of S3 in --prices, if JOB does not give them.
    """
    from streamrec.measure.capacity import plan as plan_job

    known = known_prices(prices)
    store = known.stores[STORE]
    of_store = {
        "request_price": store.get_per_1000,
        "byte_price": store.egress_per_gb[known.reader],
    }
    planned = plan_job(job, prices=of_store)
    click.echo(planned.model_dump_json(indent=2) if as_json else str(planned))
