"""A finding as files: a history that `kvspec rerun` takes again, and a test that runs by itself."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs

from conformance import histories
from conformance.cli.contract import Report
from conformance.engines.named import factory_of
from conformance.finding import Finding, MakeEngine, replay
from conformance.histories import CORPUS, Recorded
from conformance.picture import before_and_after
from conformance.protocol import Factory
from conformance.steps import History
from conformance.watchdog import Watchdog

PLANT_VARIABLE: Final = "KVSPEC_PLANT"
"""Overrides the planted bug of a counterexample; empty means the pristine engine."""


class CounterexampleFails(AssertionError):
    """The engine still does what the counterexample shows."""


def check(recorded: Recorded) -> None:
    """Take the history; raises CounterexampleFails if it still goes wrong.

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
    """Makes engines as the recording did. Raises InvalidInput if there is no such engine.

    factory: that of the engine, if it is at hand; a process of its own is then not started again.
    """
    if factory is None:
        factory = factory_of(
            recorded.engine, python=recorded.python, in_process=recorded.in_process
        )
    return partial(factory, recorded.geometry, recorded.limits, recorded.cleanup)


@contextmanager
def planted(plant: str | None) -> Iterator[None]:
    """Plant a bug of the catalogue in the reference engine while the block runs."""
    if plant is None:
        yield
        return
    with import_module("conformance.plants").planted(plant):
        yield


def describe(finding: Finding) -> str:
    """The history, numbered, what went wrong, and the pages before and after the fatal step."""
    steps = [f"  {number}. {step}" for number, step in enumerate(finding.history, start=1)]
    text = [f"{finding.clause}: {finding.message}", *steps]
    if finding.violation is not None:
        text.append(before_and_after(finding.violation.before, finding.violation.after))
    return "\n".join(text)


def write(recorded: Recorded, folder: Path = Path(CORPUS)) -> tuple[Path, Path]:
    """Write the history and the test file into the corpus folder: (history, test)."""
    folder.mkdir(parents=True, exist_ok=True)
    text = histories.dump(recorded)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    stem = f"{(recorded.clause or 'history').lower()}_{digest}"
    history, test = folder / f"{stem}.jsonl", folder / f"test_{stem}.py"
    history.write_text(text, encoding="utf-8")
    test.write_text(test_source(recorded), encoding="utf-8")
    return history, test


def report_finding(recorded: Recorded, finding: Finding, folder: Path, report: Report) -> None:
    """Print a shrunk finding, keep it in the corpus folder, and record the failure."""
    history, test = write(recorded, folder)
    report.say(describe(finding))
    report.say(f"  again: kvspec rerun {history}\n  as a test: {test}")
    steps = len(finding.history)
    report.count(counterexample=str(history), test=str(test), shrunk_steps=steps)
    report.fail(f"{finding.clause}: {finding.message} (after {steps} steps)")


def corpus(folder: Path) -> list[tuple[Path, Recorded]]:
    """The histories of a corpus folder, in order of name."""
    return [(path, histories.load(path)) for path in sorted(folder.glob("*.jsonl"))]


def test_source(recorded: Recorded) -> str:
    """A pytest file that fails as long as the engine goes wrong; it runs as a script too."""
    steps = "".join(f"        {_code(step)},\n" for step in recorded.history)
    names = sorted(_names(recorded))
    imports = "".join(f"from {module} import {name}\n" for module, name in names)
    return f'''"""A counterexample to {recorded.clause}, found by kvspec.

Run it with pytest or as a script; with {PLANT_VARIABLE} set and empty, no bug is planted.
"""

from conformance.counterexample import check
from conformance.histories import Recorded
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
    """The engine does not violate {recorded.clause} on this history."""
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
