"""The conformance suite: one fuzzing run, and from it one answer for each clause.

A run ends at the first finding that is not known. A clause fails if that step, or one that ended a
history of known findings, violates it. It holds if it was judged to the end of a run that reached
what it must; otherwise the answer says why there is none.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from attrs import asdict, evolve, frozen

from conformance.files import histories
from conformance.files.histories import Recorded
from conformance.files.serialisation import clipped
from conformance.fuzzing import campaign, counterexamples
from conformance.fuzzing.shrinking import shrink
from conformance.history import History
from conformance.isolation.placement import runs_here
from conformance.lockstep.not_checked import clauses_not_judged
from conformance.lockstep.run import Finding, violated_by
from conformance.lockstep.watchdog import Patience, Watchdog
from conformance.protocol import Factory
from spec.clauses import CLAUSES
from spec.vocabulary import Geometry, InvalidInput, default_limits

COVERAGE: Final = "coverage"
"""Stands beside the clauses: whether the run reached what it must."""
SHRINK_SECONDS: Final = 12.0


@frozen
class Answer:
    """holds: None if it is not decided. why: if it does not hold, or is not decided."""

    holds: bool | None
    why: str = ""


@frozen(kw_only=True)
class Where:
    """Which engine it is and where it runs, as `isolation.placement.factory_of` is given."""

    engine: str
    python: str | None
    in_process: bool


def read_known(path: Path) -> dict[str, str]:
    """Known failures: a clause, or COVERAGE, and the reason on each line; `#` begins a comment.

    Raises InvalidInput.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _bad_known(path.name, error.strerror or type(error).__name__) from None
    except ValueError:
        raise _bad_known(path.name, "what is no text in UTF-8") from None
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
    seconds: float,
    seed: int,
    known: frozenset[str],
    watchdog: Watchdog,
    factory: Factory,
    patience: Patience = campaign.PATIENCE,
) -> dict[str, Answer]:
    """An answer for each clause of the registry, and for COVERAGE.

    where: for the files of a finding. seconds: of fuzzing. known:
    clauses that are known to fail: the run goes on behind them. With COVERAGE among them a clause
    holds if it was judged at every step of the run, whatever that reached. patience: how long
    a step may take.
    """
    state = campaign.Run()
    campaign.run(
        factory,
        campaign.Options(
            geometry=geometry,
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
        failing |= _kept(state, state.finding, factory, where, watchdog, patience)
        return _ended_at(state.finding.clause, failing)
    one = campaign.make(factory, geometry, state.cleanup)
    coverable = state.coverage.coverable_on(one)
    missing = sorted(set(coverable) - set(state.coverage.covered(coverable)))
    undecided: dict[str, str] = {}
    if missing:
        few = f"{len(missing)} of {len(coverable)} required items were not reached"
        if COVERAGE not in known:
            undecided = dict.fromkeys(CLAUSES, f"undecided: {few}")
        failing[COVERAGE] = f"{few} in {state.steps} steps: {', '.join(missing)}; give more seconds"
    return _answers(failing, clauses_not_judged(one), undecided)


def stuck(history: History, message: str) -> dict[str, Answer]:
    """The answers where the last step of a history does not return from compiled code."""
    finding = Finding(history, "PROG", message)
    return _ended_at("PROG", {"PROG": counterexamples.describe(finding)})


def _ended_at(clause: str, failing: Mapping[str, str]) -> dict[str, Answer]:
    ended = f"undecided: the run ended at {clause}; mend it or list it as known"
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
) -> dict[str, str]:
    """The clauses that a finding violates, each with its text; as short as it goes, in the corpus.

    A clause that only the longer history violates has the longer one.
    """
    assert state.geometry is not None
    make = partial(campaign.make, factory, state.geometry, state.cleanup)
    least = shrink(
        make,
        found,
        seconds=SHRINK_SECONDS,
        step_seconds=patience.after_warm_up(
            here=runs_here(**asdict(where)), warm_up=state.warm_up_seconds
        ),
        watchdog=watchdog,
    )
    lost = set(violated_by(found)) - set(violated_by(least))
    texts: dict[str, str] = {}
    for finding in (found, least) if lost else (least,):
        recorded = Recorded(
            engine=where.engine,
            geometry=state.geometry,
            limits=default_limits(state.geometry),
            cleanup=state.cleanup,
            history=finding.history,
            clause=finding.clause,
            message=finding.message,
            python=where.python,
            in_process=where.in_process,
        )
        again = _kept_as(recorded)
        for clause in violated_by(finding):
            texts[clause] = f"{_described(finding, clause)}\n{again}"
    return texts


def _kept_as(recorded: Recorded) -> str:
    """How to take it again: from the corpus or, where it cannot be kept, from these lines."""
    try:
        history, _ = counterexamples.write(recorded)
    except OSError:
        return counterexamples.UNKEPT + histories.dump(recorded)
    return f"  again: {counterexamples.again(recorded, history)}"


def _described(finding: Finding, clause: str) -> str:
    """The finding as one of this clause, which may be another than it is named for."""
    named = evolve(finding, clause=clause, message=violated_by(finding)[clause])
    also = ", ".join(name for name in violated_by(finding) if name != clause)
    return counterexamples.describe(named) + (f"\nthe same step violates {also}" if also else "")


def _bad_known(where: str, seen: str) -> InvalidInput:
    return InvalidInput(
        where,
        seen=seen,
        allowed="a clause and the reason why it fails on each line, none twice",
        remedy=f"Name one of {', '.join((*CLAUSES, COVERAGE))}.",
    )
