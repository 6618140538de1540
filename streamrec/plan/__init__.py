"""The plan of a run, as data: order, windows, round robin, ranges and positions. Pure: no I/O."""
