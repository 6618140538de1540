"""Sources of datasets: pictures, tables, JSON lines, shards of other formats and functions.

``datasets`` and the rooms above may import it; it reads files through ``stores`` alone.
"""
