"""Generators that rungs share: digits of one integer, slots, prompts and parameters.

Uniform draws miss the states where bugs live. So lengths lie on and around page boundaries, slots
are chosen among those that an action can use, pools are filled exactly or one page past full, and
some ids and positions are wrong on purpose. Small integers give small actions, so that a
failing history shrinks.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from attrs import evolve

from conformance.history import Step
from conformance.protocol import Action
from conformance.rungs.record import DrawRule, Session
from spec import pool
from spec.machines import naive
from spec.machines.actions import Deliver, Reset, Retire
from spec.machines.pages import copying, row_pages
from spec.machines.window import cells_in_ring
from spec.state import State
from spec.vocabulary import INVALID, Params, Request, Tokens

T = TypeVar("T")

WIDTH: Final = 256
"""The bits of a drawn integer: a prefill of several requests takes more digits than 64 have."""
_MASK: Final = 2**64 - 1
_STEP: Final = 0x9E3779B97F4A7C15
ALPHABET: Final = 5
"""Prompts use few tokens, so that different sequences often have the same prefix."""


NAMES: Final = (0, 1)
"""A few request ids that are used again, taken or freed; `Session.next_id` gives none of them."""
LARGEST: Final = 2**31 - 1
LARGE: Final = (LARGEST, 2**24 + 1, LARGEST - 1, 2**16)
"""Large ids, choices and seeds: at the end of an int32, and where a float32 or 16 bits round."""
ROUND: Final = (*(10**power for power in range(1, 10)), 2**8, 2**16, 2**24, 2**30)
"""Numbers by which an engine may multiply one part of a name so as to add the other."""
TEMPERATURES: Final = (0.0, 1.0, 0.0, 1.0, 0.5, 2**-20, 1e-45, 1.5)
"""Greedy, usual ones, and small ones: the smallest is not 0 in a float32, but for a flush to 0."""


BEFORE_ZERO: Final = 74042
"""A greedy draw after this token alone is 0: a token that is easily taken for none."""


def spread(drawn: int) -> int:
    """Spread a draw evenly over WIDTH bits with the mixing function of splitmix64; 0 stays 0.

    Hypothesis favours small integers, and each choice takes digits off the draw: without this, one
    request in a thousand had several choices and a temperature.
    """
    if drawn == 0:
        return 0
    words = (_mixed(drawn + number * _STEP) for number in range(WIDTH // 64))
    return sum(word << 64 * number for number, word in enumerate(words))


def _mixed(word: int) -> int:
    mixed = word * _STEP & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31


class Digits:
    """The digits of one drawn integer, taken one after another; 0 when none is left."""

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
        """True for one draw in `odds`; False for 0."""
        return self.below(odds) == odds - 1


def one(draw: Callable[[State, int], Action]) -> DrawRule:
    """A rule that needs only the state and the drawn integer."""
    return lambda session, drawn: draw(session.state, drawn)


def named(draw: Callable[[State, int, int], Action]) -> DrawRule:
    """A rule that also needs an id for a new request."""
    return lambda session, drawn: draw(session.state, drawn, session.next_id())


def constant(*steps: Step) -> DrawRule:
    """A rule that takes one of these steps."""
    return lambda _session, drawn: steps[drawn % len(steps)]


def when(useful: Callable[[State], object], rule: DrawRule, otherwise: str) -> DrawRule:
    """This rule where the state makes it useful, and rarely elsewhere; `otherwise` in its place."""

    def chosen(session: Session, drawn: int) -> Step:
        anyway, drawn = drawn % 12 == 11, drawn // 12
        there = anyway or useful(session.state)
        return (rule if there else session.rules[otherwise])(session, drawn)

    return chosen


def rarely(odds: int, rule: DrawRule, otherwise: str) -> DrawRule:
    """This rule for one draw in `odds`; the rule named `otherwise` for the others."""

    def chosen(session: Session, drawn: int) -> Step:
        there = drawn % odds == odds - 1
        return (rule if there else session.rules[otherwise])(session, drawn // odds)

    return chosen


def has_settled(state: State) -> bool:
    """Whether a sequence can be cloned and a slot is free for the clone."""
    settled = any(one and one.written and one.settled for one in state.sequences)
    return settled and bool(state.unused_slots)


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
    """The slots that hold no sequence, and that no step in flight holds."""
    return list(state.unused_slots)


def deliver_all(session: Session) -> None:
    """Every step in flight retires and is delivered."""
    flights = session.state.flights
    for _ in range(sum(not flight.retired for flight in flights)):
        session.take(Retire())
    for _ in flights:
        session.take(Deliver())


def begin_anew(session: Session) -> None:
    """The engine is reset, with no step in flight."""
    deliver_all(session)
    session.take(Reset())


def wild_slot(state: State, digits: Digits, good: Sequence[int]) -> int:
    """Mostly one of the good slots, sometimes any slot, rarely one out of range."""
    if good and not digits.rarely(7):
        return digits.one_of(good)
    slots = state.geometry.slots
    wild: tuple[int, ...] = (slots, -1, INVALID, -(2**31), *range(slots))
    return digits.one_of(wild)


def allocated(state: State, slot: int) -> int:
    """The number of cells allocated to a slot; 0 if it is unused."""
    sequence = state.sequences[slot]
    return 0 if sequence is None else sequence.allocated


def cells_in(state: State, pages: int, slot: int | None = None) -> int:
    """The most cells that a slot can allocate for this many pages; None: a new sequence.

    Where `max_len` is the bound, it is the cells of the row and of these pages.
    """
    sequence = None if slot is None else state.sequences[slot]
    row, start = ((), 0) if sequence is None else (sequence.row, sequence.allocated)
    reserved = 0 if sequence is None else sequence.reserved
    copied = len(copying(state, () if sequence is None or slot is None else (slot,)))
    most = (len(row) + pages - copied) * state.geometry.page_size - start
    return max(
        0,
        bisect_right(
            range(most + 1),
            pages - copied,
            key=lambda cells: row_pages(state, start + cells, reserved) - len(row),
        )
        - 1,
    )


def first_queued(state: State, slot: int, otherwise: int) -> int:
    """The position of the first queued token of a slot; `otherwise` if none is queued."""
    waiting: list[int] = [one.position for one in state.queue if one.slot == slot]
    return min(waiting) if waiting else otherwise


def name_of(state: State, digits: Digits, serial: int) -> int:
    """A request id: mostly a new one, sometimes one that is used again, is large, or is in use."""
    if not digits.rarely(5):
        return serial
    held = (detail.request for detail in state.details if detail is not None)
    waiting = (request.id for request in state.waiting)
    return digits.one_of((*NAMES, *NAMES, *LARGE[:2], *held, *waiting))


def taken_name(state: State, digits: Digits, request: int | None = None) -> tuple[int, int] | None:
    """A request and a choice that are taken, by each cause as often: its output is not taken, or
    the sequence decodes, or it has finished and only keeps its slot. None: nothing is taken.

    request: of this one alone.
    """
    waiting = {(one.request, one.choice) for one in state.outputs}
    held = [one for one in state.details if one is not None]
    decoding = {(one.request, one.choice) for one in held if not one.finished}
    kept = {(one.request, one.choice) for one in held} - decoding - waiting
    names = (
        sorted(name for name in cause if request in (None, name[0]))
        for cause in (waiting, decoding, kept)
    )
    there = [cause for cause in names if cause]
    return digits.one_of(digits.one_of(there)) if there else None


def colliding_choices(state: State, digits: Digits, request: int) -> tuple[int, ...]:
    """Choices with which this request is another one, if a name is packed into one number."""
    base = digits.one_of(ROUND)
    live = [(one.request, one.choice) for one in state.details if one is not None]
    taken = [*live, *((one.request, one.choice) for one in state.outputs)]
    packed = [(other - request) * base + choice for other, choice in taken if other > request]
    return tuple(choice for choice in packed if choice <= LARGEST)


def request(state: State, digits: Digits, serial: int) -> Request:
    """A request, sometimes of several choices, or one for each slot; rarely of more than that."""
    name = name_of(state, digits, serial)
    prompt = prompt_of(state, digits)
    too_many = digits.rarely(12)
    slots = state.geometry.slots
    choices = digits.one_of((slots + 1, slots + 4, LARGEST) if too_many else (1, 1, 2, 1, 3, slots))
    params = params_of(state, digits, prompt, choice=0)
    return Request(id=name, prompt=prompt, params=params, n_generations=choices)


def token_of(digits: Digits) -> int:
    """A forced token: one of a few, rarely the largest."""
    return LARGEST if digits.rarely(16) else digits.below(ALPHABET)


def prompt_of(state: State, digits: Digits) -> Tokens:
    """A prompt of a boundary length: around a page, the free pages, or `max_len`.

    Sometimes that of another sequence, so that their texts are alike; rarely BEFORE_ZERO, or the
    largest token.
    """
    held = zip(state.sequences, state.details, strict=True)
    live = [one.tokens[: detail.prompt_len] for one, detail in held if one and detail]
    others, kind = [*live, *(output.prompt for output in state.outputs)], digits.below(24)
    if others and kind >= 20:
        return digits.one_of(others)
    if kind == 19:
        return (BEFORE_ZERO,)
    if kind == 18:
        return (LARGEST,)
    size, most = state.geometry.page_size, state.geometry.max_len
    if state.capacity.ring and digits.below(3):
        most = cells_in_ring(state, 0) + 1
    fill = cells_in(state, pool.free_count(state.in_use))
    lengths = (1, size, size + 1, 2 * size - 1, most - 1, fill, fill + 1, most // 2)
    longest = most + 1 if digits.rarely(12) else max(1, most - 1)
    length = max(1, min(digits.one_of(lengths), longest))
    first = digits.below(ALPHABET)
    return tuple((first + index // 2) % ALPHABET for index in range(length))


def params_of(state: State, digits: Digits, prompt: Tokens, *, choice: int) -> Params:
    """Parameters with a limit that often ends at a page boundary; sometimes stop sequences.

    After BEFORE_ZERO alone it is the token 0 that stops.
    """
    if prompt == (BEFORE_ZERO,) and digits.below(2):
        return Params(max_new=3, stops=((0,),))
    size, left = state.geometry.page_size, state.geometry.max_len - len(prompt)
    boundary = size - len(prompt) % size
    options = (boundary + 1, 1, size + boundary, boundary, left, 3, left + 1)
    max_new = LARGEST if digits.rarely(40) else max(1, digits.one_of(options))
    params = Params(
        max_new=max_new,
        temperature=digits.one_of(TEMPERATURES),
        seed=digits.one_of(LARGE) if digits.rarely(8) else digits.below(3),
    )
    if not digits.rarely(4):
        return params
    return evolve(params, stops=_stops(state, digits, prompt, params, choice))


def _stops(
    state: State, digits: Digits, prompt: Tokens, params: Params, choice: int
) -> tuple[Tokens, ...]:
    """Stop sequences that naive decoding generates, or that begin in the prompt.

    The second kind must not match: stop sequences are matched against generated tokens only. Some
    are as long, or as many, as the limits allow, rarely more; some end at a page boundary; some
    share their beginning.
    """
    limits, size = state.limits, state.geometry.page_size
    capped = evolve(params, max_new=min(params.max_new, 8))
    text = naive.generate(prompt, capped, choice, window=state.geometry.window)[0]
    start, most = digits.below(len(text)), limits.stop_len
    stop = text[start : start + digits.one_of((1, 2, most))][:most]
    boundary = text[: size - len(prompt) % size][-most:]
    straddling = (prompt[-1], *text[:1])[:most]
    twin = (*stop[:-1], stop[-1] ^ 1)  # differs in its last token only
    stops = digits.one_of(
        (
            (stop,),
            (straddling, stop),
            (straddling,),
            (twin, stop),
            (stop, (*stop, 0)[:most]),
            ((*stop, 0)[:most],),
            ((0, *stop)[:most],),
            (boundary,),
            (text[-most:],),
        )
    )[: limits.stops]
    match digits.below(16):
        case 10 | 11:  # all that the limits allow
            return ((twin,) * limits.stops)[: limits.stops - len(stops)] + stops
        case 12:
            return (twin,) * (limits.stops + 1)
        case 13 | 14 | 15:  # one too long, alone or among others
            repeated = digits.one_of((stop, (0, *stop)))  # before the others by its tokens, or not
            long, others = (repeated * (most + 1))[: most + 1], (twin, stop)[: limits.stops - 1]
            return digits.one_of(((*others, long), (long, *others), (long,)))
    return stops
