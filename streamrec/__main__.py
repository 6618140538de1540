"""``python -m streamrec``: the command line."""

from __future__ import annotations

from streamrec.cli import main

if __name__ == "__main__":
    main()
