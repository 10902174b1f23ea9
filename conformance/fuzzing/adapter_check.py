"""One scripted history that shows what an adapter does, and explains what goes wrong.

At each level the script is the warm-up, which takes each action once, and then steps with fixed
draws, until each outcome was seen that an engine with these declarations can show.
"""

import random
from collections.abc import Iterator
from functools import partial
from typing import Final

from attrs import define, field

from conformance.fuzzing.campaign import turns_of
from conformance.fuzzing.settings import Setting, make
from conformance.fuzzing.shrinking import shrink
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.fuzzing.warmup import warmup
from conformance.history import Step
from conformance.lockstep.called import not_new
from conformance.lockstep.lockstep import Violation, differing
from conformance.lockstep.run import Finding, finding_of, opened
from conformance.lockstep.watchdog import Watchdog
from conformance.protocol import AdapterMistake, Engine, EngineFailed, Factory, Poisonable, Profile
from conformance.rungs.coverage import POISONED, Coverage, offered_by
from conformance.rungs.shared_generators import WIDTH
from spec.fields import VIEWED
from spec.machines.actions import Clone, Reserve
from spec.view import View
from spec.vocabulary import INVALID, Reason

LEAST: Final = 400
"""The fewest draws of the script at a level."""
MOST: Final = 3000
"""The most draws, which end when each outcome was seen."""
SHRINK_SECONDS: Final = 5.0


@define
class Checked:
    """What the script has shown so far.

    shown: the fields of its views. compared: the actions whose results were compared. wanted: the
    outcomes to see. finding: where the engine went wrong, and hints: what an adapter may have to do
    with it.
    """

    profile: Profile | None = None
    shown: tuple[str, ...] = ()
    coverage: Coverage = field(factory=Coverage)
    compared: set[type] = field(factory=set)
    wanted: tuple[str, ...] = ()
    finding: Finding | None = None
    hints: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The outcomes that were not seen."""
        return [item for item in self.wanted if not self.coverage.outcomes[item]]


def check(
    factory: Factory, setting: Setting, *, found: Checked, watchdog: Watchdog | None = None
) -> None:
    """Take the script; `found` is kept current. Raises AdapterMistake or another InvalidInput."""
    made = partial(make, factory, *setting)
    campaign = Campaign(make=made, coverage=found.coverage, watchdog=watchdog)
    try:
        engine = opened(made)
    except EngineFailed as error:
        found.finding = finding_of((), error)
        return
    found.profile, first = engine.profile, engine.observe()
    found.shown = tuple(one.name for one in VIEWED if one.name not in first.hidden)
    words = offered_by(
        engine.profile,
        [setting.geometry],
        poisonable=isinstance(engine, Poisonable),
        cleanups=[setting.cleanup],
        limits=lambda _: setting.limits,
        rare=False,
    )
    found.wanted = tuple(sorted(word for word in words if ": " in word))
    _require_same("observe()", first, engine.observe(), "two views, one right after the other")
    for level in dict.fromkeys(turns_of(engine.profile.actions)):
        if found.finding is None:
            _take_script(campaign, level, found)
            _require_poisoned(engine, found)
            again = "it does not look like the first"
            _require_same("factory", first, opened(made).observe(), again)


def _take_script(campaign: Campaign, level: str, found: Checked) -> None:
    """Take the script at a level; a violation ends it."""
    assert found.profile is not None
    rng, session = random.Random(level), None
    try:
        session = Session(campaign, level)
        rules = sorted(session.rules)
        for step in warmup(found.profile.actions):
            session.take(step)
        for drawn in range(MOST):
            if drawn >= LEAST and not found.missing:
                break
            session.take(session.rules[rng.choice(rules)](session, rng.getrandbits(WIDTH)))
    except (Violation, EngineFailed):
        assert campaign.finding is not None
        found.finding = shrink(campaign.make, campaign.finding, seconds=SHRINK_SECONDS)
        found.hints = tuple(_hints(found.finding, found.profile))
    finally:
        if session is not None:
            found.compared |= session.lockstep.compared


def _require_poisoned(engine: Engine, found: Checked) -> None:
    """A poison has overwritten a dead cell."""
    if isinstance(engine, Poisonable) and not found.coverage.corners[POISONED]:
        raise AdapterMistake(
            "poison",
            "no dead cell that the view shows has changed",
            allowed="every dead cell overwritten",
            line="which leaves them as they were",
        )


def _require_same(call: str, first: View, second: View, what: str) -> None:
    fields = differing(first, second)
    if fields:
        wrong = f"{what}: it differs in {', '.join(fields)}"
        if call == "factory":
            raise not_new(wrong)
        why = "which must not change what it shows"
        raise AdapterMistake(call, wrong, line=why, allowed="the same view")


def _hints(finding: Finding, profile: Profile) -> Iterator[str]:
    """What an adapter may have to do with a violation."""
    violation = finding.violation
    if violation is None:
        return
    after, message = violation.after, finding.message
    if any(page < 0 for row in after.rows for page in row):
        yield f"a row shows a negative page: no page is {INVALID}, spec.vocabulary.INVALID"
    last = finding.history[-1]
    name = type(last).__name__
    besides = finding.clause == "EVT" or message.startswith("the statistic")
    is_done = not finding.trace and not message.startswith(("the action is", "the reason"))
    guards_slots = profile.guards(type(last), Reason.NO_FREE_SLOT)
    if _leaves_the_slot(last) and not guards_slots and (is_done or finding.trace):
        yield (
            f"{name} leaves the slot to the engine: guard NO_FREE_SLOT, or choose a slot and "
            "return it"
        )
    elif is_done and not besides and not differing(violation.before, after):
        yield f"the view is the same before and after: has apply a case for {name}?"
    if "the specification refuses too" in message:
        yield (
            "an exception that is a refusal must leave the view as it was: check before the "
            "engine changes, raise Refused, or declare the reason in Profile.guarded"
        )
    yield from _declarations(finding, profile)
    if "should be refused" in message or "the reason is" in message:
        yield f"docs/actions.md has the reasons of {name} in the order in which they are asked"
    if "is done, should be refused" in message:
        yield "a check that the layer above the engine makes is declared in Profile.guarded"


def _leaves_the_slot(step: Step) -> bool:
    """Whether an action leaves it to the engine which free slot it takes."""
    match step:
        case Reserve(None) | Clone(_, None):
            return True
    return False


def _declarations(finding: Finding, profile: Profile) -> Iterator[str]:
    """What the profile may have to declare."""
    clause = finding.clause
    if clause == "DET" and profile.policy == "lowest":
        yield 'an engine that takes any free page declares policy="any"'
    refused = finding.message.startswith("the action is refused: ")
    if refused and profile.refuses == "exact":
        yield 'an engine that refuses more than it must declares refuses="may_refuse_more"'
    cloned = any(isinstance(step, Clone) for step in finding.history)
    lacks = isinstance(finding.history[-1], Clone) and Reason.OUT_OF_PAGES.name in finding.message
    if cloned and (clause == "SHARE" or lacks) and profile.copy == "eager":
        yield 'an engine that copies a partial page at the first append declares copy="lazy"'
    if clause == "ROW":
        yield (
            f"an engine that takes pages ahead declares lookahead (here {profile.lookahead}), one "
            f'that takes those of a request declares reserve (here "{profile.reserve}")'
        )
