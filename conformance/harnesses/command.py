"""The command line of a harness: options, process, verdict."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conformance.engines.registry import load_engine
from conformance.runtime.supervisor import supervised
from conformance.verdict import BAD_INPUT, UNDECIDED, Verdict
from spec.vocabulary.errors import InvalidInput

Check = Callable[..., tuple[Verdict, int]]
"""A check of a factory, with `chosen`, the seed, and `seconds`: verdict and number of histories.

Where kinds of events may be left out, also with `without`, their names.
"""


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


def run(
    check: Check,
    *,
    module: str,
    told: str | None,
    engine: str,
    not_checked: str,
    kinds: Sequence[str] = (),
) -> int:
    """Do what the command line says; return the exit status of the verdict.

    module: of the check; its last name is the name of the check. told: its description in `--help`.
    engine: describes the engine argument. not_checked: printed after each run. kinds: of events
    that may be left out.
    """
    name = module.rpartition(".")[2]
    options = _options(module, told, engine, kinds)
    verdict, count = Verdict.UNDECIDED, 0
    chosen = {"without": frozenset(options.without)} if kinds else {}
    try:
        make = load_engine(options.engine)
        verdict, count = check(make, chosen=options.seed, seconds=options.seconds, **chosen)
    except InvalidInput as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    left_out = "".join(f", {kind}" for kind in sorted(chosen.get("without", ())))
    print(f"not checked: {not_checked}{left_out}")
    print(f"{name} {options.engine}: {verdict.value} (sampled), {count} histories")
    return verdict.exit_status


def _options(
    module: str, told: str | None, engine: str, kinds: Sequence[str]
) -> argparse.Namespace:
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
    if kinds:
        parser.add_argument(
            "--without",
            action="append",
            default=[],
            choices=kinds,
            help="leave out a kind of event, which leads to a known finding; may be repeated",
        )
    return parser.parse_args()
