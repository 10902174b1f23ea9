"""Rules that take what a run has seen least: refusals, and steps after one another.

They draw steps by the rules of every level, change one value in each, and ask the guards of the
specification what would come of them. So a refusal that the other rules hardly ever draw is
reached without a generator of its own.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

from attrs import fields

from conformance.history import Step
from conformance.protocol import Action
from conformance.rungs.changes import changed
from conformance.rungs.record import DrawRule, Session
from conformance.rungs.shared_generators import WIDTH, Digits

DRAWN: Final = 2
"""The number of steps that are drawn by other rules."""
CHANGES: Final = 4
"""The number of changed forms of each."""
MOST_IN_A_ROW: Final = 8
"""The most steps that one rule takes in a row."""


def rare(session: Session, drawn: int) -> Step:
    """Some steps in a row, each with the rarest outcome that is found."""
    rng = Random(drawn)
    for _ in range(rng.randrange(MOST_IN_A_ROW)):
        session.take(_rarest(session, rng))
    return _rarest(session, rng)


def _rarest(session: Session, rng: Random) -> Step:
    """Of steps of other rules and changed forms of them, the one with the rarest outcome.

    Or an action that is done at once or behind another step, whichever was seen less often: what
    comes of an action without fields is decided by the state alone.
    """
    kind = session.least_seen(rng)
    then = _done(session, rng, kind)
    aim = kind if then is None else session.least_seen_before(rng, kind)
    found = [
        (session.times_seen(step, then), number, step)
        for number, step in enumerate(_candidates(session, rng, aim))
    ]
    times, _, step = min(found, key=lambda one: one[:2])
    if then is None:
        return step
    if times <= session.times_seen(then):
        session.take(step)
    return then


def _done(session: Session, rng: Random, kind: type) -> Action | None:
    """An action of this kind: the one without fields, or sometimes one that is done now."""
    if not fields(kind):
        only: Action = kind()
        return only
    if rng.getrandbits(1):
        return None
    for step in _candidates(session, rng, kind):
        if isinstance(step, Action) and type(step) is kind and session.is_done(step):
            return step
    return None


def _candidates(session: Session, rng: Random, kind: type) -> Iterator[Step]:
    """Steps of this kind, as far as one was seen, and others; each with changed forms."""
    if kind in session.recent:
        yield from _with_changes(session, rng, session.recent[kind])
    every = [(level, name) for level, rules in session.levels.items() for name in _names(rules)]
    known = sorted(session.drawn_by.get(kind, set()).intersection(every)) if fields(kind) else every
    for number in range(DRAWN):
        level, name = rng.choice(known if known and number else every)
        step = session.drawn_at(level, name, rng.getrandbits(WIDTH))
        session.drawn_by.setdefault(type(step), set()).add((level, name))
        yield from _with_changes(session, rng, step)


def _with_changes(session: Session, rng: Random, step: Step) -> Iterator[Step]:
    yield step
    for _ in range(CHANGES if isinstance(step, Action) else 0):
        other = changed(session.state, step, Digits(rng.getrandbits(WIDTH)))
        if other is not None:
            yield other


def press(session: Session, drawn: int) -> Step:
    """Steps of one rule, one after another, so that what they fill becomes full."""
    rng = Random(drawn)
    rule = session.rules[rng.choice(_names(session.rules))]
    for _ in range(rng.randrange(MOST_IN_A_ROW)):
        session.take(rule(session, rng.getrandbits(WIDTH)))
    return rule(session, rng.getrandbits(WIDTH))


def elsewhere(session: Session, drawn: int) -> Step:
    """A step of a rule of another level, so that the actions of all levels follow each other."""
    rng = Random(drawn)
    level = rng.choice([*session.levels])
    name = rng.choice(_names(session.levels[level]))
    return session.drawn_at(level, name, rng.getrandbits(WIDTH))


RULES: Final[Mapping[str, DrawRule]] = {
    "rare": rare,
    "rare_again": rare,
    "press": press,
    "elsewhere": elsewhere,
    "elsewhere_again": elsewhere,
}
_LEFT_OUT: Final = frozenset(
    {
        "boundary",
        "boundary_again",
        "refill",
        "retry",
        "serve_arrivals",
        "begin_meanwhile",
        "reuse",
        "choices_at_edge",
        "full_outputs",
        "ended_name",
        "slide",
        "successor",
        "wide_round",
        *RULES,
    }
)
"""The rules that take many steps themselves, or one again, and those of this module."""


def _names(rules: Mapping[str, DrawRule]) -> list[str]:
    return [name for name in rules if name not in _LEFT_OUT]
