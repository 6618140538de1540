"""What ``streamrec bench`` runs: measurements within a budget, the verdict, and the report."""
