"""The `penstock` command: finds the command, and turns errors of users into one line and an exit code.

Exit codes: 0 done, 1 Penstock could not do it, 2 the command line is wrong. A traceback is a bug.

`serve` reads its command line by itself: what reads those of the other commands takes 17 MB and a fifth of a second,
which a broker would carry for as long as it runs.
"""

from __future__ import annotations

import sys

from penstock.errors import PenstockError


def main() -> None:
    """Run the command line."""
    try:
        if sys.argv[1:2] == ["serve"]:
            from penstock.cli.serve import main as serve

            serve(sys.argv[2:])
        else:
            from penstock.cli.app import app

            app()
    except PenstockError as error:
        sys.stderr.write(f"penstock: {error}\n")
        sys.exit(1)
