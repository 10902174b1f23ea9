"""The methods that judge mutants of our engine: what kills one, or None if it survives.

Each runs the engine with whatever mutant is selected. Its budget is that of a user: fuzzing has 60
seconds, and the other methods run to their ends.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import evolve, frozen

from conformance.engines import ours
from conformance.fuzzing import campaign
from conformance.kernels import interpret
from conformance.kernels.block_sizes import variants
from conformance.kernels.jobs import plan
from conformance.kernels.kernel_under_test import find, find_appending
from conformance.kernels.trials import Trial, run
from conformance.lockstep.watchdog import Patience, Watchdog
from conformance.numerics import llama, llama_cells
from conformance.seeded_bugs.scoring.methods import GEOMETRY, made_up
from conformance.traffic import replay as traffic
from conformance.vectors.build import Vector, build
from conformance.vectors.play import play
from conformance.vectors.suites import suites
from impl.models.llama import DTYPES
from spec.vocabulary import CleanupMode, Geometry, default_limits

FUZZ_SECONDS: Final = 60.0
TRAFFIC: Final[Mapping[Geometry, int]] = {
    GEOMETRY: 120,
    Geometry(pages=850, page_size=1, slots=3, pages_per_seq=280): 8,
    Geometry(pages=600, page_size=2, slots=140, pages_per_seq=6): 160,
}
"""The requests at each size. Positions of the second do not fit in 8 bits, and the number of slots
of the third not in 8 bits with a sign.
"""
VECTOR_SECONDS: Final = 60.0
TRAFFIC_SECONDS: Final = 120.0
SERVED_SECONDS: Final = 120.0
TABLES: Final = 10
"""The histories of a table with Llama."""
JOB_SECONDS: Final = 600.0
"""How long a vector, the traffic, the requests or a job may take before it counts as hanging. A job
with two cores takes a minute, and several beside other work.
"""
CASES: Final = 4
"""The batches of each job of a kernel."""

RAISED: Final = "raised"
"""The end of a job whose kernel raises: then it is not checked."""

Judge = Callable[[Watchdog], str | None]
"""Runs the engine as it is; returns what it has found: a clause or an exception; None: nothing."""


@frozen
class Method:
    """One method that runs our engine step by step. what: in words. judge: one run of it."""

    what: str
    judge: Judge


def fuzz(watchdog: Watchdog, *, seconds: float = FUZZ_SECONDS) -> str | None:
    """A run of `kvspec fuzz` with its defaults.

    Its compiled programs are not judged: they hold every mutant.
    """
    options = campaign.Options(
        geometry=GEOMETRY, seconds=seconds, programs=False, patience=Patience(first=120.0)
    )
    report = campaign.Run()
    campaign.run(
        ours.make, options, report=report, update=lambda _done, _note: None, watchdog=watchdog
    )
    return report.finding.clause if report.finding else None


def vectors(watchdog: Watchdog) -> str | None:
    """Every vector that `kvspec vectors` writes."""
    for vector in _every_vector():
        header = vector.header
        watchdog.begin((), VECTOR_SECONDS)
        try:
            engine = ours.make_without_cells(header.geometry, header.limits, header.cleanup)
            found = play(engine, vector)
        finally:
            watchdog.end()
        if found is not None:
            return found.clause
    return None


def replay(watchdog: Watchdog) -> str | None:
    """Synthetic traffic in lockstep, every output compared with decoding its request alone."""
    for geometry, count in TRAFFIC.items():
        engine = ours.make_without_cells(
            geometry, default_limits(geometry), CleanupMode.INCREMENTAL
        )
        requests, tally = made_up(0, count=count, longest=geometry.max_len), traffic.Tally()
        watchdog.begin(tally.history, TRAFFIC_SECONDS)
        try:
            traffic.replay(engine, requests, tally=tally, update=lambda _: None)
        finally:
            watchdog.end()
        if tally.finding or tally.leaked_pages:
            return tally.finding.clause if tally.finding else "CONS"
    return None


def served(watchdog: Watchdog) -> str | None:
    """Requests served by our engine with a small Llama, histories of its table, and long texts in
    every dtype, beside the float64 oracle of it.
    """
    weights = llama.drawn_weights(0)
    steps = (llama_cells.differences(weights, seed=seed) for seed in range(TABLES))
    far = map(llama_cells.far_differences, DTYPES)
    watchdog.begin((), SERVED_SECONDS)
    try:
        return next(chain(llama.differences(weights), *steps, *far), None)
    finally:
        watchdog.end()


def kernel(name: str, watchdog: Watchdog) -> str | None:
    """The jobs of `kvspec kernel` in this process. name: of the kernel."""
    with TemporaryDirectory() as folder:
        for job in plan(find(name), cases=CASES, seed=0).jobs:
            subject = find_appending(name) if job.append else find(name)
            assert subject is not None  # a job that appends is only planned for a kernel that does
            own, _ = variants(name, job.shape)[job.variant]
            to = evolve(job, shrink=False, results=str(Path(folder) / "lines"))
            trial = Trial(to, interpret.unoptimised(subject), own)
            watchdog.begin((), JOB_SECONDS)
            try:
                run(trial)
            finally:
                watchdog.end()
            if trial.found is not None:
                return str(trial.found["ended"])
    return None


METHODS: Final[Mapping[str, Method]] = {
    "fuzz": Method(f"`kvspec fuzz`, {FUZZ_SECONDS:g} seconds", fuzz),
    "vectors": Method("every vector of `kvspec vectors`", vectors),
    "replay": Method(f"synthetic traffic, {sum(TRAFFIC.values())} requests", replay),
    "served": Method("requests and tables with a small Llama, beside a float64 oracle", served),
    "kernel reference": Method(
        f"`kvspec kernel reference --cases {CASES}`", partial(kernel, "reference")
    ),
    "kernel tpu": Method(f"`kvspec kernel tpu --cases {CASES}`", partial(kernel, "tpu")),
}


KERNELS: Final = tuple(name for name in METHODS if name.startswith("kernel"))
"""The methods that judge a kernel by itself."""


@cache
def _every_vector() -> tuple[Vector, ...]:
    return tuple(vector for suite in suites() for vector in build(suite).vectors)
