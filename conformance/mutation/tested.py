"""Mutants that tests must kill: those of the specification and of the kit itself.

The tests are collected once, and run once without a mutant, to see which of them call which. Then
the process is forked for each mutant, and the fork runs the tests that call it until one fails.
Tests of compiled code share what one of them has compiled, so there all tests of a file are run if
one calls it.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import pytest
from attrs import define, field, frozen

from conformance.mutation import schemata
from conformance.mutation.fates import ENDS, HANGS, OUTSIDE
from conformance.runtime.processes import HOME
from conformance.seeded_bugs import forget_compiled
from spec.vocabulary import InvalidInput

PATIENCE: Final = 4.0
"""Tests may take this many times as long as without a mutant, before they count as hanging."""
FEWEST_SECONDS: Final = 60.0
CLEAN_SECONDS: Final = 3600.0
"""How long the tests may take without a mutant."""


class Keep(Protocol):
    """Takes the number of a mutant, the test that kills it, and whether any test runs it."""

    def __call__(self, number: int, killed: str | None, *, run: bool = True) -> None:
        """Keep the fate of the mutant."""
        ...


@frozen
class Ended:
    """How a fork ended. failed: the first test that failed; None if all passed. why: it failed.

    seconds: of each test that ran, by its name. met: the mutants that each has called. set_up:
    those that the fixtures of each file have called.
    """

    failed: str | None
    why: str
    seconds: dict[str, float]
    met: dict[str, list[int]]
    set_up: dict[str, list[int]]

    def calling(
        self, number: int, items: Sequence[pytest.Item], *, by_file: bool
    ) -> list[pytest.Item]:
        """The tests that have called a mutant, the fastest first. by_file: see `judge`."""
        files = {file for file, met in self.set_up.items() if number in met}
        if by_file:
            files |= {_file(name) for name, met in self.met.items() if number in met}
        found = [
            item for item in items if number in self.met[item.nodeid] or _file(item.nodeid) in files
        ]
        return sorted(found, key=lambda item: self.seconds[item.nodeid])


@define
class _Loop:
    """The pytest plugin that runs the tests once without a mutant, then for each mutant.

    by_file: see `judge`. set_up: the mutants that the fixtures of a file have called.
    """

    numbers: Sequence[int]
    keep: Keep
    by_file: bool
    failed: str | None = None
    why: str = ""
    seconds: dict[str, float] = field(factory=dict)
    set_up: dict[str, set[int]] = field(factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how long a test takes, the first that fails, and what the fixtures have called."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "setup":
            self.set_up.setdefault(_file(report.nodeid), set()).update(schemata.CHOICE.called)
        if report.failed and self.failed is None:
            self.failed, self.why = report.nodeid, report.longreprtext + report.capstderr

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge every mutant."""
        clean = self._forked(session.items, None, seconds=CLEAN_SECONDS)
        if clean is None:
            raise RuntimeError(
                f"without a mutant the tests do not end in {CLEAN_SECONDS:g} seconds: a fork hangs "
                "if importing them has computed something"
            )
        if clean.failed is not None:
            raise RuntimeError(f"without a mutant {clean.failed} fails: {clean.why}")
        for number in self.numbers:
            calling = clean.calling(number, session.items, by_file=self.by_file)
            if not calling:
                self.keep(number, None, run=False)
                continue
            whole = sum(clean.seconds[item.nodeid] for item in calling)
            ended = self._forked(calling, number, seconds=max(FEWEST_SECONDS, PATIENCE * whole))
            self.keep(number, HANGS if ended is None else ended.failed)
        return True

    def _forked(
        self, items: Sequence[pytest.Item], number: int | None, *, seconds: float
    ) -> Ended | None:
        """Run these tests in a fork; None if it did not end in time.

        Raises RuntimeError if something else has killed it: then nothing is known of the mutant.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._run(items, number, writing)
        os.close(writing)
        text: bytes | None = None
        try:
            text = _answer(reading, seconds)
        finally:
            os.close(reading)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        if text:
            return Ended(*json.loads(text))
        return None if text is None else _crashed(os.waitstatus_to_exitcode(status))

    def _run(self, items: Sequence[pytest.Item], number: int | None, writing: int) -> None:
        """Run these tests in this fork until one fails, write how it ended, and end."""
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        _forget_results()
        calls = dict[str, set[int]]()
        try:
            with schemata.choosing(number):
                for item, after in zip(items, [*items[1:], None], strict=True):
                    schemata.CHOICE.called.clear()
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                    calls[item.nodeid] = schemata.CHOICE.called.copy()
                    if self.failed is not None:
                        break
                    if number is None:  # what the next one needs, it calls itself
                        _forget_results()
                        if self.by_file and after and _file(after.nodeid) != _file(item.nodeid):
                            forget_compiled()
        except BaseException as error:  # whatever ends the tests has noticed the mutant
            self.failed = self.failed or type(error).__name__
        met = {name: sorted(numbers) for name, numbers in calls.items()}
        set_up = {name: sorted(numbers) for name, numbers in self.set_up.items()}
        text = json.dumps([self.failed, self.why, self.seconds, met, set_up])
        with os.fdopen(writing, "w") as file:
            file.write(text)
        os._exit(0)


def _file(test: str) -> str:
    """The file of a test, whose tests may share what a fixture has made."""
    return test.partition("::")[0]


def judge(
    tests: Sequence[str], numbers: Sequence[int], keep: Keep, *, by_file: bool = False
) -> None:
    """Run the tests of these files and folders for each mutant, as far as they call it.

    by_file: all tests of a file if one of them calls it. Raises InvalidInput if they are not here,
    RuntimeError if one fails without a mutant.
    """
    paths = [HOME / path for path in tests]
    if not all(path.exists() for path in paths):
        raise InvalidInput(
            "tests",
            seen=[str(path) for path in paths],
            allowed="the tests of the repository",
            remedy="Run it from a checkout.",
        )
    sys.path.append(str(HOME))  # else spawned processes import tests/spec as the package `spec`
    imported = "ignore::pytest.PytestAssertRewriteWarning"  # plugins are imported by now
    options = ["-q", "-p", "no:cacheprovider", "-W", imported]
    status = pytest.main([*options, *map(str, paths)], plugins=[_Loop(numbers, keep, by_file)])
    if status:
        raise RuntimeError(f"the tests of {', '.join(tests)} ended with {status} without a mutant")


def _crashed(status: int) -> Ended:
    """How a fork ended that said nothing."""
    if status >= 0 or status in OUTSIDE:
        raise RuntimeError(f"a fork ended with {status}: who has done that is not known")
    return Ended(f"{ENDS}{-status}", "", {}, {}, {})


def _answer(reading: int, seconds: float) -> bytes | None:
    """What a fork writes, nothing if it crashes; None if it takes too long."""
    until = time.monotonic() + seconds
    text = b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(reading, 1 << 16)
        if not part:
            return text
        text += part


def _forget_results() -> None:
    """Drop what functions of ours remember: it was computed without the mutant."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in {"spec", "conformance"}:
            for held in list(vars(module).values()):
                clear: Any = getattr(held, "cache_clear", None)
                if callable(clear):
                    clear()
