"""A trainer that does nothing but print how fast a feeder serves it.

``python examples/print_rate.py tcp://127.0.0.1:7070/train``
"""

from __future__ import annotations

import argparse
import time

import streamrec as sr

EVERY = 2.0
"""Seconds between two lines."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Print how fast a feeder serves a dataset.")
    parser.add_argument("address", help="the dataset's: tcp://127.0.0.1:7070/train")
    parser.add_argument("--steps", type=int, help="the number of batches to take; else all")
    given = parser.parse_args()

    with sr.connect(given.address, rank=0, world_size=1) as stream:
        batches = records = 0
        blocked, since = 0.0, time.monotonic()
        for number, batch in enumerate(stream, 1):
            batches, records = batches + 1, records + len(batch)
            seconds = time.monotonic() - since
            if seconds >= EVERY or number == given.steps:
                waited = stream.statistics()["seconds_blocked"] - blocked
                share = waited / seconds
                print(
                    f"step {number:,}: {batches / seconds:,.0f} batches/s, "
                    f"{records / seconds:,.0f} records/s, waited {share:.0%} of the time",
                    flush=True,
                )
                batches = records = 0
                blocked, since = blocked + waited, since + seconds
            if number == given.steps:
                break


if __name__ == "__main__":
    main()
