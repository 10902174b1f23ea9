"""Mutants that tests must kill: those of the specification and of the kit itself.

The tests are collected once. Then the process is forked for each mutant, and the fork runs them
until one fails.
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
from conformance.mutation.fates import HANGS
from conformance.runtime.processes import HOME
from spec.vocabulary import InvalidInput

SLOW: Final = 0.3
"""Tests that take more seconds than this run after the others."""
PATIENCE: Final = 4.0
"""The tests may take this many times as long as without a mutant, before they count as hanging."""
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
    """How a fork ended. failed: the first test that failed; None if all passed.

    seconds: of each test that ran, by its name. called: the mutants that were met.
    """

    failed: str | None
    seconds: dict[str, float]
    called: tuple[int, ...]


@define
class _Loop:
    """The pytest plugin that runs the tests once without a mutant, then for each mutant."""

    numbers: Sequence[int]
    keep: Keep
    failed: str | None = None
    seconds: dict[str, float] = field(factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how long a test takes, and the first that fails."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge every mutant."""
        began = time.monotonic()
        clean = self._forked(session, None, seconds=CLEAN_SECONDS)
        limit = max(FEWEST_SECONDS, PATIENCE * (time.monotonic() - began))
        if clean is None:
            raise RuntimeError(
                f"without a mutant the tests do not end in {CLEAN_SECONDS:g} seconds: a fork hangs "
                "if importing them has computed something"
            )
        if clean.failed is not None:
            raise RuntimeError(f"without a mutant {clean.failed} fails")
        session.items.sort(key=lambda item: clean.seconds.get(item.nodeid, 0.0) > SLOW)
        for number in self.numbers:
            if number not in clean.called:
                self.keep(number, None, run=False)
                continue
            ended = self._forked(session, number, seconds=limit)
            self.keep(number, HANGS if ended is None else ended.failed)
        return True

    def _forked(
        self, session: pytest.Session, number: int | None, *, seconds: float
    ) -> Ended | None:
        """Run the tests in a fork; None if it did not end in time, or ended without a word."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._run(session, number, writing)
        os.close(writing)
        try:
            return _answer(reading, seconds)
        finally:
            os.close(reading)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _run(self, session: pytest.Session, number: int | None, writing: int) -> None:
        """Run the tests in this fork until one fails, write how it ended, and end."""
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        _forget_results()
        schemata.CHOICE.called.clear()
        items = session.items
        try:
            with schemata.choosing(number):
                for item, after in zip(items, [*items[1:], None], strict=True):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                    if self.failed is not None:
                        break
        except BaseException as error:  # whatever ends the tests has noticed the mutant
            self.failed = self.failed or type(error).__name__
        called = sorted(schemata.CHOICE.called)
        text = json.dumps({"failed": self.failed, "seconds": self.seconds, "called": called})
        with os.fdopen(writing, "w") as file:
            file.write(text)
        os._exit(0)


def judge(tests: Sequence[str], numbers: Sequence[int], keep: Keep) -> None:
    """Run the tests of these folders for each mutant.

    Raises InvalidInput if they are not here, RuntimeError if one fails without a mutant.
    """
    paths = [HOME / path for path in tests]
    if not all(path.exists() for path in paths):
        raise InvalidInput(
            "tests",
            seen=[str(path) for path in paths],
            allowed="the tests of the repository",
            remedy="Run it from a checkout.",
        )
    imported = "ignore::pytest.PytestAssertRewriteWarning"  # plugins are imported by now
    options = ["-q", "-p", "no:cacheprovider", "-W", imported]
    status = pytest.main([*options, *map(str, paths)], plugins=[_Loop(numbers, keep)])
    if status:
        raise RuntimeError(f"the tests of {', '.join(tests)} ended with {status} without a mutant")


def _answer(reading: int, seconds: float) -> Ended | None:
    """What a fork writes; None if it takes too long, or ends without a word."""
    until = time.monotonic() + seconds
    text = b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(reading, 1 << 16)
        if not part:
            break
        text += part
    if not text:
        return None
    held = json.loads(text)
    return Ended(held["failed"], held["seconds"], tuple(held["called"]))


def _forget_results() -> None:
    """Drop what functions of ours remember: it was computed without the mutant."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in {"spec", "conformance"}:
            for held in list(vars(module).values()):
                clear: Any = getattr(held, "cache_clear", None)
                if callable(clear):
                    clear()
