"""Rung cache: K and V of past positions are kept, contiguously, and never computed again.

The edge to naive compares tokens. It does not hold by construction: a sample here is computed from
the cells alone. Source: docs/sources.md, "Prefill writes, decode appends" and "Cached
decoding".
"""

from attrs import evolve

from spec import model
from spec.attention import visible
from spec.machines.actions import Action, Append, Free, Name, Reserve, Sample, Write
from spec.rung import Edge, Faults, Machine, Pages, Part, Rule, Rung, check, in_order
from spec.state import Cached, State
from spec.table import by_slot
from spec.vocabulary import Reason


def _reserve(_machine: Machine, state: State, action: Reserve, _pages: Pages | None) -> State:
    return _with_sequence(state, action.slot, Cached())


def _append(_machine: Machine, state: State, action: Append, _pages: Pages | None) -> State:
    sequence = _used(state, action.slot)
    grown = evolve(sequence, tokens=sequence.tokens + action.tokens)
    return _with_sequence(state, action.slot, grown)


def _write(_machine: Machine, state: State, action: Write, _pages: Pages | None) -> State:
    for slot, positions in by_slot(action.batch).items():
        sequence = _used(state, slot)
        written = tuple(sequence.tokens[: position + 1] for position in positions)
        state = _with_sequence(state, slot, evolve(sequence, cells=sequence.cells + written))
    return state


def _sample(_machine: Machine, state: State, action: Sample, _pages: Pages | None) -> State:
    sequence = _used(state, action.slot)
    length, window = len(sequence.cells), state.geometry.window
    seen = visible(length - 1, length, window)
    cells = sequence.cells[seen.start :]
    token = model.attend(sequence.tokens[-1], cells, action.draw, first=seen.start, window=window)
    return _with_sequence(state, action.slot, evolve(sequence, tokens=(*sequence.tokens, token)))


def _free(_machine: Machine, state: State, action: Free, _pages: Pages | None) -> State:
    return _with_sequence(state, action.slot, None)


def _used(state: State, slot: Name) -> Cached:
    sequence = state.contiguous[slot] if isinstance(slot, int) else None
    if sequence is None:
        raise KeyError(slot)
    return sequence


def _with_sequence(state: State, slot: Name | None, sequence: Cached | None) -> State:
    assert isinstance(slot, int)
    before, after = state.contiguous[:slot], state.contiguous[slot + 1 :]
    return state._replace(contiguous=(*before, sequence, *after))


@check(Reason.SLOT_RANGE)
def _in_range(
    _machine: Machine, state: State, action: Reserve | Append | Sample | Free | Write
) -> Faults:
    """A slot is out of range."""
    for slot in _slots(action):
        if not isinstance(slot, int) or not 0 <= slot < len(state.contiguous):
            yield slot, f"0 to {len(state.contiguous) - 1}"


@check(Reason.SLOT_USED)
def _unused(_machine: Machine, state: State, action: Reserve) -> Faults:
    """The slot is in use."""
    if isinstance(action.slot, int) and state.contiguous[action.slot] is not None:
        yield action.slot, "an unused slot"


@check(Reason.SLOT_UNUSED)
def _in_use(_machine: Machine, state: State, action: Append | Sample | Free | Write) -> Faults:
    """A slot is not in use."""
    for slot in _slots(action):
        if isinstance(slot, int) and state.contiguous[slot] is None:
            yield slot, "a slot in use"


@check(Reason.BATCH_POSITIONS)
def _next_known(_machine: Machine, state: State, action: Write) -> Faults:
    """The positions of a slot are not its next known ones."""
    for slot, positions in by_slot(action.batch).items():
        sequence = _used(state, slot)
        known = range(len(sequence.cells), len(sequence.tokens))
        if positions != list(known[: len(positions)]):
            yield (slot, positions), (slot, list(known))


def _slots(action: Reserve | Append | Sample | Free | Write) -> tuple[Name | None, ...]:
    return tuple(by_slot(action.batch)) if isinstance(action, Write) else (action.slot,)


def _texts(state: State) -> State:
    """Keep the tokens of each sequence, and drop its cells."""
    texts = frozenset(
        (slot, sequence.tokens)
        for slot, sequence in enumerate(state.contiguous)
        if sequence is not None
    )
    return state._replace(texts=texts)


def _lower(
    _machine: Machine, _state: State, action: Action, _pages: Pages | None
) -> tuple[Part, ...]:
    """Write lowers to nothing; every other action lowers to itself."""
    return () if isinstance(action, Write) else ((action, None),)


RUNG = Rung(
    name="cache",
    owns=("contiguous",),
    initial=lambda state: state._replace(contiguous=(None,) * state.geometry.slots),
    rules={
        Reserve: Rule(stages=in_order(_in_range, _unused), effect=_reserve),
        Append: Rule(stages=in_order(_in_range, _in_use), effect=_append),
        Write: Rule(stages=in_order(_in_range, _in_use, _next_known), effect=_write),
        Sample: Rule(stages=in_order(_in_range, _in_use), effect=_sample),
        Free: Rule(stages=in_order(_in_range, _in_use), effect=_free),
    },
    edges=(Edge(to="naive", abstract=_texts, lower=_lower),),
    meets={"naive": "independent"},
)
