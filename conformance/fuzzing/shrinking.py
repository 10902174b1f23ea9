"""Taking a history again, and making a failing one as short as it goes.

Shrinking works on concrete actions: whatever can be left out or made smaller while the same clause
is still violated is. The result needs neither the draws nor Hypothesis to be reproduced.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from attrs import evolve, frozen

from conformance.fuzzing.joint_shrinking import smaller_together
from conformance.lockstep.comparer import Lockstep, Oracle, Violation, by_clauses
from conformance.lockstep.history import Attend, History, PoisonDead, Step
from conformance.lockstep.watchdog import FIRST_SECONDS, STEP_SECONDS, Hung, Watchdog, set_alarm
from conformance.protocol import Engine, EngineFailed, Profile, Unsendable
from conformance.runtime.optional_dependencies import extra_of
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import InvalidInput, Params, Reason, Request

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


def shrink(
    make: MakeEngine,
    finding: Finding,
    *,
    seconds: float,
    step_seconds: float = FIRST_SECONDS,
    watchdog: Watchdog | None = None,
) -> Finding:
    """The smallest history found in this time that still violates the same clause.

    step_seconds: what each step may take.

    Ctrl-C ends the shrinking and not the run: what was found is kept.
    """
    again = partial(replay, make, seconds=step_seconds, watchdog=watchdog)
    return shrink_with(again, finding, seconds=seconds)


def shrink_with(again: TakeAgain, finding: Finding, *, seconds: float) -> Finding:
    """The same, with another way to take a history again."""
    deadline = time.monotonic() + seconds
    best = finding
    try:
        while time.monotonic() < deadline:
            smaller = _first_failing(again, best, deadline)
            if smaller is None:
                break
            best = smaller
    except KeyboardInterrupt:
        pass
    return best


def _first_failing(again: TakeAgain, finding: Finding, deadline: float) -> Finding | None:
    """The first smaller history that violates the same clause; None if none does in time."""
    for candidate in _smaller(finding.history):
        if time.monotonic() > deadline:
            return None
        found = again(candidate)
        if found is not None and found.clause == finding.clause:
            return found
    return None


def _smaller(history: History) -> Iterator[History]:
    """Leave out ever smaller runs of steps, change several, then make single steps smaller."""
    size = len(history) // 2
    while size:
        for start in range(0, len(history) - size + 1, size):
            yield history[:start] + history[start + size :]
        size //= 2
    yield from smaller_together(history)
    for index, step in enumerate(history):
        for simpler in simpler_steps(step):
            yield (*history[:index], simpler, *history[index + 1 :])


def simpler_steps(step: Step) -> Iterator[Step]:  # noqa: C901, PLR0912 - one table of all steps
    """The same step with less in it, if it can have less. Never larger: shrinking must end."""
    match step:
        case act.Allocate(batch) | act.Write(batch):
            for index in range(len(batch)):
                yield evolve(step, batch=batch[:index] + batch[index + 1 :])
            ordered = tuple(sorted(entry for entry in batch if entry is not None))
            if ordered != batch:
                yield evolve(step, batch=ordered)
        case act.Prefill(requests):
            for index in range(len(requests)):
                if len(requests) > 1:
                    yield act.Prefill(requests[:index] + requests[index + 1 :])
                for request in _simpler_requests(requests[index]):
                    yield act.Prefill((*requests[:index], request, *requests[index + 1 :]))
        case act.Submit(request):
            for simpler in _simpler_requests(request):
                yield act.Submit(simpler)
        case act.Assign(_, prompt, params):
            if len(prompt) > 1:
                yield evolve(step, prompt=prompt[:-1])
            for simpler_params in _simpler_params(params):
                yield evolve(step, params=simpler_params)
        case act.Generate():
            yield act.Round()
        case act.Clone(_, int()):
            yield evolve(step, child=None)
        case act.Reserve(int()):
            yield act.Reserve()
        case _:
            return


def _simpler_requests(request: Request) -> Iterator[Request]:
    if request.n_generations > 1:
        yield evolve(request, n_generations=request.n_generations - 1)
    if len(request.prompt) > 1:
        yield evolve(request, prompt=request.prompt[: len(request.prompt) // 2])
        yield evolve(request, prompt=request.prompt[:-1])
    for params in _simpler_params(request.params):
        yield evolve(request, params=params)


def _simpler_params(params: Params) -> Iterator[Params]:
    default = Params(max_new=1)
    for field in ("stops", "temperature", "seed"):
        if getattr(params, field) != getattr(default, field):
            yield evolve(params, **{field: getattr(default, field)})
    if params.max_new > 1:
        yield evolve(params, max_new=params.max_new // 2)
        yield evolve(params, max_new=params.max_new - 1)
