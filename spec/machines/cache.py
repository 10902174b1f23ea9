"""Rung cache: K and V of past positions are kept, contiguously, and never computed again.

The edge to naive compares tokens. It does not hold by construction: a sample here is computed from
the cells alone. Source: docs/sources.md, "Prefill writes, decode appends" and "Cached
decoding".
"""

from collections.abc import Iterator

from attrs import evolve

from spec import model
from spec.attention import visible
from spec.machines.actions import Action, Append, Free, Name, Reserve, Sample, Write
from spec.rung import Edge, Machine, Pages, Part, Rule, Rung
from spec.state import Cached, State
from spec.table import by_slot
from spec.vocabulary import Reason, Refusal


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


def _require_unused(_machine: Machine, state: State, action: Reserve) -> Iterator[Refusal]:
    yield from _require(state, action.slot, used=False)


def _require_used(
    _machine: Machine, state: State, action: Append | Sample | Free
) -> Iterator[Refusal]:
    yield from _require(state, action.slot, used=True)


def _require_next(_machine: Machine, state: State, action: Write) -> Iterator[Refusal]:
    """A batch writes the next known positions of slots in use."""
    for slot, positions in by_slot(action.batch).items():
        found = tuple(_require(state, slot, used=True))
        yield from found
        if not found:
            sequence = _used(state, slot)
            known = range(len(sequence.cells), len(sequence.tokens))
            if positions != list(known[: len(positions)]):
                yield Refusal(Reason.BATCH_POSITIONS, (slot, positions), (slot, list(known)))


def _require(state: State, slot: Name | None, *, used: bool) -> Iterator[Refusal]:
    """A slot id must be in range, and its slot in use exactly if `used`."""
    if not isinstance(slot, int) or not 0 <= slot < len(state.contiguous):
        yield Refusal(Reason.SLOT_RANGE, slot, f"0 to {len(state.contiguous) - 1}")
    elif (state.contiguous[slot] is not None) is not used:
        reason = Reason.SLOT_UNUSED if used else Reason.SLOT_USED
        yield Refusal(reason, slot, "a slot in use" if used else "an unused slot")


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
        Reserve: Rule(refusals=_require_unused, effect=_reserve),
        Append: Rule(refusals=_require_used, effect=_append),
        Write: Rule(refusals=_require_next, effect=_write),
        Sample: Rule(refusals=_require_used, effect=_sample),
        Free: Rule(refusals=_require_used, effect=_free),
    },
    edges=(Edge(to="naive", abstract=_texts, lower=_lower),),
    meets={"naive": "independent"},
)
