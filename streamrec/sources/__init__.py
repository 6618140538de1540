"""Sources of datasets: pictures, tables, JSON lines, shards of other formats and functions."""
