"""Running one history in lockstep with the specification, up to the first violation."""

from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from conformance.history import Attend, History, PoisonDead, Step
from conformance.lockstep.lockstep import Lockstep, Oracle, Violation, by_clauses, require_shown
from conformance.lockstep.watchdog import FIRST_SECONDS, STEP_SECONDS, Hung, Watchdog, set_alarm
from conformance.protocol import Engine, EngineFailed, Profile, Unsendable
from conformance.runtime.optional_dependencies import extra_of
from spec.view import View
from spec.vocabulary import InvalidInput, Reason

MakeEngine = Callable[[], Engine]


@frozen
class Finding:
    """A history that ends in a violation."""

    history: History
    clause: str
    message: str
    violation: Violation | None = None


def opened(make: MakeEngine) -> Engine:
    """A new engine whose profile and first view are valid.

    Raises EngineFailed if the engine cannot be made or observed. An InvalidInput of the adapter and
    an import error that an extra would mend are raised unchanged.
    """
    try:
        engine = make()
        profile, shown = engine.profile, engine.observe()
    except (EngineFailed, InvalidInput):
        raise
    except (Exception, SystemExit) as error:
        if extra_of(error) is not None:
            raise
        wrong = f"making the engine and looking at it raised {type(error).__name__}: {error}"
        raise EngineFailed(wrong) from error
    for value, kind in ((profile, Profile), (shown, View)):
        if not isinstance(value, kind):
            wrong = f"the adapter gave {value!r}, should be a {kind.__module__}.{kind.__name__}"
            raise EngineFailed(wrong)
    require_shown(profile, shown)
    return engine


def finding_of(history: Sequence[Step], error: Violation | EngineFailed) -> Finding:
    """The finding for a history whose last step went wrong, or whose engine could not be made."""
    if isinstance(error, EngineFailed):
        return Finding(tuple(history), error.clause, str(error))
    return Finding(tuple(history), error.clause, error.message, error)


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


TakeAgain = Callable[[History], Finding | None]
"""A function that runs a history from the initial state and returns its finding, or None."""


def take(lockstep: Lockstep, step: Step, *, seconds: float = STEP_SECONDS) -> frozenset[Reason]:
    """Take one step. Returns the reasons for which its action was refused; empty if it was done.

    seconds: the time limit of the step. Raises Violation, also for an exception or a hang of the
    engine.
    """
    before = lockstep.seen
    try:
        set_alarm(seconds)
        match step:
            case PoisonDead(kind):
                lockstep.poison(kind)
            case Attend():
                lockstep.attend()
            case _:
                return lockstep.do(step)
    except (Violation, KeyboardInterrupt, Unsendable):
        raise
    except Hung:
        wrong = f"a step took more than {seconds:g} seconds"
        raise Violation("PROG", wrong, action=step, before=before, after=before) from None
    except EngineFailed as error:
        raise Violation(
            error.clause, str(error), action=step, before=before, after=before
        ) from error
    except (Exception, SystemExit) as error:
        wrong = f"the engine raised {type(error).__name__}: {error}"
        raise Violation("ATOMIC", wrong, action=step, before=before, after=before) from error
    finally:
        set_alarm(0)
    return frozenset()


def replay(
    make: MakeEngine,
    history: Iterable[Step],
    *,
    seconds: float = FIRST_SECONDS,
    watchdog: Watchdog | None = None,
    oracle: Oracle | None = None,
) -> Finding | None:
    """Run a history from the initial state. Returns the finding of its first violation, or None.

    seconds: the time limit of each step, compilation included. oracle: see `Lockstep`.
    """
    taken: list[Step] = []
    try:
        lockstep = Lockstep(opened(make), oracle=oracle)
        for step in history:
            taken.append(step)
            if watchdog is not None:
                watchdog.begin(taken, seconds)
            take(lockstep, step, seconds=seconds)
    except (Violation, EngineFailed) as error:
        return finding_of(taken, error)
    finally:
        if watchdog is not None:
            watchdog.end()
    return None
