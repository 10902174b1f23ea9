"""The conformance suite: one fuzzing run, and from it one answer for each clause.

The run ends at the first finding that is not known. A clause fails if the last step of that
finding, or of a known one, violates it. A clause holds if it was judged to the end of a run that
reached every required item. Otherwise it is undecided, and the answer says why.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import asdict, evolve, frozen

from conformance.files import histories
from conformance.files.geometries import geometry_to_text
from conformance.files.histories import Recorded
from conformance.files.serialisation import clipped
from conformance.fuzzing import campaign, counterexamples
from conformance.fuzzing.settings import geometry_source, make
from conformance.fuzzing.shrinking import shrink_at
from conformance.history import History
from conformance.isolation.placement import runs_here
from conformance.lockstep.not_checked import clauses_not_judged
from conformance.lockstep.run import Finding, violated_by
from conformance.lockstep.watchdog import Patience, Watchdog
from conformance.protocol import Factory
from spec.clauses import CLAUSES
from spec.vocabulary import Geometry, InvalidInput

COVERAGE: Final = "coverage"
"""An answer beside those of the clauses: whether the run reached every required item."""
SHRINK_SECONDS: Final = 30.0


@frozen
class Answer:
    """The answer for one clause.

    holds: None if it is undecided. why: the reason why it does not hold, or is undecided.
    """

    holds: bool | None
    why: str = ""


@frozen(kw_only=True)
class Where:
    """The engine and where it runs: the arguments of `isolation.placement.factory_of`."""

    engine: str
    python: str | None
    in_process: bool


def read_known(path: Path) -> dict[str, str]:
    """Read a file of known failures: {clause: reason}.

    Each line has a clause, or COVERAGE, and the reason; `#` begins a comment. Raises InvalidInput
    for any other file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _bad_known(path.name, error.strerror or type(error).__name__) from None
    except ValueError:
        raise _bad_known(path.name, "a file that is not UTF-8 text") from None
    known: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        clause, _, reason = line.strip().partition(" ")
        if not clause or clause.startswith("#"):
            continue
        if clause not in (*CLAUSES, COVERAGE) or clause in known or not reason.strip():
            raise _bad_known(f"{path.name} line {number}", clipped(line, 60))
        known[clause] = reason.strip()
    return known


def judge(
    where: Where,
    *,
    geometry: Geometry,
    alone: bool,
    seconds: float,
    seed: int,
    known: frozenset[str],
    watchdog: Watchdog,
    factory: Factory,
    patience: Patience = campaign.PATIENCE,
) -> dict[str, Answer]:
    """An answer for each clause of the registry, and for COVERAGE.

    where: recorded in the files of a finding. geometry, alone: see `campaign.Options`. seconds: the
    time to fuzz. known: clauses that are known to fail: the run goes on after them. With COVERAGE
    among them, a clause holds if it was judged at every step of the run, whatever the run reached.
    patience: how long a step may take.
    """
    state = campaign.Run()
    campaign.run(
        factory,
        campaign.Options(
            geometry=geometry,
            alone=alone,
            seed=seed,
            seconds=seconds,
            ceiling=False,
            known=known,
            patience=patience,
        ),
        report=state,
        update=lambda *_: None,
        watchdog=watchdog,
    )
    failing = {clause: _described(found, clause) for clause, found in state.known.items()}
    if state.finding is not None:
        sizes = geometry_source(given=alone)
        failing |= _kept(state, state.finding, factory, where, watchdog, patience, sizes)
        return _ended_at(state.finding.clause, failing)
    if state.programs:
        failing["JIT"] = "\n".join(state.programs)
    one = make(factory, *state.fullest)
    coverable = state.coverable(one)
    missing = sorted(set(coverable) - set(state.coverage.covered(coverable)))
    undecided: dict[str, str] = {}
    if missing:
        few = f"{len(missing)} of {len(coverable)} required items were not reached"
        if COVERAGE not in known:
            undecided = dict.fromkeys(CLAUSES, f"undecided: {few}")
        advice = state.advice(missing, one, given=alone)
        failing[COVERAGE] = f"{few} in {state.steps} steps: {', '.join(missing)}; {advice}"
    return _answers(failing, clauses_not_judged(one), undecided)


def stuck(history: History, message: str) -> dict[str, Answer]:
    """The answers for a history with a last step that does not return from compiled code."""
    finding = Finding(history, "PROG", message)
    return _ended_at("PROG", {"PROG": counterexamples.describe(finding)})


def _ended_at(clause: str, failing: Mapping[str, str]) -> dict[str, Answer]:
    ended = f"undecided: the run ended at {clause}; fix it or list it as known"
    return _answers(failing, {}, dict.fromkeys((*CLAUSES, COVERAGE), ended))


def _answers(
    failing: Mapping[str, str], unjudged: Mapping[str, str], undecided: Mapping[str, str]
) -> dict[str, Answer]:
    answers = {}
    for name in (*CLAUSES, COVERAGE):
        if name in failing:
            answers[name] = Answer(holds=False, why=failing[name])
        elif name in unjudged:
            answers[name] = Answer(holds=None, why=f"not checked: {unjudged[name]}")
        elif name in undecided:
            answers[name] = Answer(holds=None, why=undecided[name])
        else:
            answers[name] = Answer(holds=True)
    return answers


def _kept(
    state: campaign.Run,
    found: Finding,
    factory: Factory,
    where: Where,
    watchdog: Watchdog,
    patience: Patience,
    sizes: str,
) -> dict[str, str]:
    """Shrink a finding and save it in the corpus; the text for each clause that it violates.

    sizes: where the geometry comes from, in words. A clause that only the longer history violates
    is described by the longer one, saved as well.
    """
    assert state.setting is not None
    setting, least = shrink_at(
        factory,
        state.setting,
        found,
        seconds=SHRINK_SECONDS,
        step_seconds=patience.after_warm_up(
            here=runs_here(**asdict(where)), warm_up=state.warm_up_seconds
        ),
        watchdog=watchdog,
    )
    lost = set(violated_by(found)) - set(violated_by(least))
    texts: dict[str, str] = {}
    kept = [(state.setting, found)] * bool(lost) + [(setting, least)]
    for at, finding in kept:
        recorded = Recorded(
            engine=where.engine,
            **at._asdict(),
            history=finding.history,
            clause=finding.clause,
            message=finding.message,
            python=where.python,
            in_process=where.in_process,
        )
        fewer = ", with fewer pages" * (at != state.setting)
        again = f"  at {geometry_to_text(at.geometry)}: {sizes}{fewer}\n{_kept_as(recorded)}"
        for clause in violated_by(finding):
            texts[clause] = f"{_described(finding, clause)}\n{again}"
    return texts


def _kept_as(recorded: Recorded) -> str:
    """Save a history in the corpus; the command that replays it, or its lines if that fails."""
    try:
        history, _ = counterexamples.write(recorded)
    except OSError:
        return counterexamples.UNKEPT + histories.dump(recorded)
    return f"  again: {counterexamples.again(recorded, history)}"


def _described(finding: Finding, clause: str) -> str:
    """The description of a finding under one of the clauses that it violates."""
    named = evolve(finding, clause=clause, message=violated_by(finding)[clause])
    also = ", ".join(name for name in violated_by(finding) if name != clause)
    return counterexamples.describe(named) + (f"\nthe same step violates {also}" if also else "")


def _bad_known(where: str, seen: str) -> InvalidInput:
    return InvalidInput(
        where,
        seen=seen,
        allowed="a clause and the reason why it fails on each line, each clause once",
        remedy=f"Name one of {', '.join((*CLAUSES, COVERAGE))}.",
    )
