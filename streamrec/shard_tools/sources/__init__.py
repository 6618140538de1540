"""Sources of datasets: folders of pictures, tables, JSON lines and functions."""
