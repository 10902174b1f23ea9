"""The command line of a harness: options, process, verdict."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from conformance.engines.registry import load_engine
from conformance.runtime.supervisor import supervised
from conformance.verdict import BAD_INPUT, UNDECIDED, Verdict
from spec.vocabulary.errors import InvalidInput

Check = Callable[..., tuple[Verdict, int]]
"""A check of a factory, with `chosen`, the seed, and `seconds`: verdict and number of histories."""


def main(check: Check, **words: Any) -> int:
    """Like `run`, in a child process: a check may end its process."""
    return supervised(lambda _tell: run(check, **words), conclude=_conclude)


def _conclude(
    known: Mapping[str, Any] | None, *, process: int, error: str | None, interrupted: bool
) -> int:
    """Say how the process of the check ended."""
    del known, process
    print(f"kvspec: {'interrupted' if interrupted else error}", file=sys.stderr)
    return UNDECIDED


def run(check: Check, *, module: str, told: str | None, engine: str, not_checked: str) -> int:
    """Do what the command line says; return the exit status of the verdict.

    module: of the check; its last name is the name of the check. told: its description in `--help`.
    engine: describes the engine argument. not_checked: printed after each run.
    """
    name = module.rpartition(".")[2]
    options = _options(module, told, engine)
    verdict, count = Verdict.UNDECIDED, 0
    try:
        make = load_engine(options.engine)
        verdict, count = check(make, chosen=options.seed, seconds=options.seconds)
    except InvalidInput as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(f"not checked: {not_checked}")
    print(f"{name} {options.engine}: {verdict.value} (sampled), {count} histories")
    return verdict.exit_status


def _options(module: str, told: str | None, engine: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=told,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("engine", help=f"MODULE:FACTORY, {engine}")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="time limit (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the draws (default %(default)s)"
    )
    return parser.parse_args()
