"""The jobs of `kvspec kernel` in this process.

A program that passed a job is kept in the folder of compiled code: it passes that job again, in
another process too, as long as the code of the bench is the same. So a process that follows one
which a mutant ended need not run every job anew.
"""

import hashlib
import time
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import jax
from attrs import define, evolve, field

from conformance.files.results import Results
from conformance.kernels import interpret
from conformance.kernels.batches import SIZES
from conformance.kernels.block_sizes import variants
from conformance.kernels.jobs import plan
from conformance.kernels.kernel_under_test import find, find_appending
from conformance.kernels.trials import Job, Trial, run
from conformance.lockstep.watchdog import Watchdog
from conformance.runtime import compiled_code
from conformance.runtime.sources import code_of, imported

JOB_SECONDS: Final = 240.0
LEAST_SECONDS: Final = 60.0
TIMES: Final = 10.0
"""A job hangs if it takes so many times as long as it took before, but not less than LEAST_SECONDS
and not more than JOB_SECONDS.
"""
CASES: Final = 4
"""The batches of each job."""
RAISED: Final = "raised"
"""The end of a job whose kernel raises, or answers otherwise each time: then it is not checked."""
FINDING: Final = "finding"
"""The end of a job that finds the kernel wrong."""
_FOUND: Final = Counter[Job]()
"""How many mutants each job has found: those that find most are tried first."""


def judge_reference(watchdog: Watchdog) -> str | None:
    """The jobs of the reference attention."""
    return _judge("reference", watchdog)


def judge_tpu(watchdog: Watchdog) -> str | None:
    """The jobs of the kernel for TPUs."""
    return _judge("tpu", watchdog)


def _judge(name: str, watchdog: Watchdog) -> str | None:
    """The first finding. What raises in the first job is not tried in others."""
    first, *others = sorted(plan(find(name), cases=CASES, seed=0).jobs, key=_order)
    raised = False
    for job in (first, *sorted(others, key=lambda one: -_FOUND[one])):
        ended = _ended(job, watchdog)
        if ended == RAISED and job == first:
            return RAISED
        if ended == FINDING:
            _FOUND[job] += 1
            return ended
        raised |= ended == RAISED
    return RAISED if raised else None


def _ended(job: Job, watchdog: Watchdog) -> str | None:
    """How a job ends; None if it passes."""
    subject = find_appending(job.kernel) if job.append else find(job.kernel)
    assert subject is not None  # a job that appends is only planned for a kernel that does
    own, _ = variants(job.kernel, job.shape)[job.variant]
    with TemporaryDirectory() as folder:
        to = evolve(job, shrink=False, results=str(Path(folder) / "lines"))
        trial = Trial(to, interpret.unoptimised(subject), own)
        watchdog.begin((), _seconds_of(job, _kept()))
        try:
            programs, began = _programs(trial), time.monotonic()
            if programs is None or _key(job, programs) not in _kept().passed:
                run(trial)
        finally:
            watchdog.end()
    if trial.found is not None:
        return FINDING if trial.found["ended"] == FINDING else RAISED
    if programs is not None:
        _kept().keep(job, _key(job, programs), time.monotonic() - began)
    return None


@define
class _Kept:
    """What passed: keys of jobs and programs. seconds: the longest that each job took.

    results: the file in which it is kept; None if there is no folder for it. stamp: of the bench.
    """

    results: Results | None
    stamp: str
    passed: set[str] = field(factory=set)
    seconds: dict[str, float] = field(factory=dict)

    def keep(self, job: Job, key: str, seconds: float) -> None:
        """Keep that a job passed, unless it is known."""
        if key in self.passed:
            return
        self._take(key, _name(job), seconds)
        if self.results is not None:
            self.results.add(self.stamp, {"job": _name(job), "key": key, "seconds": seconds})

    def load(self) -> None:
        """Take what earlier processes have kept with the same bench."""
        for row in () if self.results is None else self.results.read():
            if row["stamp"] == self.stamp:
                self._take(str(row["key"]), str(row["job"]), float(str(row["seconds"])))

    def _take(self, key: str, name: str, seconds: float) -> None:
        self.passed.add(key)
        self.seconds[name] = max(seconds, self.seconds.get(name, 0.0))


@cache
def _kept() -> _Kept:
    """What passed with the code of the bench as it is, and with this jax."""
    folder = compiled_code.place().path
    file = None if folder is None else folder / "kernel-jobs.jsonl"
    results = None if file is None else Results(file, key="job", command="mutants")
    kept = _Kept(results, f"{code_of(imported(__name__))} {jax.__version__}")
    kept.load()
    return kept


def _seconds_of(job: Job, kept: _Kept) -> float:
    """How long a job may take before it counts as hanging."""
    took = kept.seconds.get(_name(job))
    return JOB_SECONDS if took is None else min(JOB_SECONDS, max(LEAST_SECONDS, TIMES * took))


def _name(job: Job) -> str:
    return str(evolve(job, shrink=False, results=""))


def _key(job: Job, programs: tuple[str, ...]) -> str:
    return hashlib.sha256(" ".join((_name(job), *programs)).encode()).hexdigest()


def _order(job: Job) -> tuple[int, bool, int]:
    """The place of a job: every kind comes early, those of one shape and then those of the next."""
    return SIZES.index(job.shape), job.twin is not None, job.variant


def _programs(trial: Trial) -> tuple[str, ...] | None:
    """What a trial runs; None if it cannot be traced, and has to be run to see why."""
    try:
        return trial.programs()
    except Exception:
        return None
