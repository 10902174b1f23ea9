"""The process that tries one plant: the bug is planted once and compiled once for all seeds.

It is a process of its own because a planted bug may hang it or end it. The tries made so far are in
the file of attempts, and the next process goes on from there.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from attrs import evolve, frozen

from conformance.engines import ours
from conformance.files import histories
from conformance.fuzzing import counterexamples
from conformance.fuzzing.settings import Setting
from conformance.fuzzing.warmup import warmup
from conformance.history import History
from conformance.lockstep.run import Finding, replay
from conformance.lockstep.watchdog import Watchdog
from conformance.seeded_bugs import find, planted
from conformance.seeded_bugs.scoring import hangs
from conformance.seeded_bugs.scoring.attempts import CLEAN, Attempt, Attempts, Budget, Key
from conformance.seeded_bugs.scoring.methods import GEOMETRY, METHODS, Method, recorded
from spec.vocabulary import CleanupMode, default_limits


@frozen(kw_only=True)
class Job:
    """The job of one process. plant: an id, or CLEAN. steps: the whole budget."""

    plant: str
    methods: tuple[str, ...]
    seeds: int
    steps: int
    results: str
    stamp: str


def pending(
    name: str, methods: Mapping[str, Method], *, seeds: int, attempts: Attempts
) -> list[Key]:
    """The tries of a plant (or of CLEAN) that are not in the file yet, in their order."""
    plant = None if name == CLEAN else find(name)
    return [
        (name, key, seed)
        for key, method in methods.items()
        if method.run is not None and (plant is None or method.applies(key, plant))
        for seed in range(method.tries(seeds))
        if (name, key, seed) not in attempts.made
    ]


def work(job: Job, methods: Mapping[str, Method], attempts: Attempts) -> None:
    """Make every pending try of one plant, one after another."""
    plant = None if job.plant == CLEAN else job.plant
    todo = pending(job.plant, methods, seeds=job.seeds, attempts=attempts)
    trying: list[Key] = []

    def on_hang(history: History, _message: str) -> None:
        _keep_hang(attempts, trying[-1], todo, history, watchdog.waited)
        os._exit(0)

    with planted(plant) if plant else nullcontext(), Watchdog(on_hang) as watchdog:
        for key in todo:
            trying.append(key)
            run = methods[key[1]].run
            assert run is not None
            budget = Budget(
                steps=max(1, round(job.steps * methods[key[1]].share)),
                shrink=plant is not None and not _caught(attempts, key),
                watchdog=watchdog,
            )
            attempts.add(key, run(plant, key[2], budget))
    _show_changes(job.plant, attempts)


def _caught(attempts: Attempts, key: Key) -> bool:
    """Whether this method has caught this plant before: one counterexample is enough."""
    return any(tried[:2] == key[:2] and attempt.caught for tried, attempt in attempts.made.items())


def _show_changes(name: str, attempts: Attempts) -> None:
    """Replay the counterexamples with no bug planted: there must be no finding."""
    for key, attempt in list(attempts.made.items()):
        if key[0] == name and attempt.example and attempt.changed is None:
            with_bug = histories.loads(attempt.example.encode(), attempts.path)
            clean = replay(counterexamples.maker(with_bug), with_bug.history)
            attempts.add(key, evolve(attempt, changed=clean is None))


def _keep_hang(
    attempts: Attempts, key: Key, todo: list[Key], history: History, seconds: float
) -> None:
    """Record a hang, which is a catch; one in the warm-up for every seed, since all share it."""
    small = hangs.shrunk(
        recorded(
            Finding(history, "PROG", "a step does not return from compiled code"),
            Setting(GEOMETRY, CleanupMode.INCREMENTAL, default_limits(GEOMETRY)),
            plant=None if key[0] == CLEAN else key[0],
        )
    )
    attempt = Attempt(
        caught=True,
        steps=len(history),
        seconds=seconds,
        clause="PROG",
        shrunk=None if small is None else len(small.history),
        example=None if small is None else histories.dump(small),
    )
    attempts.add(key, attempt)
    if history == warmup(ours.ACTIONS)[: len(history)]:
        for same in todo:
            if same[:2] == key[:2] and same not in attempts.made:
                attempts.add(same, evolve(attempt, shrunk=None, example=None))


def main(text: str) -> None:
    """Do a job that is given as JSON."""
    given = json.loads(text)
    job = Job(**given | {"methods": tuple(given["methods"])})
    chosen = {name: METHODS[name] for name in job.methods}
    work(job, chosen, Attempts(Path(job.results), job.stamp))


if __name__ == "__main__":
    main(sys.argv[1])
