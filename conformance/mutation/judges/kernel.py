"""The jobs of `kvspec kernel` in this process."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import evolve

from conformance.kernels import interpret
from conformance.kernels.batches import SIZES
from conformance.kernels.block_sizes import variants
from conformance.kernels.jobs import plan
from conformance.kernels.kernel_under_test import find, find_appending
from conformance.kernels.trials import Job, Trial, run
from conformance.lockstep.watchdog import Watchdog

JOB_SECONDS: Final = 240.0
"""How long a job may take before it counts as hanging. The longest takes a minute on one core, and
several beside other work.
"""
CASES: Final = 4
"""The batches of each job."""
RAISED: Final = "raised"
"""The end of a job whose kernel raises: then it is not checked."""
_PASSED: Final[set[tuple[Job, tuple[str, ...]]]] = set()
"""The jobs that passed, each with the programs that it ran: the same programs pass it again."""
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
        if ended not in {None, RAISED}:
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
        watchdog.begin((), JOB_SECONDS)
        try:
            programs = _programs(trial)
            if programs not in _PASSED:
                run(trial)
        finally:
            watchdog.end()
    if trial.found is not None:
        return str(trial.found["ended"])
    if programs is not None:
        _PASSED.add(programs)
    return None


def _order(job: Job) -> tuple[int, bool, int]:
    """The place of a job: every kind comes early, those of one shape and then those of the next."""
    return SIZES.index(job.shape), job.twin is not None, job.variant


def _programs(trial: Trial) -> tuple[Job, tuple[str, ...]] | None:
    """What a trial runs; None if it cannot be traced, and has to be run to see why."""
    try:
        return evolve(trial.job, results=""), trial.programs()
    except Exception:
        return None
