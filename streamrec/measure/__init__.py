"""The benchmark behind ``streamrec bench``: measurements within a budget, verdict and report."""
