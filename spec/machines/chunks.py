"""Rung chunks: a round reads prompts in parts, beside the queued tokens of other sequences.

A prompt that was assigned has known tokens without cells. A chunk is the next of them. One budget
of tokens is for all that a round writes, queued tokens first. The last chunk of a prompt alone
draws, since it writes the last known token; where a chunk ends, and in which rounds a prompt is
read, no request can tell. The queue has room for what is drawn: it has room for a token of each
slot, and a round has room for a chunk only if the whole queue leaves with it. Source:
docs/sources.md, "Continuous batching" and "Chunks".
"""

from collections import Counter

from spec.machines.actions import Action, Allocate, MixedRound, Pack
from spec.machines.lifecycle import has_prompt, unfinished
from spec.machines.pages import row_fits, slots_in_range, slots_in_use, used
from spec.machines.scheduling import (
    batch_parts,
    outputs_full,
    packed,
    run,
    sampled,
    tidied,
    whole_parts,
)
from spec.rung import (
    ChecksOf,
    Edge,
    Faults,
    Machine,
    Meet,
    Pages,
    Part,
    Rule,
    Rung,
    Stage,
    check,
    in_order,
)
from spec.state import State
from spec.table import Entry
from spec.vocabulary import Reason


def batch_of(state: State, action: MixedRound) -> tuple[Entry, ...]:
    """The tokens that leave the queue and those of the chunks, by slot, then position."""
    queued = [(one.slot, one.position) for one in packed(state)]
    return tuple(sorted((*queued, *_entries(state, action))))


def _entries(state: State, action: MixedRound) -> list[Entry]:
    """The tokens of the chunks."""
    return [
        (slot, used(state, slot).allocated + offset)
        for slot, count in action.chunks
        for offset in range(count)
    ]


@check(Reason.BATCH_POSITIONS)
def _once_each(_machine: Machine, _state: State, action: MixedRound) -> Faults:
    """A slot has two chunks, or a chunk has no token."""
    times = Counter(slot for slot, _ in action.chunks)
    wrong = [chunk for chunk in action.chunks if times[chunk[0]] > 1 or chunk[1] < 1]
    if wrong:
        yield wrong, "one chunk of a slot, of 1 token or more"


@check(Reason.QUEUE_EMPTY)
def _some_token(_machine: Machine, state: State, action: MixedRound) -> Faults:
    """The queue is empty, and there is no chunk."""
    if not state.queue and not action.chunks:
        yield 0, "at least 1 queued token, or a chunk"


@check(Reason.BATCH_UNKNOWN)
def _known(_machine: Machine, state: State, action: MixedRound) -> Faults:
    """A chunk has more tokens than its slot has known ones without cells."""
    for slot, count in action.chunks:
        sequence = used(state, slot)
        left = len(sequence.tokens) - sequence.allocated
        if count > left:
            yield count, f"at most {left} tokens of slot {slot}"


@check(Reason.BATCH_QUEUED)
def _none_queued(_machine: Machine, state: State, action: MixedRound) -> Faults:
    """A token of the slot of a chunk is in the queue; rounds write those."""
    chunked = {slot for slot, _ in action.chunks}
    queued = [one for one in state.queue if one.slot in chunked]
    if queued:
        yield queued, "slots without queued tokens"


@check(Reason.BATCH_WIDTH)
def _within_budget(_machine: Machine, state: State, action: MixedRound) -> Faults:
    """The chunks and the tokens that leave the queue are more than `limits.round_tokens`."""
    tokens = len(packed(state)) + sum(count for _, count in action.chunks)
    if tokens > state.limits.round_tokens:
        yield tokens, f"at most {state.limits.round_tokens} tokens"


@check(Reason.UNWRITTEN)
def _settled(_machine: Machine, state: State, action: MixedRound) -> Faults:
    """A slot of the round has allocated cells that are not written."""
    slots = sorted({slot for slot, _ in batch_of(state, action) if not used(state, slot).settled})
    if slots:
        yield slots, "slots whose allocated cells are written"


@check(Reason.PROPOSED)
def _without_drafts(machine: Machine, state: State, action: MixedRound) -> Faults:
    """A slot of the round has proposed tokens."""
    batch = batch_of(state, action)
    slots = {slot for slot, _ in batch if machine.known(state, slot) != used(state, slot).tokens}
    if slots:
        yield sorted(slots), "slots without proposed tokens"


@check(Reason.OUTPUTS_FULL)
def _outputs_fit(_machine: Machine, state: State, action: MixedRound) -> Faults:
    """The outputs have no room for one of each slot that draws a token, since each may finish."""
    yield from outputs_full(state, len(sampled(state, batch_of(state, action))))


def _parts(_machine: Machine, state: State, action: MixedRound) -> tuple[Part, ...]:
    return batch_parts(state, batch_of(state, action))


def _mixed(machine: Machine, state: State, action: MixedRound, pages: Pages | None) -> State:
    return tidied(machine, run(machine, state, action, pages))


def _lower(machine: Machine, state: State, action: Action, pages: Pages | None) -> tuple[Part, ...]:
    """The queued tokens leave the queue; then what the round does."""
    if isinstance(action, MixedRound):
        return ((Pack(), None), *whole_parts(machine, state, action))
    return ((action, pages),)


_ALLOCATED = ChecksOf[MixedRound](
    kind=Allocate,
    action=lambda _machine, state, action: Allocate(batch_of(state, action)),
    below="lifecycle",
    never={
        Reason.SLOT_RANGE: "the slots of chunks are in range, and the queue names slots in use",
        Reason.SLOT_UNUSED: "the slots of chunks are in use, and the queue names slots in use",
        row_fits: "a token of the round is known, and known tokens fit",
    },
)
RUNG = Rung(
    name="chunks",
    requires=("scheduling",),
    rules={
        MixedRound: Rule(
            stages=(
                *in_order(slots_in_range),
                Stage((slots_in_use, _once_each)),
                Stage((has_prompt, unfinished)),
                *in_order(_some_token, _known, _none_queued, _within_budget, _settled),
                *in_order(_without_drafts),
                Stage((_ALLOCATED, _outputs_fit)),
            ),
            effect=_mixed,
            parts=_parts,
        ),
    },
    edges=(Edge(lower=_lower),),
    meets={
        "naive": Meet("ALONE", "MixedRound: done"),
        "cache": "independent",
        "pages": Meet("ROW", "chunk that ends inside a page"),
        "sharing": Meet("WX", "chunk behind a page that others name"),
        "rollback": Meet("Q", "MixedRound: PROPOSED"),
        "window": "independent",
        "prefix": Meet("PC", "chunk behind a page of the index"),
        "lifecycle": Meet("OUT", "chunk after which its sequence has finished"),
        "scheduling": Meet("Q", "chunk beside queued tokens"),
    },
)
