"""The Hypothesis state machines, one per level, generic over the engine under test.

A rule draws one integer and a move turns it into an action that fits where the specification
stands. The bodies can be left empty, which measures what the draws alone cost.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from conformance.fuzzing import boundary_cases, generators
from conformance.fuzzing.coverage import Coverage
from conformance.history import Attend, PoisonDead, Step
from conformance.lockstep.comparer import Lockstep, Oracle, Violation
from conformance.lockstep.run import Finding, MakeEngine, finding_of, opened, take
from conformance.lockstep.watchdog import STEP_SECONDS, Watchdog
from conformance.protocol import Action, EngineFailed, Poison, Poisonable
from conformance.runtime.stopwatch import Stopwatch
from spec.machines import actions as act
from spec.state import State
from spec.vocabulary import ResetMode

DRAWS: Final = st.integers(0, 2**24 - 1)

_MASK: Final = 2**64 - 1

Plan = Callable[["Session", int], Step]
"""From a session and a draw to the step of one rule."""

CANDIDATES: Final = 5
"""Steps among which the rule `rare` chooses."""

FILLING: Final = 6
"""Steps at most by which the rule `brim` fills the pool."""


@define
class Campaign:
    """What the examples of one run share.

    make: a new engine in its initial state. idle: leave the bodies of the rules empty. climb: also
    check the specification against its own lower rungs. oracle: see `Lockstep`. watchdog: told of
    each step. step_seconds: what a step may take. finding: the first failure. in_steps: what making
    engines and the bodies of the rules took. in_engine: what of that the engine took. is_up:
    whether the time is up: then no more steps are taken.
    """

    make: MakeEngine
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


class TimeIsUp(BaseException):
    """Ends a turn between two steps.

    Hypothesis takes an Exception for something to be tried again; this goes through at once, as
    Ctrl-C does.
    """


class Session:
    """One example: an engine and the specification in lockstep, and the history so far."""

    def __init__(self, campaign: Campaign, level: str) -> None:
        self.campaign = campaign
        self.level = level
        self.outcomes: Counter[object] = Counter()
        try:
            with campaign.in_engine:
                engine = opened(campaign.make)
            self.lockstep = Lockstep(
                engine,
                climb=campaign.climb,
                oracle=campaign.oracle,
                watch=campaign.in_engine,
            )
        except (Violation, EngineFailed) as error:  # a new engine that is not as a first one is
            campaign.finding = finding_of((), error)
            raise
        self.actions = self.lockstep.engine.profile.actions
        self.history: list[Step] = []
        self.serial = 0

    @property
    def state(self) -> State:
        """Where the specification stands."""
        return self.lockstep.state

    def next_id(self) -> int:
        """A request id that no request of this example has."""
        self.serial += 4
        return self.serial

    def take(self, step: Step) -> None:
        """Take one step on both sides and count it; an action that is not offered is left out."""
        if isinstance(step, Action) and type(step) not in self.actions:
            return
        before = self.state
        self.history.append(step)
        if self.campaign.watchdog is not None:
            self.campaign.watchdog.begin(self.history, self.campaign.step_seconds)
        try:
            reasons = take(self.lockstep, step, seconds=self.campaign.step_seconds)
        except Violation as violation:
            self.campaign.finding = finding_of(self.history, violation)
            raise
        finally:
            if self.campaign.watchdog is not None:
                self.campaign.watchdog.end()
        self.campaign.steps += 1
        if isinstance(step, PoisonDead):
            if isinstance(self.lockstep.engine, Poisonable):
                self.campaign.coverage.poisoned()
        elif not isinstance(step, Attend):
            self.outcomes[type(step), reasons] += 1
            self.campaign.coverage.record(before, step, reasons, self.state)

    def times_seen(self, step: Step) -> int:
        """How often this example had an action of this kind with the outcome it would have now."""
        if not isinstance(step, Action) or type(step) not in self.actions:
            return 1 << 30
        found = self.lockstep.machine.refusals(self.state, step)
        return self.outcomes[type(step), frozenset(refusal.reason for refusal in found)]


def _one(move: Callable[[State, int], Action]) -> Plan:
    return lambda session, drawn: move(session.state, drawn)


def _named(move: Callable[[State, int, int], Action]) -> Plan:
    return lambda session, drawn: move(session.state, drawn, session.next_id())


def _submit(session: Session, drawn: int) -> Step:
    kind = boundary_cases.reserving if drawn % 3 == 2 else generators.submit
    return kind(session.state, drawn // 3, session.next_id())


def _constant(*steps: Step) -> Plan:
    """One of these steps."""
    return lambda _session, drawn: steps[drawn % len(steps)]


def _when(useful: Callable[[State], object], plan: Plan, otherwise: Plan) -> Plan:
    """A plan where it has something to do, and rarely where it has not."""

    def chosen(session: Session, drawn: int) -> Step:
        anyway, drawn = drawn % 12 == 11, drawn // 12
        return (plan if anyway or useful(session.state) else otherwise)(session, drawn)

    return chosen


def _rarely(odds: int, plan: Plan, otherwise: Plan) -> Plan:
    """A plan once in `odds`."""
    return lambda session, drawn: (plan if drawn % odds == odds - 1 else otherwise)(
        session, drawn // odds
    )


def _advance(session: Session, drawn: int) -> Step:
    """The next step of some sequence on its way to being written: prompts grow up over rules."""
    return generators.advance(session.state, drawn, session.next_id())


def _brim(session: Session, drawn: int) -> Step:
    """Fill the pool, and ask for one page more; first, mostly, have something to clone."""
    if drawn % 3 and not boundary_cases.has_partial(session.state):
        return (_advance if session.level == "allocator" else _PREFILL)(session, drawn // 3)
    for _ in range(FILLING):
        step = boundary_cases.fill(session.state, drawn)
        if step is None:
            break
        session.take(step)
    return boundary_cases.overfill(session.state, drawn, session.next_id())


def _rare(session: Session, drawn: int) -> Step:
    """Of a few steps that other rules might take, the one whose outcome this example has least."""
    plans = [plan for plan in LEVELS[session.level].values() if plan not in {_brim, _rare}]
    chosen = [
        plans[(drawn + index * drawn // 7) % len(plans)](session, drawn // (index + 2))
        for index in range(CANDIDATES)
    ]
    return min(chosen, key=session.times_seen)


_PREFILL: Final = _named(generators.prefill)
_SNUG: Final = _named(boundary_cases.snug)
_ROUND: Final = _constant(act.Round(), act.Round(), act.Generate())
_POISON: Final = _constant(*(PoisonDead(kind) for kind in Poison))
_RESET: Final = _constant(act.Reset(), act.Reset(ResetMode.PHYSICAL))
_TAKE: Final = _constant(act.TakeOutputs())


def _settled(state: State) -> bool:
    """Whether there is something to clone and a slot to clone it into."""
    sequences = state.sequences
    return None in sequences and any(one and one.written and one.settled for one in sequences)


def _queued(state: State) -> object:
    return state.queue


def _outputs(state: State) -> object:
    return state.outputs


def _finished(state: State) -> object:
    return state.finished


def _waiting(state: State) -> object:
    return state.waiting


def _used(state: State) -> bool:
    return any(state.sequences)


_CLONE: Final = _when(_settled, _one(generators.clone), _advance)
_ENQUEUE: Final = _when(_used, _one(generators.enqueue), _advance)
SLOTS: Final[dict[str, Plan]] = {
    "reserve": _one(generators.reserve),
    "assign": _named(generators.assign),
    "advance": _advance,
    "advance_again": _advance,
    "allocate": _when(_used, _one(generators.allocate), _advance),
    "brim": _brim,
    "brim_again": _brim,
    "rare": _rare,
    "write": _when(_used, _one(generators.write), _advance),
    "clone": _CLONE,
    "clone_again": _CLONE,
    "enqueue": _ENQUEUE,
    "pack": _when(_queued, _constant(act.Pack()), _ENQUEUE),
    "purge": _when(_queued, _one(generators.purge), _ENQUEUE),
    "free": _when(_used, _one(generators.release), _advance),
    "poison": _rarely(3, _POISON, _CLONE),
    "attend": _rarely(3, _constant(Attend()), _advance),
    "reset": _rarely(8, _RESET, _one(generators.allocate)),
}
_GO_ON: Final = _when(_queued, _ROUND, _PREFILL)
DECODE: Final[dict[str, Plan]] = {
    "prefill": _PREFILL,
    "round": _when(_queued, _constant(act.Round()), _PREFILL),
    "go_on": _GO_ON,
    "clone": _when(_settled, _one(generators.clone), _PREFILL),
    "reserve": _rarely(3, _one(generators.reserve), _GO_ON),
    "brim": _brim,
    "snug": _SNUG,
    "rare": _rare,
    "enqueue": _when(_queued, _one(generators.enqueue), _PREFILL),
    "free": _when(_used, _one(generators.release), _PREFILL),
    "free_finished": _when(_finished, _constant(act.FreeFinished()), _GO_ON),
    "take_outputs": _when(_outputs, _TAKE, _GO_ON),
    "poison": _rarely(2, _POISON, _GO_ON),
    "attend": _rarely(3, _constant(Attend()), _GO_ON),
    "reset": _rarely(8, _RESET, _PREFILL),
}
_ADMIT: Final = _when(_waiting, _constant(act.Admit()), _submit)
_SERVE: Final = _when(_queued, _ROUND, _ADMIT)
REQUESTS: Final[dict[str, Plan]] = {
    "submit": _submit,
    "admit": _ADMIT,
    "admit_again": _rarely(3, _constant(act.Admit()), _ADMIT),
    "serve": _SERVE,
    "take_outputs": _when(_outputs, _TAKE, _SERVE),
    "rare": _rare,
    "poison": _rarely(2, _POISON, _SERVE),
    "reset": _rarely(8, _RESET, _SERVE),
}
LEVELS: Final = {"allocator": SLOTS, "decode": DECODE, "requests": REQUESTS}
"""The rules of each level. A rule that stands twice is drawn twice as often."""


def spread(drawn: int) -> int:
    """A draw as 64 even bits, 0 as 0: the splitmix64 mix.

    Hypothesis likes small integers, and each choice on the way takes digits off: without this a
    request of several choices and a temperature was one in a thousand.
    """
    mixed = drawn * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31


def machine(level: str, campaign: Campaign) -> type[RuleBasedStateMachine]:
    """The state machine of a level; each example of it is a Session of the campaign."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.session: Session | None = None
            if not campaign.idle:
                with campaign.in_steps:
                    self.session = Session(campaign, level)

    def rule_for(name: str, plan: Plan) -> Callable[..., None]:
        def body(self: Any, drawn: int) -> None:
            if campaign.is_up():
                raise TimeIsUp
            if self.session is None:
                campaign.steps += 1
                return
            with campaign.in_steps:
                self.session.take(plan(self.session, spread(drawn)))

        body.__name__ = name
        return rule(drawn=DRAWS)(body)

    for name, plan in LEVELS[level].items():
        setattr(Machine, name, rule_for(name, plan))
    Machine.__name__ = Machine.__qualname__ = f"{level.capitalize()}Machine"
    return Machine
