"""The option `--hang-seconds`: the time limit of one step."""

import argparse

from conformance.cli.options import number
from conformance.lockstep.watchdog import FIRST_SECONDS, STEP_SECONDS


def add_hang_seconds(parser: argparse.ArgumentParser, *, default: float | None = None) -> None:
    """Add the option for commands with a compiling warm-up.

    default: for commands without a warm-up, where any step may compile the code that it calls.
    """
    without = f"a step of the warm-up, which compiles, has at least {FIRST_SECONDS:g}"
    parser.add_argument(
        "--hang-seconds",
        type=number(least=0.1),
        default=STEP_SECONDS if default is None else default,
        metavar="SECONDS",
        help="a step that takes longer counts as hung and violates PROG; "
        f"{without if default is None else 'compilation counts'} (default %(default)g)",
    )
