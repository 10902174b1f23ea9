"""Running one history in lockstep with the specification, up to the first violation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from attrs import frozen

from conformance.history import Attend, History, PoisonDead, Step
from conformance.lockstep.called import called, notes_of
from conformance.lockstep.lockstep import (
    SERVE,
    Lockstep,
    Oracle,
    Violation,
    by_clauses,
    require_shown,
    tells_events,
)
from conformance.lockstep.watchdog import FIRST_SECONDS, STEP_SECONDS, Hung, Watchdog, set_alarm
from conformance.protocol import Engine, EngineFailed
from conformance.rungs.shared_generators import spread
from spec.vocabulary import Reason

MakeEngine = Callable[[], Engine]


@frozen
class Finding:
    """A history that ends in a violation. trace: the traceback of the engine, if it raised."""

    history: History
    clause: str
    message: str
    violation: Violation | None = None
    trace: str = ""


def opened(make: MakeEngine) -> Engine:
    """A new engine whose profile and first view are valid.

    Raises EngineFailed, and AdapterMistake or another InvalidInput. An import error that an extra
    would mend is raised unchanged.
    """
    engine = called(make)
    require_shown(engine.profile, engine.observe())
    return engine


def finding_of(history: Sequence[Step], error: Violation | EngineFailed) -> Finding:
    """The finding for a history whose last step went wrong, or whose engine could not be made."""
    trace = "\n".join(notes_of(error))
    if isinstance(error, EngineFailed):
        return Finding(tuple(history), error.clause, str(error), trace=trace)
    return Finding(tuple(history), error.clause, error.message, error, trace)


def violated_by(finding: Finding) -> dict[str, str]:
    """A message for each clause that the last step violates, the clause of the finding first.

    One step can violate several clauses: a page that leaks has no owner and a wrong count.
    """
    violated = {finding.clause: finding.message}
    if finding.violation is not None:
        before, after = finding.violation.before, finding.violation.after
        for clause, wrong in by_clauses(before, after, after):
            violated.setdefault(clause, wrong)
    return violated


STATISTICS_EVERY: Final = 16
"""In long runs statistics are compared after one step in this many: reading them takes time."""

TakeAgain = Callable[[History], Finding | None]
"""A function that runs a history from the initial state and returns its finding, or None."""


def take(
    lockstep: Lockstep,
    step: Step,
    *,
    seconds: float = STEP_SECONDS,
    statistics: bool = True,
    events: bool = True,
) -> frozenset[Reason]:
    """Take one step. Returns the reasons for which its action was refused; empty if it was done.

    seconds: the time limit of the step. statistics, events: whether to compare them too. Raises
    Violation, also if the engine fails or hangs, and InvalidInput for a mistake of the adapter.
    """
    with _failing(lockstep, step, seconds=seconds):
        match step:
            case PoisonDead(kind):
                lockstep.poison(kind)
            case Attend():
                lockstep.attend()
            case _:
                reasons = lockstep.do(step)
                if statistics:
                    lockstep.compare_statistics(step)
                if events and tells_events(step):
                    lockstep.compare_events(step)
                return reasons
    return frozenset()


def compares_statistics(steps: int) -> bool:
    """Whether a long run compares statistics after so many steps: at no period of its steps."""
    return spread(steps) % STATISTICS_EVERY == 0


def finish(lockstep: Lockstep, *, seconds: float = STEP_SECONDS) -> None:
    """End a history: see `Lockstep.serve`. Raises as `take` does."""
    with _failing(lockstep, SERVE, seconds=seconds):
        lockstep.serve()


@contextmanager
def _failing(lockstep: Lockstep, step: object, *, seconds: float) -> Iterator[None]:
    """Raise Violation if the engine fails in the block, or takes longer than these seconds."""
    before = lockstep.seen
    try:
        set_alarm(seconds)
        yield
    except Hung:
        wrong = f"a step took more than {seconds:g} seconds"
        raise Violation("PROG", wrong, action=step, before=before, after=before) from None
    except EngineFailed as error:
        after = lockstep.seen
        violation = Violation(error.clause, str(error), action=step, before=before, after=after)
        for note in notes_of(error):
            violation.add_note(note)
        raise violation from error
    finally:
        set_alarm(0)


def replay(
    make: MakeEngine,
    history: Iterable[Step],
    *,
    seconds: float = FIRST_SECONDS,
    watchdog: Watchdog | None = None,
    oracle: Oracle | None = None,
    serve: bool = True,
) -> Finding | None:
    """Run a history from the initial state. Returns the finding of its first violation, or None.

    seconds: the time limit of each step, compilation included. oracle: see `Lockstep`. serve: then
    serve to the end what waits, see `Lockstep.serve`.
    """
    taken: list[Step] = []
    try:
        lockstep = Lockstep(opened(make), oracle=oracle)
        for step in history:
            taken.append(lockstep.as_sent(step))
            if watchdog is not None:
                watchdog.begin(taken, seconds)
            take(lockstep, step, seconds=seconds)
        if serve:
            finish(lockstep, seconds=seconds)
    except (Violation, EngineFailed) as error:
        return finding_of(taken, error)
    finally:
        if watchdog is not None:
            watchdog.end()
    return None
