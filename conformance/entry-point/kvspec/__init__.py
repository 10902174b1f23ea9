"""The command `kvspec` and its pytest plugin begin here, under a name that nothing else has.

The three packages of kvspec have common names. Where Python finds others of the same names first,
nothing of them is run: the command says so and ends. So this package imports nothing of ours before
`foreign` was asked, and is installed beside the three.
"""

import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("spec", "impl", "conformance")
MARK: Final = "__kvspec__"
"""Stands in the `__init__.py` of each of them."""
BAD_INPUT: Final = 2
UNDECIDED: Final = 3


def main() -> None:
    """Run the command with the arguments of the process, and exit with its status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(_run())
    except KeyboardInterrupt:
        print("kvspec: not decided: interrupted before the command began", file=sys.stderr)
        sys.exit(UNDECIDED)


def foreign() -> str | None:
    """One line about a package that is not ours, None if all are. None of them is imported."""
    for name in PACKAGES:
        found = find_spec(name)
        origin = None if found is None else found.origin
        if origin is None or MARK not in Path(origin).read_text("utf-8", "replace"):
            folders = [] if found is None else list(found.submodule_search_locations or ())
            return (
                f"the package {name} is not kvspec's: Python found "
                f"{origin or ', '.join(folders) or 'nothing'}. Install kvspec in an environment of "
                "its own, run it from another folder, or look at PYTHONPATH."
            )
    return None


def _run() -> int:
    wrong = foreign()
    if wrong is not None:
        print(f"kvspec: {wrong}", file=sys.stderr)
        return BAD_INPUT

    from conformance.cli.main import supervised_main

    return supervised_main()
