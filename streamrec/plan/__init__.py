"""What to do next, as data: order, windows, round robin, ranges and positions. Pure: no I/O."""
