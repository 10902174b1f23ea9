"""The methods that may catch a bug, each a function of a plant, a seed and a budget.

A method runs the engine as it is: the caller has planted the bug. A further method is one more
entry of METHODS.
"""

import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from attrs import evolve, field, frozen

from conformance.engines import ours
from conformance.engines.registry import OUR_ENGINE
from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.fuzzing import campaign
from conformance.fuzzing.settings import Setting, make
from conformance.fuzzing.shrinking import shrink_at
from conformance.fuzzing.warmup import warmup
from conformance.lockstep.lockstep import Oracle, by_clauses
from conformance.lockstep.run import Finding, replay
from conformance.lockstep.watchdog import Patience
from conformance.protocol import Engine, EngineFailed
from conformance.seeded_bugs import Plant
from conformance.seeded_bugs.catalogue import FAMILIES
from conformance.seeded_bugs.scoring import kernel
from conformance.seeded_bugs.scoring.attempts import Attempt, Budget, Try
from conformance.seeded_bugs.scoring.blind import BLIND, Blind
from conformance.seeded_bugs.scoring.refinement import refine
from conformance.seeded_bugs.scoring.vectors import vectors
from conformance.traffic import replay as traffic
from conformance.traffic import traces
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Params, Request
from spec.vocabulary.integers import VOCABULARY

GEOMETRY: Final = Geometry(pages=16, page_size=4, slots=4, pages_per_seq=4)
SEED_STRIDE: Final = 10_000
"""The distance between the first turns of two seeds; each turn takes the next number."""
SHRINK_SECONDS: Final = 30.0
FIRST_SECONDS: Final = 22.0
"""How long a step of the warm-up may take, compilation of one entry point included."""
INVARIANTS_SHARE: Final = 0.25
STEPS_PER_REQUEST: Final = 3
"""The traffic has one request for this many steps of the budget."""
TRAFFIC_SECONDS: Final = 120.0
"""How long serving the traffic may take before it counts as hanging."""


@frozen(kw_only=True)
class Method:
    """One method. run: None if it is not written yet. share: the part of the budget it may use.

    families: the families of plants that it can see at all; a plant names its own exceptions.
    past: modules that it does not run; it cannot see a plant in these alone. draws: whether a seed
    makes a difference; if not, one try is enough. only: the plants at which a blind oracle is
    tried; a catch by it does not count.
    """

    what: str
    run: Try | None
    share: float = 1.0
    families: frozenset[str] = field(default=frozenset(FAMILIES))
    past: frozenset[str] = frozenset()
    draws: bool = True
    only: frozenset[str] | None = None

    def tries(self, seeds: int) -> int:
        """How many of the given number of seeds are tried."""
        return seeds if self.draws else 1

    def applies(self, name: str, plant: Plant) -> bool:
        """Whether the method of this name is to be tried at this plant."""
        if self.only is not None:
            return plant.id in self.only
        family = next(key for key, plants in FAMILIES.items() if plant in plants)
        reached = any(patch.module not in self.past for patch in plant.patches)
        return family in self.families and reached and name not in plant.blind


def fuzz(plant: str | None, seed: int, budget: Budget) -> Attempt:
    """The campaign of `kvspec fuzz`, counted in steps, and the shrinking of its finding."""
    report = _campaign(seed, budget)
    found = _attempt(report)
    if not found.caught or not budget.shrink:
        return found
    assert report.finding is not None
    assert report.setting is not None
    setting, small = shrink_at(
        ours.make,
        report.setting,
        report.finding,
        seconds=SHRINK_SECONDS,
        watchdog=budget.watchdog,
    )
    text = histories.dump(recorded(small, setting, plant=plant))
    return evolve(found, shrunk=len(small.history), example=text)


def judged(oracle: Oracle, _plant: str | None, seed: int, budget: Budget) -> Attempt:
    """This oracle alone, on the engine's own views along the same random histories.

    What the adapter tells of itself ends the histories, and is no catch of the oracle.
    """
    report = _campaign(seed, budget, oracle)
    found = _attempt(report)
    return evolve(found, caught=False, clause=None) if _is_told(report.finding) else found


def blindly(blind: Blind, plant: str | None, seed: int, budget: Budget) -> Attempt:
    """A blind oracle alone; for the bug that it misses, on the history that shows it to the kit.

    That history ends where the kit catches the bug: later on a wrong draw may end a sequence late,
    which any oracle sees.
    """
    if plant != blind.misses:
        return judged(blind.judge, plant, seed, budget)
    shown = _campaign(seed, budget)
    found, history = _attempt(shown), shown.finding.history if shown.finding else ()
    if not found.caught:
        return evolve(found, error=found.error or "the kit found nothing to show to the oracle")
    assert shown.setting is not None
    again = partial(make, ours.make, *shown.setting)
    seen = replay(again, history, watchdog=budget.watchdog, oracle=blind.judge)
    return evolve(found, caught=seen is not None, clause=seen.clause if seen else None)


def replay_traffic(_plant: str | None, seed: int, budget: Budget) -> Attempt:
    """Synthetic traffic in lockstep: every output is compared with decoding its request alone."""
    made = partial(make, ours.make_without_cells, GEOMETRY, CleanupMode.INCREMENTAL)
    tally = traffic.Tally()
    compile_first(made, budget)
    budget.watchdog.begin(tally.history, TRAFFIC_SECONDS)
    try:
        requests = made_up(seed, count=budget.steps // STEPS_PER_REQUEST)
        traffic.replay(made(), requests, tally=tally, update=lambda _: None)
    finally:
        budget.watchdog.end()
    clause = tally.finding.clause if tally.finding else "CONS" if tally.leaked_pages else None
    error = _raised(tally.finding)
    return Attempt(
        caught=clause is not None and error is None,
        steps=tally.steps,
        seconds=tally.seconds,
        clause=clause,
        error=error,
    )


def kernel_checks(_plant: str | None, seed: int, budget: Budget) -> Attempt:
    """Ragged batches through the reference attention, compared with the float64 oracle."""
    kernel.compile_all()
    started = time.perf_counter()
    taken, wrong = kernel.check(seed, cases=budget.steps)
    seconds = time.perf_counter() - started
    clause = "ATT" if wrong else None
    return Attempt(caught=wrong, steps=taken, seconds=seconds, clause=clause)


METHODS: Final[dict[str, Method]] = {
    "fuzz": Method(what="random histories in lockstep with the specification", run=fuzz),
    "invariants": Method(
        what="the clauses alone, on the engine's own view",
        run=partial(judged, by_clauses),
        share=INVARIANTS_SHARE,
    ),
    "refine": Method(
        what="every transition of small state graphs, compilation included",
        run=refine,
        families=frozenset(FAMILIES) - {"attention"},
        past=frozenset({"impl.host"}),
        draws=False,
    ),
    "vectors": Method(
        what="every vector that kvspec vectors writes, compilation included",
        run=vectors,
        families=frozenset(FAMILIES) - {"attention"},
        draws=False,
    ),
    "replay": Method(what="synthetic traffic in lockstep", run=replay_traffic, share=0.05),
    "kernel": Method(
        what="attention against the float64 oracle",
        run=kernel_checks,
        share=0.005,
        families=frozenset({"attention"}),
    ),
    **{
        name: Method(
            what=oracle.what,
            run=partial(blindly, oracle),
            share=INVARIANTS_SHARE,
            only=frozenset({oracle.misses, oracle.sees}),
        )
        for name, oracle in BLIND.items()
    },
}
"""In the order of the report."""


def recorded(finding: Finding, setting: Setting, *, plant: str | None) -> Recorded:
    """The finding in the form of a file that `kvspec rerun` replays."""
    return Recorded(
        engine=OUR_ENGINE,
        **setting._asdict(),
        plant=plant,
        history=finding.history,
        clause=finding.clause,
        message=finding.message,
    )


def compile_first(make: "partial[Engine]", budget: Budget) -> None:
    """Call every entry point once, so that no try pays for compilation; findings are ignored."""
    first = warmup(make().profile.actions)
    replay(make, first, seconds=FIRST_SECONDS, watchdog=budget.watchdog, oracle=_finds_nothing)


def _finds_nothing(_before: View, _seen: View, _wanted: View) -> Iterator[tuple[str, str]]:
    """An oracle that never finds anything."""
    yield from ()


def made_up(seed: int, *, count: int, longest: int = GEOMETRY.max_len) -> Iterator[Request]:
    """Random requests of one to three choices. longest: the most tokens of one, all included."""
    digits = random.Random(seed)
    for index in range(count):
        prompt = digits.randint(1, longest - 1)
        tokens = traces.prompt_tokens(index, prompt, None, vocabulary=VOCABULARY)
        params = Params(
            max_new=digits.randint(1, longest - prompt),
            temperature=float(index % 2),
            seed=index,
        )
        choices = digits.choice((1, 1, 2, 3))
        yield Request(id=index, prompt=tokens, params=params, n_generations=choices)


def _campaign(seed: int, budget: Budget, oracle: Oracle | None = None) -> campaign.Run:
    report = campaign.Run()
    campaign.run(
        ours.make,
        campaign.Options(
            geometry=GEOMETRY,
            seed=SEED_STRIDE * seed,
            steps=budget.steps,
            ceiling=False,
            oracle=oracle,
            patience=Patience(first=FIRST_SECONDS),
        ),
        report=report,
        update=lambda _done, _note: None,
        watchdog=budget.watchdog,
    )
    return report


def _attempt(report: campaign.Run) -> Attempt:
    """The result of a campaign; a finding of the warm-up counts the steps of its own history."""
    found = report.finding
    warm, error = found is not None and not report.steps, _raised(found)
    return Attempt(
        caught=found is not None and error is None,
        steps=len(found.history) if found and warm else report.steps,
        seconds=report.active_seconds,
        clause=found.clause if found else None,
        error=error,
    )


def _raised(finding: Finding | None) -> str | None:
    """The exception that the engine raised, if it did: such a plant has not been caught."""
    cause = _cause(finding)
    return finding.message if finding and cause and not _is_told(finding) else None


def _is_told(finding: Finding | None) -> bool:
    """Whether the adapter itself says that the engine is wrong."""
    cause = _cause(finding)
    return isinstance(cause, EngineFailed) and cause.raised is None


def _cause(finding: Finding | None) -> BaseException | None:
    return finding.violation.__cause__ if finding and finding.violation else None
