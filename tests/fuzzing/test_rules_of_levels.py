"""Rules that take steps of other rules: of which level, and what they leave behind."""

from collections.abc import Mapping
from typing import Any, Final

import pytest
from deep import deep_after
from spec_engine import SpecEngine, small

from conformance.fuzzing import rare
from conformance.fuzzing.state_machine import LEVELS, Campaign, Session
from conformance.history import Step
from conformance.rungs.record import DrawRule
from conformance.rungs.shared_generators import spread
from spec.vocabulary import CleanupMode, default_limits

SIZES: Final = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
DRAWS: Final = 150
FROM: Final[Mapping[str, bool]] = {name: name != "press" for name in rare.RULES}
"""Whether a rule draws from every level, and not from that of the history alone."""


def session_at(level: str) -> Session:
    """A new history of the specification at a level."""
    limits = default_limits(SIZES)
    campaign = Campaign(make=lambda: SpecEngine(SIZES, limits, CleanupMode.INCREMENTAL))
    return Session(campaign, level)


def listening(session: Session) -> list[tuple[str, str]]:
    """The level and the name of each rule of the session that is drawn from here on."""
    heard: list[tuple[str, str]] = []

    def noting(level: str, name: str, drawn_by: DrawRule) -> DrawRule:
        def noted(given: Any, drawn: int) -> Step:
            heard.append((level, name))
            return drawn_by(given, drawn)

        return noted

    session.levels = {
        level: {name: noting(level, name, drawn_by) for name, drawn_by in rules.items()}
        for level, rules in session.levels.items()
    }
    session.rules = session.levels[session.level]
    return heard


@pytest.mark.parametrize("level", deep_after(1, LEVELS))
@pytest.mark.parametrize("name", deep_after(2, FROM))
def test_a_rule_draws_from_every_level_that_is_its_own(name: str, level: str) -> None:
    """A rule draws by the rules of each level that it should, and leaves the level as it was."""
    session = session_at(level)
    heard = listening(session)
    rules = session.rules

    for drawn in range(DRAWS):
        session.take(rare.RULES[name](session, spread(drawn + 1)))

        assert rules is session.rules

    expected = {*session.levels} if FROM[name] else {level}
    assert expected == {of for of, _ in heard}
    assert not {*rare.RULES} & {rule for _, rule in heard}


@pytest.mark.parametrize("level", LEVELS)
def test_elsewhere_comes_to_every_rule_that_is_not_left_out(level: str) -> None:
    """Steps of elsewhere are by every rule of every level but those that take many themselves."""
    session = session_at(level)
    expected = {
        (of, name)
        for of, rules in session.levels.items()
        for name in rules
        if name not in rare._LEFT_OUT
    }
    heard = listening(session)

    direct = set[tuple[str, str]]()
    for drawn in range(6 * DRAWS):
        before = len(heard)
        rare.elsewhere(session, spread(drawn + 1))
        direct.add(heard[before])

    assert expected == direct
