"""The option `--hang-seconds`: how long a step may take before it counts as hung."""

import argparse

from conformance.cli.options import number
from conformance.lockstep.watchdog import FIRST_SECONDS, STEP_SECONDS


def add_hang_seconds(parser: argparse.ArgumentParser, *, default: float | None = None) -> None:
    """Add the option where a warm-up compiles.

    default: where there is no warm-up, and any step may compile what it calls.
    """
    without = f"one of the warm-up, which compiles, may take {FIRST_SECONDS:g} at least"
    parser.add_argument(
        "--hang-seconds",
        type=number(least=0.1),
        default=STEP_SECONDS if default is None else default,
        metavar="SECONDS",
        help="a step that takes longer hangs and violates PROG; "
        f"{without if default is None else 'compilation counts'} (default %(default)g)",
    )
