"""The process that judges mutants of one group by one method.

It is a process of its own because a mutant may hang it or end it. What it has judged is in the file
of results, and the next process goes on from there.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import define, frozen

from conformance.history import History
from conformance.lockstep.watchdog import Watchdog
from conformance.mutation import schemata, tested, transitions
from conformance.mutation.engine_with_mutants import mutated, selected
from conformance.mutation.fates import RAISES, Fate, Fates
from conformance.mutation.judges import fuzz, replay
from conformance.mutation.methods import METHODS, Judge
from conformance.mutation.planting import planted
from conformance.mutation.stamps import stamp
from conformance.mutation.targets import REFINE, TESTS, TRACE, UNIT_TESTS, own_tests, rewritten

TRACE_SECONDS: Final = 20.0


@frozen(kw_only=True)
class Job:
    """The job of one process. numbers: the mutants in the code; those without a fate are judged."""

    group: str
    method: str
    numbers: tuple[int, ...]
    results: str


@define
class Work:
    """A job under way. batch: the mutants that are being judged."""

    job: Job
    fates: Fates
    watchdog: Watchdog
    batch: Sequence[int] = ()

    @property
    def left(self) -> list[int]:
        """The mutants that have no fate yet."""
        return self.fates.left(self.job.group, self.job.method, self.job.numbers)

    def keep(self, number: int, killed: str | None, *, run: bool = True) -> None:
        """Keep the fate of a mutant."""
        self.fates.add((self.job.group, self.job.method, number), Fate(killed, run))


def do(job: Job, fates: Fates) -> None:
    """Judge every mutant of the job that has no fate yet."""
    modules = rewritten(job.group, frozenset(job.numbers))

    def on_hang(_history: History, message: str) -> None:
        if not work.batch:
            print(f"without a mutant: {message}", file=sys.stderr, flush=True)
            os._exit(1)
        fates.hung(job.group, job.method, work.batch)
        os._exit(0)

    with Watchdog(on_hang) as watchdog:
        work = Work(job, fates, watchdog)
        if job.method in {TESTS, UNIT_TESTS}:
            with planted(modules):
                _test(work)
            return
        if job.method == REFINE:
            with planted(modules):
                _refine(work)
            return
        with mutated(modules):
            if job.method == TRACE:
                _trace(work)
            else:
                _run_each(work, METHODS[job.method])


def _trace(work: Work) -> None:
    """A mutant that raises when an entry point is traced is told by any call: it is set aside."""
    fuzz.judge(work.watchdog, seconds=TRACE_SECONDS)
    replay.judge(work.watchdog)
    for number in work.left:
        work.keep(number, schemata.CHOICE.raising.get(number))


def _run_each(work: Work, judge: Judge) -> None:
    found = judge(work.watchdog)
    if found is not None:
        raise RuntimeError(f"without a mutant: {found}")
    met = schemata.CHOICE.traced | schemata.CHOICE.called
    work.fates.suspect((work.job.group, work.job.method, work.left[0]))
    for number in work.left:
        work.batch = [number]
        if number not in met:
            work.keep(number, None, run=False)
            continue
        try:
            with selected(number):
                work.keep(number, judge(work.watchdog))
        except Exception as error:
            work.keep(number, f"{RAISES}{type(error).__name__}")


def _test(work: Work) -> None:
    """Judge the next mutants that have the same tests; those with others need a new process."""
    group, left = work.job.group, work.left
    tests = own_tests(group, left[0])
    same = [number for number in left if own_tests(group, number) == tests]
    tested.judge(tests, same, work.keep, by_file=work.job.method == UNIT_TESTS)


def _refine(work: Work) -> None:
    key = (work.job.group, work.job.method)
    suspected = [number for number in work.left if (*key, number) in work.fates.suspects]

    def begin(batch: Sequence[int]) -> None:
        work.batch = batch

    for width, numbers in ((1, suspected), (transitions.WIDTH, work.left)):
        if numbers:
            batches = transitions.Batches(watchdog=work.watchdog, begin=begin, width=width)
            transitions.judge(numbers, batches, keep=work.keep)
            for number in work.fates.left(*key, numbers):
                work.keep(number, None)


def main(text: str) -> None:
    """Do a job that is given as JSON."""
    given = json.loads(text)
    job = Job(**given | {"numbers": tuple(given["numbers"])})
    do(job, Fates(Path(job.results), stamp))


if __name__ == "__main__":
    main(sys.argv[1])
