"""Draws that rungs share: digits of one integer, slots, prompts and parameters.

Uniform draws miss the states where bugs live. So lengths lie on and around page boundaries, slots
are chosen among those that an action can use, pools are filled exactly or one page past full, and
now and then an id or a position is wrong on purpose. Small integers give small actions, so that a
failing history shrinks.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from conformance.history import Step
from conformance.protocol import Action
from conformance.rungs.record import DrawRule, Session
from spec import pool
from spec.machines import naive
from spec.state import State
from spec.vocabulary import INVALID, Params, Request, Tokens

T = TypeVar("T")

ALPHABET: Final = 5
"""Prompts use few tokens, so that different sequences often have the same prefix."""


class Digits:
    """The digits of one drawn integer, taken one after another; 0 when it is used up."""

    def __init__(self, drawn: int) -> None:
        self._left = drawn

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1."""
        self._left, digit = divmod(self._left, max(bound, 1))
        return digit

    def one_of(self, options: Sequence[T]) -> T:
        """One of the options; the first for 0."""
        return options[self.below(len(options))]

    def rarely(self, odds: int) -> bool:
        """True once in `odds`, never for 0."""
        return self.below(odds) == odds - 1


def one(draw: Callable[[State, int], Action]) -> DrawRule:
    """A rule that draws from the state alone."""
    return lambda session, drawn: draw(session.state, drawn)


def named(draw: Callable[[State, int, int], Action]) -> DrawRule:
    """A rule that needs the id of a new request."""
    return lambda session, drawn: draw(session.state, drawn, session.next_id())


def constant(*steps: Step) -> DrawRule:
    """A rule that takes one of these steps."""
    return lambda _session, drawn: steps[drawn % len(steps)]


def when(useful: Callable[[State], object], rule: DrawRule, otherwise: str) -> DrawRule:
    """A rule where it has something to do, rarely where it has not; otherwise another rule."""

    def chosen(session: Session, drawn: int) -> Step:
        anyway, drawn = drawn % 12 == 11, drawn // 12
        there = anyway or useful(session.state)
        return (rule if there else session.rules[otherwise])(session, drawn)

    return chosen


def rarely(odds: int, rule: DrawRule, otherwise: str) -> DrawRule:
    """A rule once in `odds`; otherwise another rule."""

    def chosen(session: Session, drawn: int) -> Step:
        there = drawn % odds == odds - 1
        return (rule if there else session.rules[otherwise])(session, drawn // odds)

    return chosen


def has_settled(state: State) -> bool:
    """Whether there is something to clone and a slot to clone it into."""
    found = state.sequences
    return None in found and any(one and one.written and one.settled for one in found)


def has_queued(state: State) -> object:
    """Whether a token is queued."""
    return state.queue


def has_used(state: State) -> bool:
    """Whether a slot is in use."""
    return any(state.sequences)


def used_slots(state: State) -> list[int]:
    """The slots that hold a sequence."""
    return [slot for slot, sequence in enumerate(state.sequences) if sequence is not None]


def free_slots(state: State) -> list[int]:
    """The slots that are not in use."""
    return [slot for slot, sequence in enumerate(state.sequences) if sequence is None]


def wild_slot(state: State, digits: Digits, good: Sequence[int]) -> int:
    """Mostly one of the good slots, now and then any other, rarely one out of range."""
    if good and not digits.rarely(7):
        return digits.one_of(good)
    slots = state.geometry.slots
    wild: tuple[int, ...] = (slots, -1, INVALID, *range(slots))
    return digits.one_of(wild)


def allocated(state: State, slot: int) -> int:
    """The cells that a slot has; 0 if it is unused."""
    sequence = state.sequences[slot]
    return 0 if sequence is None else sequence.allocated


def first_queued(state: State, slot: int, otherwise: int) -> int:
    """The position of the first queued token of a slot."""
    waiting: list[int] = [one.position for one in state.queue if one.slot == slot]
    return min(waiting) if waiting else otherwise


def request(state: State, digits: Digits, serial: int) -> Request:
    """A request, sometimes of several choices; rarely of more than there are slots."""
    prompt = prompt_of(state, digits)
    too_many = digits.rarely(12)
    choices = state.geometry.slots + 1 if too_many else digits.one_of((1, 1, 2, 3))
    params = params_of(state, digits, prompt, choice=0)
    return Request(id=serial, prompt=prompt, params=params, n_generations=choices)


def prompt_of(state: State, digits: Digits) -> Tokens:
    """A prompt that ends on or beside a page boundary, or just fits the pool."""
    size, most = state.geometry.page_size, state.geometry.max_len
    free = pool.free_count(state.counts)
    lengths = (1, size, size + 1, 2 * size - 1, most - 1, free * size, free * size + 1, most // 2)
    longest = most + 1 if digits.rarely(12) else max(1, most - 1)
    length = max(1, min(digits.one_of(lengths), longest))
    first = digits.below(ALPHABET)
    return tuple((first + index // 2) % ALPHABET for index in range(length))


def params_of(state: State, digits: Digits, prompt: Tokens, *, choice: int) -> Params:
    """A limit that often ends exactly at a page boundary; sometimes a stop sequence."""
    size, left = state.geometry.page_size, state.geometry.max_len - len(prompt)
    boundary = size - len(prompt) % size
    options = (boundary + 1, 1, size + boundary, boundary, left, 3, left + 1)
    max_new = max(1, digits.one_of(options))
    temperature = digits.one_of((0.0, 1.0))
    params = Params(max_new=max_new, temperature=temperature, seed=digits.below(3))
    window = state.geometry.window
    return _with_stop(params, digits, prompt, choice, window) if digits.rarely(4) else params


def _with_stop(
    params: Params, digits: Digits, prompt: Tokens, choice: int, window: int | None
) -> Params:
    """A stop sequence that naive decode would meet, or one that straddles the prompt and is not."""
    capped = Params(
        max_new=min(params.max_new, 8), temperature=params.temperature, seed=params.seed
    )
    text = naive.generate(prompt, capped, choice, window=window)[0]
    start = digits.below(len(text))
    stop = text[start : start + 1 + digits.below(2)]
    straddling = (prompt[-1], *text[:1])
    stops = digits.one_of(((stop,), (straddling, stop), (straddling,)))
    return Params(
        max_new=params.max_new, temperature=params.temperature, seed=params.seed, stops=stops
    )
