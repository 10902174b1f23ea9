"""The Hypothesis state machines, one per level, generic over the engine under test.

A rule draws one integer, and its `DrawRule` turns that into a step that fits the state of the
specification. Hypothesis itself leaves out a random part of the rules in each example, so that rare
steps meet. With empty bodies of the rules, a run measures the cost of the draws alone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from heapq import nsmallest
from random import Random
from typing import Any, Final, TypeGuard

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from conformance.fuzzing import rare
from conformance.history import Attend, PoisonDead, Step
from conformance.lockstep.called import not_new
from conformance.lockstep.lockstep import Lockstep, Oracle, Violation
from conformance.lockstep.run import (
    Finding,
    MakeEngine,
    compares_statistics,
    finding_of,
    finish,
    opened,
    take,
)
from conformance.lockstep.sending import batches
from conformance.lockstep.watchdog import STEP_SECONDS, Watchdog
from conformance.protocol import Action, EngineFailed, Poison, Poisonable, Refuses
from conformance.rungs import pages, record, registry, shared_generators
from conformance.rungs.coverage import Coverage, possible_at
from conformance.rungs.possible import Kind, Outcome, Pair, as_item
from conformance.rungs.record import DrawRule
from conformance.rungs.shared_generators import spread
from conformance.runtime.stopwatch import Stopwatch
from spec import ladder
from spec.state import State
from spec.vocabulary import InvalidInput

DRAWS: Final = st.integers(0, 2**24 - 1)


SERVED_EVERY: Final = 3
"""One example in this many ends with serving to the end, since that takes time."""
RETRIES: Final = 24
"""The most times that a refused action is taken again in a row."""
NEVER: Final = (1 << 30, 0)
"""The times of a step that the engine is not asked for."""
SELDOM: Final = 12
"""One of so many outcomes that were seen least is looked for."""


@define
class Campaign:
    """The settings and the counts that the examples of one run share.

    make: makes an engine in its initial state. names: the rungs of its machine. refuses: whether it
    may refuse more than the specification, as its profile says. idle: leave the
    bodies of the rules empty. climb: also check the specification against its own lower rungs.
    oracle: see `Lockstep`. watchdog: notices a step that hangs. step_seconds: how long a step may
    take. finding: the first failure. in_steps: the time of making engines and of the bodies of the
    rules. in_engine: the engine's part of that. is_up: whether the time is up: no step is taken
    then. drawn_by, recent: see `record.Session`. possible, pairs: the outcomes that are possible
    here, and pairs of steps, once an engine was made.
    """

    make: MakeEngine
    names: tuple[str, ...] = ladder.machine(ladder.SERVING).names
    refuses: Refuses = "exact"
    coverage: Coverage = field(factory=Coverage)
    idle: bool = False
    climb: bool = False
    oracle: Oracle | None = None
    watchdog: Watchdog | None = None
    step_seconds: float = STEP_SECONDS
    steps: int = 0
    finding: Finding | None = None
    in_steps: Stopwatch = field(factory=Stopwatch)
    in_engine: Stopwatch = field(factory=Stopwatch)
    is_up: Callable[[], bool] = lambda: False
    drawn_by: dict[type, set[tuple[str, str]]] = field(factory=dict)
    recent: dict[type, Action] = field(factory=dict)
    possible: tuple[Outcome, ...] = ()
    pairs: frozenset[Pair] = frozenset()


class Over(BaseException):
    """Ends a turn between two steps: the time is up, or there is a finding.

    Hypothesis runs an example again if it raises an Exception. It lets a BaseException through at
    once, as it does Ctrl-C.
    """


class AdapterStops(BaseException):
    """Ends a run at a mistake of the adapter, for the same reason. error: the mistake."""

    def __init__(self, error: InvalidInput) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _ending_at_a_mistake(history: Sequence[Step]) -> Iterator[None]:
    """End the run at a mistake of the adapter, and note the steps that led to it."""
    try:
        yield
    except InvalidInput as error:
        steps = (f"  {number}. {step}" for number, step in enumerate(history, start=1))
        if history:
            error.add_note("\n".join(("after these steps:", *steps)))
        raise AdapterStops(error) from None


class Session:
    """One example: an engine and the specification in lockstep, and the history so far."""

    def __init__(self, campaign: Campaign, level: str) -> None:
        self.campaign = campaign
        self.level = level
        self.refused: Action | None = None
        try:
            with campaign.in_engine:
                engine = opened(campaign.make)
            self.lockstep = Lockstep(
                engine,
                climb=campaign.climb,
                oracle=campaign.oracle,
                watch=campaign.in_engine,
            )
        except Violation as error:  # the engine of the warm-up had been in its initial state
            raise not_new(error.message) from error
        except EngineFailed as error:
            campaign.finding = finding_of((), error)
            raise
        campaign.coverage.begin()
        profile = self.lockstep.engine.profile
        self.actions = profile.actions
        if not campaign.possible:
            campaign.possible, campaign.pairs = possible_at(profile)
        self.drawn_by, self.recent = campaign.drawn_by, campaign.recent
        self.levels: Mapping[str, Mapping[str, DrawRule]] = {
            kit.rung: rules_of(kit.rung, profile.machine.names, refuses=profile.refuses)
            for kit in registry.LEVELS
            if kit.rung == level or kit.needs <= profile.actions
        }
        self.rules = self.levels[level]
        self.history: list[Step] = []
        self.serial = 0
        if "refill" in self.rules:  # what a new engine grants is what it must grant later
            pages.take_every_page(self)

    @property
    def state(self) -> State:
        """The state of the specification."""
        return self.lockstep.state

    def next_id(self) -> int:
        """A request id that no request of this example has."""
        self.serial += 4
        return self.serial

    def take(self, step: Step) -> None:
        """Take a step in lockstep and count it; an action that the engine never sees is skipped."""
        if not isinstance(step, Action):
            self._take(step)
            return
        for batch in batches(self.lockstep.engine.profile, step):
            if type(step) in self.actions and self.lockstep.sends(batch):
                self._take(batch)

    def _take(self, step: Step) -> None:
        before, shown = self.state, self.lockstep.seen
        step = self.lockstep.as_sent(step)
        self.history.append(step)
        if self.campaign.watchdog is not None:
            self.campaign.watchdog.begin(self.history, self.campaign.step_seconds)
        try:
            reasons = take(
                self.lockstep,
                step,
                seconds=self.campaign.step_seconds,
                statistics=compares_statistics(self.campaign.steps),
            )
        except Violation as violation:
            self.campaign.finding = finding_of(self.history, violation)
            raise
        finally:
            if self.campaign.watchdog is not None:
                self.campaign.watchdog.end()
        self.campaign.steps += 1
        if isinstance(step, PoisonDead):
            if self.lockstep.overwrote:
                self.campaign.coverage.poisoned()
            elif step.kind is not Poison.STALE and isinstance(self.lockstep.engine, Poisonable):
                self.campaign.coverage.poisoned_nothing += 1
        elif not isinstance(step, Attend):
            self.refused = step if reasons else self.refused
            may_refuse_more = self.lockstep.engine.profile.refuses == "may_refuse_more"
            if reasons and may_refuse_more and not self.lockstep.reasons(step):
                self.campaign.coverage.withheld[type(step)] += 1
            self._count_unasked()
            pages = (shown.named, self.lockstep.seen.named)
            self.campaign.coverage.record(before, step, reasons, self.state, pages=pages)
            self.recent[type(step)] = step

    def _count_unasked(self) -> None:
        """Count what it did by itself, but for a key that moved, which is followed as a merge."""
        for taken in self.lockstep.unasked:
            if type(taken.action) in self.lockstep.engine.profile.unasked:
                self.campaign.coverage.count_unasked(*taken)

    def finish(self) -> None:
        """Let the engine serve to the end what waits, if it can; once in some examples."""
        campaign = self.campaign
        if campaign.is_up() or campaign.finding is not None:
            return
        if spread(campaign.steps) % SERVED_EVERY:
            return
        try:
            finish(self.lockstep, seconds=campaign.step_seconds)
        except Violation as violation:
            campaign.finding = finding_of(self.history, violation)
            raise

    def drawn_at(self, level: str, name: str, drawn: int) -> Step:
        """A step by a rule of a level, which may refer to other rules of that level."""
        here, self.rules = self.rules, self.levels[level]
        try:
            return self.rules[name](self, drawn)
        finally:
            self.rules = here

    def least_seen(self, rng: Random) -> type:
        """An action with an outcome that is possible here and that this run has seldom seen.

        Or with one that was seldom seen after the last step, or after any one.
        """
        coverage, possible = self.campaign.coverage, self.campaign.possible
        after = _by_step(self.campaign.pairs, at=0).get(coverage.last, ())
        for pairs in (after, _in_order(self.campaign.pairs)):
            if pairs and rng.getrandbits(1):
                return self._lacking(rng, pairs)[1].kind
        ranked = nsmallest(SELDOM, possible, key=coverage.times)
        return ranked[rng.randrange(len(ranked))].kind

    def least_seen_before(self, rng: Random, kind: type) -> type:
        """An action behind which this run has seldom seen another one done."""
        done = Kind(kind, refused=False)
        before = _by_step(self.campaign.pairs, at=1).get(done)
        return self._lacking(rng, before)[0].kind if before else kind

    def _lacking(self, rng: Random, pairs: Sequence[Pair]) -> Pair:
        """One of the pairs of steps that lack most, the first ones more often."""
        ranked = nsmallest(SELDOM, pairs, key=self.campaign.coverage.lacking)
        return ranked[rng.randrange(1 + rng.randrange(len(ranked)))]

    def is_done(self, step: Step) -> bool:
        """Whether the engine is asked for this action, and nothing refuses it now."""
        return self._asks(step) and not self.lockstep.reasons(step)

    def _asks(self, step: Step) -> TypeGuard[Action]:
        if not isinstance(step, Action) or type(step) not in self.actions:
            return False
        return self.lockstep.sends(step)

    def times_seen(self, step: Step, then: Action | None = None) -> tuple[int, int]:
        """How often this run has seen what would come of a step now, the less the better."""
        if not self._asks(step):
            return NEVER
        coverage, last = self.campaign.coverage, self.campaign.coverage.last
        reasons = self.lockstep.reasons(step)
        if then is not None and not reasons:
            after = self.lockstep.machine.effect(self.state, step)
            reasons = frozenset(one.reason for one in self.lockstep.machine.refusals(after, then))
            step, last = then, Kind(type(step), refused=False)
        times = coverage.most(type(step), reasons)
        return min(times, coverage.times_next(Kind(type(step), bool(reasons)), last)), times


@cache
def _by_step(pairs: frozenset[Pair], *, at: int) -> Mapping[Kind | None, Sequence[Pair]]:
    """These pairs by the step at this place, each group in the order of its names."""
    found = defaultdict[Kind | None, list[Pair]](list)
    for pair in _in_order(pairs):
        found[pair[at]].append(pair)
    return found


@cache
def _in_order(pairs: frozenset[Pair]) -> Sequence[Pair]:
    """These pairs in the order of their names."""
    return tuple(sorted(pairs, key=as_item))


def _retried(session: record.Session, drawn: int) -> Step:
    """The last refused action again, as a server does that waits: up to RETRIES times in a row.

    What a refused call leaves behind is often not in the view, and shows only after many of them.
    """
    assert session.refused is not None
    times = shared_generators.Digits(drawn).one_of((1, RETRIES // 4, RETRIES))
    for _ in range(times - 1):
        session.take(session.refused)
    return session.refused


def _retry(otherwise: str) -> DrawRule:
    def chosen(session: record.Session, drawn: int) -> Step:
        there = session.refused is not None and drawn % 4 == 3
        return (_retried if there else session.rules[otherwise])(session, drawn // 4)

    return chosen


_POISON: Final = shared_generators.constant(*(PoisonDead(kind) for kind in Poison))
_ATTEND: Final = shared_generators.constant(Attend())
HARNESS: Final[Mapping[str, Mapping[str, DrawRule]]] = {
    "lifecycle": {
        "poison": shared_generators.rarely(3, _POISON, "clone"),
        "attend": shared_generators.rarely(3, _ATTEND, "advance"),
        "retry": _retry("advance"),
    },
    "scheduling": {
        "poison": shared_generators.rarely(2, _POISON, "go_on"),
        "attend": shared_generators.rarely(3, _ATTEND, "go_on"),
        "retry": _retry("go_on"),
    },
    "flights": {
        "poison": shared_generators.rarely(2, _POISON, "dispatch"),
        "attend": shared_generators.rarely(3, _ATTEND, "dispatch"),
        "retry": _retry("dispatch"),
    },
    "admission": {
        "poison": shared_generators.rarely(2, _POISON, "serve"),
        "retry": _retry("serve"),
    },
}
"""The rules of the harness itself at each level."""
LEVELS: Final = tuple(kit.rung for kit in registry.LEVELS)
"""The levels, each named after the rung whose actions it is about."""


GRANTED: Final[Mapping[str, Mapping[str, DrawRule]]] = {
    "lifecycle": {"refill": shared_generators.rarely(2, pages.refill, "advance")}
}
"""The rules for an engine that may refuse more: it must grant again what it has granted."""


def _require_more(campaign: Campaign) -> None:
    """Raises Over if no step is to be taken any more, also where Hypothesis repeats an example."""
    if campaign.is_up() or campaign.finding is not None:
        raise Over


def rules_of(level: str, names: tuple[str, ...], *, refuses: Refuses) -> dict[str, DrawRule]:
    """The rules of a level for a machine of these rungs. A rule with two names counts twice."""
    granted = GRANTED.get(level, {}) if refuses == "may_refuse_more" else {}
    return {**registry.rules(level, names), **HARNESS[level], **granted, **rare.RULES}


def machine(level: str, campaign: Campaign) -> type[RuleBasedStateMachine]:
    """The state machine of a level; each example of it is a Session of the campaign."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.session: Session | None = None
            _require_more(campaign)
            if not campaign.idle:
                with campaign.in_steps, _ending_at_a_mistake(()):
                    self.session = Session(campaign, level)

        def teardown(self) -> None:
            if self.session is not None:
                with campaign.in_steps, _ending_at_a_mistake(self.session.history):
                    self.session.finish()

    def rule_for(name: str, drawn_by: DrawRule) -> Callable[..., None]:
        def body(self: Any, drawn: int) -> None:
            _require_more(campaign)
            if self.session is None:
                campaign.steps += 1
                return
            with campaign.in_steps, _ending_at_a_mistake(self.session.history):
                self.session.take(drawn_by(self.session, spread(drawn)))

        body.__name__ = name
        return rule(drawn=DRAWS)(body)

    for name, drawn_by in rules_of(level, campaign.names, refuses=campaign.refuses).items():
        setattr(Machine, name, rule_for(name, drawn_by))
    Machine.__name__ = Machine.__qualname__ = f"{level.capitalize()}Machine"
    return Machine
