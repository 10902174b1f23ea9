"""Rung 1: K and V of past positions are kept, contiguously, and never computed again.

Seen from naive: the same tokens. The edge carries weight because a sample here is computed from the
cells alone. Source: seed 002, "Two-Phase Architecture"; seed 004, section 2.
"""

from attrs import evolve, frozen

from spec import model
from spec.machines import naive
from spec.machines.actions import Append, Free, Reserve, Sample, Write
from spec.table import by_slot
from spec.vocabulary import Tokens

Action = Reserve | Append | Write | Sample | Free


@frozen
class Cached:
    """One sequence: its tokens and the tags of its written cells, in order."""

    tokens: Tokens = ()
    cells: tuple[Tokens, ...] = ()


@frozen
class State:
    """`sequences[slot]`; None is an unused slot."""

    sequences: tuple[Cached | None, ...]


def step(state: State, action: Action) -> State:
    """Apply an action whose preconditions hold."""
    sequences = list(state.sequences)
    match action:
        case Reserve(int(slot)):
            sequences[slot] = Cached()
        case Free(int(slot)):
            sequences[slot] = None
        case Append(int(slot), tokens):
            sequence = _used(state, slot)
            sequences[slot] = evolve(sequence, tokens=sequence.tokens + tokens)
        case Write(batch):
            for slot, positions in by_slot(batch).items():
                sequence = _used(state, slot)
                written = tuple(sequence.tokens[: position + 1] for position in positions)
                sequences[slot] = evolve(sequence, cells=sequence.cells + written)
        case Sample(int(slot), draw):
            sequence = _used(state, slot)
            token = model.attend(sequence.tokens[-1], sequence.cells, draw)
            sequences[slot] = evolve(sequence, tokens=(*sequence.tokens, token))
        case _:
            raise TypeError(action)
    return State(tuple(sequences))


def abstract(state: State) -> naive.State:
    """Forget the cells."""
    return naive.State(
        frozenset(
            (slot, sequence.tokens)
            for slot, sequence in enumerate(state.sequences)
            if sequence is not None
        )
    )


def lower(_: State, action: Action) -> tuple[naive.Action, ...]:
    """Writing is invisible from below; everything else is itself."""
    return () if isinstance(action, Write) else (action,)


def _used(state: State, slot: int) -> Cached:
    sequence = state.sequences[slot]
    if sequence is None:
        raise KeyError(slot)
    return sequence
