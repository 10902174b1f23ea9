"""The contract of every command: verdicts, exit status, JSON result, common options, interrupts.

A command is a module that implements `Command`. `execute` parses its options, runs it, prints a
summary, writes `--json FILE`, and maps the outcome to the exit status:

- 0 holds, 1 fails, 3 not decided;
- 2 for bad usage, bad input or a missing extra, with one line on stderr and no result file; the
  traceback of an adapter that went wrong comes before that line;
- Ctrl-C and an internal error leave the verdict undecided (3); what is known is still reported;
- a failure that was already recorded takes precedence over all of these: 1.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Never, Protocol

from attrs import Factory, define

import spec
from conformance.cli import result_json
from conformance.cli.options import check_distinct, integer, output_file, written
from conformance.cli.output import Output, complain
from conformance.cli.progress import Update, progress
from conformance.files import atomic
from conformance.files.geometries import geometry_to_data
from conformance.runtime import interrupts
from conformance.runtime.optional_dependencies import extra_of
from conformance.runtime.supervisor import Tell
from conformance.verdict import BAD_INPUT, UNDECIDED, Scope, Verdict
from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import Geometry


@define(kw_only=True)
class Report:
    """The findings of a command so far, kept current so that Ctrl-C loses nothing.

    command: its name. seed: the value of `--seed`. geometry: of the engine under test, None without
    an engine. quiet: print only the verdict, its reasons and errors. listing: print each entry of
    not_checked, and not their number alone. scope: set by the command. not_checked: what a reader
    might assume to be checked and is not. failures: one text each. counts: the command's own keys
    of the JSON result. interrupted and error are set by `execute`. abort: writes the result and
    ends the process at once, for a failure that leaves the main thread stuck. changed: called after
    every change, so that the news survives the process.
    """

    command: str
    seed: int
    geometry: Geometry | None = None
    quiet: bool = False
    listing: bool = False
    scope: Scope = Scope.SAMPLED
    not_checked: list[str] = Factory(list)
    failures: list[str] = Factory(list)
    counts: dict[str, object] = Factory(dict)
    interrupted: bool = False
    error: str | None = None
    abort: Callable[[], None] = lambda: None
    changed: Callable[[], None] = lambda: None
    output: Output = Factory(Output)

    def count(self, **values: object) -> None:
        """Set the command's own keys of the JSON result: plain data, replaced when set again.

        Raises ValueError for a key that belongs to every result.
        """
        taken = sorted(set(values) & set(result_json.KEYS))
        if taken:
            raise ValueError(f"{taken} are keys of every result; a command counts under its own")
        self.counts.update(values)
        self.changed()

    def fail(self, what: str) -> None:
        """Record a failure: the verdict is now `fails`, whatever happens later."""
        self.failures.append(what)
        self.changed()

    def skip(self, what: str, *, why: str) -> None:
        """Record something that is not checked, with the reason or the remedy. Each entry once."""
        line = f"{what}: {why}"
        if line not in self.not_checked:
            self.not_checked.append(line)
            self.changed()

    def say(self, text: str) -> None:
        """Print to stdout, unless quiet. Not inside a `progress` block."""
        if not self.quiet:
            self.output.say(text)

    def progress(self, label: str, *, total: float | None) -> AbstractContextManager[Update]:
        """A context manager that shows progress on stderr and yields `update(done, note)`."""
        return progress(label, total=total, quiet=self.quiet)


class Command(Protocol):
    """A module that is one command. Importing it imports neither JAX nor numpy.

    NAME: the word on the command line. HELP: one line. EXAMPLES: whole command lines.
    """

    NAME: str
    HELP: str
    EXAMPLES: Sequence[str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own options; `add_geometry` and `add_engine` where they apply."""
        ...

    def run(self, arguments: argparse.Namespace, report: Report) -> Verdict:
        """Do the work, keeping `report` current. Raises InvalidInput for bad input."""
        ...


def execute(command: Command, argv: Sequence[str], tell: Tell = lambda _: None) -> int:
    """Run one command on its own arguments and return the exit status, whatever it raises.

    tell: receives the current findings, see `supervisor`.
    """
    try:
        arguments = _parser(command).parse_args(argv)
        check_distinct(vars(arguments).values())
    except SystemExit:  # --help has been printed
        return _printed(command.NAME, Output())
    except _Usage as error:
        text = f"{error} (kvspec {command.NAME} --help has examples)"
        return _bad_usage(command.NAME, text)
    except InvalidInput as error:
        return _bad_usage(command.NAME, str(error))
    report = Report(
        command=command.NAME,
        seed=arguments.seed,
        geometry=getattr(arguments, "geometry", None),
        quiet=arguments.quiet,
        listing=arguments.not_checked,
    )
    target = None if arguments.json is None else arguments.json.path
    outputs = [str(path) for path in written(vars(arguments).values())]
    started = time.monotonic()

    def finish(verdict: Verdict) -> int:
        with interrupts.ignored():
            status = _finish(report, verdict, seconds=time.monotonic() - started, target=target)
            tell({"status": status})
            return status

    def abort() -> None:
        os._exit(finish(Verdict.FAILS))

    def changed() -> None:
        known = as_json(report, Verdict.UNDECIDED, time.monotonic() - started)
        place = None if target is None else str(target)
        news = {
            "known": known,
            "json": place,
            "quiet": report.quiet,
            "listing": report.listing,
            "outputs": outputs,
        }
        tell({"result": result_json.plain(news)})

    report.abort, report.changed = abort, changed
    changed()
    return _run(command, arguments, report, finish)


def _run(
    command: Command,
    arguments: argparse.Namespace,
    report: Report,
    finish: Callable[[Verdict], int],
) -> int:
    verdict = Verdict.UNDECIDED
    try:
        verdict = command.run(arguments, report)
    except KeyboardInterrupt:
        report.interrupted = True
    except (Exception, SystemExit) as error:  # an engine that exits has decided nothing
        if interrupts.took_the_place_of_one(error):
            report.interrupted = True
            return finish(Verdict.FAILS if report.failures else Verdict.UNDECIDED)
        bad_input = _bad_input(error)
        if bad_input is not None:
            _print_notes(error)
        if bad_input is not None and not report.failures:
            return _bad_usage(command.NAME, bad_input)
        report.error = bad_input or f"{type(error).__name__}: {error}"
        if bad_input is None:
            with suppress(OSError):
                traceback.print_exc()
    return finish(Verdict.FAILS if report.failures else verdict)


def conclude(
    known: Mapping[str, Any] | None, *, process: int, error: str | None, interrupted: bool
) -> int:
    """Write the result of a process that ended early; returns the exit status.

    known: the last findings that `execute` sent, None if it had not begun. error: how the process
    ended.
    """
    if known is None:
        complain("", "interrupted" if interrupted else str(error))
        return UNDECIDED
    for path in known["outputs"]:
        atomic.clear(Path(path), process=process)
    values = dict(known["known"])
    sizes = values["geometry"]
    report = Report(
        command=values["command"],
        seed=values["seed"],
        geometry=None if sizes is None else Geometry(**sizes),
        quiet=known["quiet"],
        listing=known["listing"],
        scope=Scope(values["scope"]),
        not_checked=values["not_checked"],
        failures=values["failures"],
        counts={key: value for key, value in values.items() if key not in result_json.KEYS},
        interrupted=interrupted,
        error=error,
    )
    verdict = Verdict.FAILS if report.failures else Verdict.UNDECIDED
    target = None if known["json"] is None else Path(known["json"])
    return _finish(report, verdict, seconds=values["seconds"], target=target)


def _printed(command: str, output: Output) -> int:
    """The exit status after printing; 2 if standard output could not be written."""
    output.flush()
    if output.lost is not None:
        return _bad_usage(command, f"standard output cannot be written: {output.lost}")
    return 0


def _bad_usage(command: str, message: str) -> int:
    complain(command, message)
    return BAD_INPUT


def _print_notes(error: BaseException) -> None:
    """Print what was noted on an error, such as the traceback of an adapter."""
    for note in getattr(error, "__notes__", ()):
        with suppress(OSError):
            print(note, file=sys.stderr, flush=True)


def _bad_input(error: BaseException) -> str | None:
    """The message for an error that the user can correct; None for an internal error."""
    if isinstance(error, InvalidInput):
        return str(error)
    extra = extra_of(error)
    return extra and f"this needs kvspec[{extra}]: {error}. Run pip install 'kvspec[{extra}]'."


def _finish(report: Report, verdict: Verdict, *, seconds: float, target: Path | None) -> int:
    """Write the result, then print the summary: a closed pipe loses only the summary.

    An unwritable result or output is bad usage, unless the command failed or was stopped.
    """
    status, output = verdict.exit_status, report.output
    unwritten = None if target is None else _write(target, as_json(report, verdict, seconds))
    if unwritten is not None:
        complain(report.command, f"--json {target}: cannot be written: {unwritten}")
    for failure in report.failures:
        output.say(f"FAILS: {failure}")
    if report.error is not None:
        complain(report.command, f"stopped by {report.error}")
    for key, value in report.counts.items():
        if isinstance(value, (bool, int, float, str)):
            report.say(f"  {key}: {value}")
    say = output.say if verdict is Verdict.UNDECIDED else report.say
    for line in _not_checked(report, verdict):
        say(f"  not checked: {line}")
    tail = ", interrupted" if report.interrupted else ""
    last = f"{verdict.value} ({report.scope.value}) in {seconds:.1f} s, seed {report.seed}{tail}"
    output.say(f"kvspec {report.command}: {last}")
    output.flush()
    if output.lost is not None:
        whole = "; ".join((*report.failures, last))
        complain(report.command, f"standard output cannot be written: {output.lost}; {whole}")
    stopped = report.failures or report.interrupted or report.error
    if (unwritten or output.lost) and not stopped:
        return BAD_INPUT
    return status


def _not_checked(report: Report, verdict: Verdict) -> Sequence[str]:
    """The entries that are printed: all of an undecided verdict, since they may be the reason."""
    entries = report.not_checked
    if report.listing or verdict is Verdict.UNDECIDED or len(entries) < 2:
        return entries
    return (f"{len(entries)} parts; --not-checked lists them, and --json FILE has them",)


def _write(target: Path, value: dict[str, object]) -> str | None:
    """Write a result; returns the reason if it cannot be written."""
    try:
        atomic.write(target, result_json.to_text(value))
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def as_json(report: Report, verdict: Verdict, seconds: float) -> dict[str, object]:
    """The JSON result. files/schemas/result.schema.json describes the common keys."""
    return {
        "command": report.command,
        "verdict": verdict,
        "scope": report.scope,
        "seed": report.seed,
        "seconds": round(seconds, 3),
        "geometry": None if report.geometry is None else geometry_to_data(report.geometry),
        "spec_version": spec.SPEC_VERSION,
        "not_checked": report.not_checked,
        "failures": report.failures,
        "interrupted": report.interrupted,
        "error": report.error,
        **report.counts,
    }


class _Usage(Exception):
    """The command line is wrong; the text says how."""


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises an exception for bad usage: one line, not two."""

    def error(self, message: str) -> Never:
        raise _Usage(message)


def _parser(command: Command) -> argparse.ArgumentParser:
    examples = "\n".join(f"  {example}" for example in command.EXAMPLES)
    parser = _Parser(
        prog=f"kvspec {command.NAME}",
        description=command.HELP,
        epilog=f"examples:\n{examples}\n\nexit status: 0 holds, 1 fails, 2 bad usage or bad input, "
        "3 not decided",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    common = parser.add_argument_group("common options")
    common.add_argument(
        "--json", type=output_file, metavar="FILE", help="write the result as one JSON object"
    )
    common.add_argument(
        "--seed", type=integer(least=0), default=0, help="seed of every draw (default 0)"
    )
    common.add_argument(
        "--quiet", action="store_true", help="print only verdict, failures, and why undecided"
    )
    common.add_argument(
        "--not-checked",
        action="store_true",
        help="list what is not checked, and not only how many parts (an undecided run lists it)",
    )
    return parser
