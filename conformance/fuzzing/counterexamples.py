"""Counterexamples as files: a history that `kvspec rerun` replays, and a self-contained test."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from conformance.engines.registry import is_ours
from conformance.files import atomic, histories
from conformance.files.geometries import geometry_to_text
from conformance.files.histories import CORPUS, Recorded
from conformance.history import History
from conformance.isolation.placement import factory_of
from conformance.lockstep.rendering import before_and_after
from conformance.lockstep.run import Finding, MakeEngine, replay
from conformance.lockstep.watchdog import Watchdog
from conformance.protocol import Factory
from spec.vocabulary import InvalidInput

PLANT_VARIABLE: Final = "KVSPEC_PLANT"
"""Environment variable that overrides the planted bug of a counterexample; empty for no bug."""
UNKEPT: Final = "  the history could not be saved; save these lines as a file for kvspec rerun:\n"


class Printer(Protocol):
    """Prints lines that must be seen even where only the verdict and failures are printed."""

    def say(self, text: str) -> None:
        """Print a line."""
        ...


class Report(Protocol):
    """The report of a command, which records findings and unreadable files of a corpus."""

    @property
    def output(self) -> Printer:
        """The printer of lines that must be seen in any case."""
        ...

    def fail(self, what: str) -> None:
        """Record a failure."""
        ...

    def count(self, **values: object) -> None:
        """Set keys of the JSON result."""
        ...

    def skip(self, what: str, *, why: str) -> None:
        """Record that something is not checked, and why."""
        ...

    def say(self, text: str) -> None:
        """Print a line, unless only the verdict and failures are printed."""
        ...


class CounterexampleFails(AssertionError):
    """The engine still fails on the history of a counterexample."""


def check(recorded: Recorded) -> None:
    """Replay the history. Raises CounterexampleFails if the engine still fails on it.

    A step that hangs in compiled code prints the history and ends the process with status 1.
    """
    plant = os.environ.get(PLANT_VARIABLE, recorded.plant or "") or None

    def on_hang(history: History, message: str) -> None:
        print(describe(Finding(history, "PROG", message)), flush=True)
        os._exit(1)

    with planted(plant), Watchdog(on_hang) as watchdog:
        finding = replay(maker(recorded), recorded.history, watchdog=watchdog)
    if finding is not None:
        raise CounterexampleFails(describe(finding))


def maker(recorded: Recorded, factory: Factory | None = None) -> MakeEngine:
    """A function that makes engines as recorded. Raises InvalidInput if there is no such engine.

    factory: the factory of the engine, if the caller has it: its process is then not started twice.
    """
    if factory is None:
        factory = factory_of(
            recorded.engine, python=recorded.python, in_process=recorded.in_process
        )
    return partial(factory, recorded.geometry, recorded.limits, recorded.cleanup)


def again(recorded: Recorded, history: Path) -> str:
    """The command that replays a history."""
    ours = recorded.python is None and is_ours(recorded.engine)
    return f"kvspec rerun {history}" if ours else f"kvspec rerun --trust {history}"


@contextmanager
def planted(plant: str | None) -> Iterator[None]:
    """Plant a bug of the catalogue in the reference engine while the block runs."""
    if plant is None:
        yield
        return
    from conformance import seeded_bugs

    with seeded_bugs.planted(plant):
        yield


def describe(finding: Finding) -> str:
    """What went wrong, the numbered history, the pages before and after its last step, a trace."""
    steps = [f"  {number}. {step}" for number, step in enumerate(finding.history, start=1)]
    text = [f"{finding.clause}: {finding.message}", *steps]
    if finding.violation is not None:
        text.append(before_and_after(finding.violation.before, finding.violation.after))
    text += [finding.trace] * bool(finding.trace)
    return "\n".join(text)


def write(recorded: Recorded, folder: Path = Path(CORPUS)) -> tuple[Path, Path]:
    """Write the history and the test file into the corpus folder: (history, test).

    Each file is written whole or not at all. Raises OSError.
    """
    text = histories.dump(recorded)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    clause = re.sub(r"\W", "_", recorded.clause or "history", flags=re.ASCII)
    stem = f"{clause.lower()}_{digest}"
    history, test = folder / f"{stem}.jsonl", folder / f"test_{stem}.py"
    atomic.write(history, text)
    atomic.write(test, test_source(recorded))
    return history, test


def report_finding(
    recorded: Recorded, finding: Finding, folder: Path, report: Report, *, sizes: str
) -> None:
    """Record the failure, print the shrunk finding, and save it in the corpus folder.

    sizes: where its geometry comes from, in words.
    """
    steps, geometry = len(finding.history), geometry_to_text(recorded.geometry)
    after = "1 step" if steps == 1 else f"{steps} steps"
    report.fail(f"{finding.clause}: {finding.message} (after {after}, at {geometry}: {sizes})")
    report.count(shrunk_steps=steps)
    report.say(describe(finding))
    keep(recorded, folder, report)


def keep(recorded: Recorded, folder: Path, report: Report) -> None:
    """Save the history of a finding that is recorded, and its test, in the corpus folder.

    If it cannot be saved, its history is printed, which is enough to replay it.
    """
    try:
        history, test = write(recorded, folder)
    except OSError as error:
        why = error.strerror or type(error).__name__
        report.count(counterexample=None, test=None)
        report.skip(f"the rerun from {folder}", why=f"the history could not be saved there: {why}")
        report.output.say(UNKEPT + histories.dump(recorded))
        return
    report.count(counterexample=str(history), test=str(test))
    report.say(f"  again: {again(recorded, history)}\n  as a test: {test}")


def corpus(folder: Path, report: Report) -> Iterator[tuple[Path, Recorded]]:
    """The histories of a corpus folder, by name. Unreadable files are reported as not checked."""
    try:
        there = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        report.skip(str(folder), why=f"it cannot be read: {error.strerror}")
        return
    for path in (path for path in there if path.suffix == ".jsonl"):
        try:
            recorded = histories.load(path)
        except InvalidInput as error:
            report.skip(str(path), why=f"it is skipped: {error}")
            continue
        yield path, recorded


def test_source(recorded: Recorded) -> str:
    """The source of a pytest file that fails as long as the engine does; it is a script too."""
    steps = "".join(f"        {_code(step)},\n" for step in recorded.history)
    names = sorted(_names(recorded))
    imports = "".join(f"from {module} import {name}\n" for module, name in names)
    clause = re.sub(r"\W", "_", str(recorded.clause), flags=re.ASCII)
    return f'''"""A counterexample to {clause}, found by kvspec.

Run it with pytest or as a script; with {PLANT_VARIABLE} set and empty, no bug is planted.
"""

from conformance.fuzzing.counterexamples import check
from conformance.files.histories import Recorded
{imports}
RECORDED = Recorded(
    engine={recorded.engine!r},
    geometry={_code(recorded.geometry)},
    limits={_code(recorded.limits)},
    cleanup={_code(recorded.cleanup)},
    plant={recorded.plant!r},
    history=(
{steps}    ),
    clause={recorded.clause!r},
    message={recorded.message!r},
    python={recorded.python!r},
    in_process={recorded.in_process!r},
)


def test_counterexample() -> None:
    """The engine does not violate {clause} on this history."""
    check(RECORDED)


if __name__ == "__main__":
    test_counterexample()
    print("holds")
'''


def _code(value: Any) -> str:
    """Python source that makes an equal value."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if attrs.has(type(value)):
        fields = [
            f"{field.name}={_code(getattr(value, field.name))}"
            for field in attrs.fields(type(value))
            if field.default is attrs.NOTHING or getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, tuple):
        inner = ", ".join(_code(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _names(recorded: Recorded) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()

    def visit(value: Any) -> None:
        if isinstance(value, Enum) or attrs.has(type(value)):
            found.add((type(value).__module__, type(value).__name__))
        if attrs.has(type(value)):
            children: Iterable[Any] = (
                getattr(value, field.name) for field in attrs.fields(type(value))
            )
        else:
            children = value if isinstance(value, tuple) else ()
        for child in children:
            visit(child)

    for part in (recorded.geometry, recorded.limits, recorded.cleanup, recorded.history):
        visit(part)
    return found
