"""One scripted history that shows what an adapter does, and explains what goes wrong.

At each level the script is the warm-up, which takes each action once, and then steps with fixed
draws, until each outcome was seen that an engine with these declarations can show.
"""

import random
from collections.abc import Iterator
from functools import partial
from typing import Final

from attrs import define, field

from conformance.fuzzing.campaign import Setting, make, turns_of
from conformance.fuzzing.shrinking import shrink
from conformance.fuzzing.state_machine import Campaign, Session
from conformance.fuzzing.warmup import warmup
from conformance.lockstep.called import not_new
from conformance.lockstep.lockstep import Violation, differing
from conformance.lockstep.run import Finding, finding_of, opened
from conformance.lockstep.watchdog import Watchdog
from conformance.protocol import AdapterMistake, Engine, EngineFailed, Factory, Poisonable, Profile
from conformance.rungs.coverage import POISONED, Coverage, offered_by
from spec.fields import VIEWED
from spec.view import View
from spec.vocabulary import INVALID

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
    words = offered_by(engine.profile, [setting[0]], poisonable=isinstance(engine, Poisonable))
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
            session.take(session.rules[rng.choice(rules)](session, rng.getrandbits(64)))
    except (Violation, EngineFailed):
        assert campaign.finding is not None
        found.finding = shrink(campaign.make, campaign.finding, seconds=SHRINK_SECONDS)
        found.hints = tuple(_hints(found.finding))
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


def _hints(finding: Finding) -> Iterator[str]:
    """What an adapter may have to do with a violation."""
    violation = finding.violation
    if violation is None:
        return
    after = violation.after
    if any(page < 0 for row in after.rows for page in row):
        yield f"a row shows a negative page: no page is {INVALID}, spec.vocabulary.INVALID"
    name = type(finding.history[-1]).__name__
    is_done = not finding.trace and not finding.message.startswith(("the action is", "the reason"))
    if is_done and not differing(violation.before, after):
        yield f"the view is the same before and after: has apply a case for {name}?"
    if finding.clause == "DET":
        yield 'an engine that takes any free page declares policy="any"'
    if "should be refused" in finding.message or "the reason is" in finding.message:
        yield f"docs/actions.md has the reasons of {name} in the order in which they are asked"
    if "is done, should be refused" in finding.message:
        yield "a check that the layer above the engine makes is declared in Profile.guarded"
