"""One history in lockstep with the specification: each step taken, and what goes wrong in it."""

from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from conformance.history import Attend, History, PoisonDead, Step
from conformance.lockstep.lockstep import Lockstep, Oracle, Violation, by_clauses
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
    """A new engine that has been looked at. Raises EngineFailed if there is none.

    What an adapter says itself, InvalidInput, and a module that an extra installs are let pass.
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
    return engine


def finding_of(history: Sequence[Step], error: Violation | EngineFailed) -> Finding:
    """The finding of a history whose last step, or the engine before the first, went wrong."""
    if isinstance(error, EngineFailed):
        return Finding(tuple(history), error.clause, str(error))
    return Finding(tuple(history), error.clause, error.message, error)


def violated_by(finding: Finding) -> dict[str, str]:
    """From each clause that the last step violates to what is wrong, the one it is named for first.

    Several can be violated at once: a page that leaks has no owner, and a wrong count too.
    """
    violated = {finding.clause: finding.message}
    if finding.violation is not None:
        before, after = finding.violation.before, finding.violation.after
        for clause, wrong in by_clauses(before, after, after):
            violated.setdefault(clause, wrong)
    return violated


TakeAgain = Callable[[History], Finding | None]
"""Takes a history from the initial state; the finding where it goes wrong."""


def take(lockstep: Lockstep, step: Step, *, seconds: float = STEP_SECONDS) -> frozenset[Reason]:
    """Take one step; raises Violation, and an engine's own exception or hang as one.

    Returns why an action was refused.
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
    """Take a history from the initial state; the finding where it goes wrong, if it does.

    seconds: what each step may take, compilation included. oracle: see `Lockstep`.
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
