"""Expected answers of the entry points beside a second reading, on every step of random walks."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
from walk_tools import walk, walked

from conformance.refinement import answers, contents
from impl.setup import Setup
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.state import State
from spec.vocabulary import INVALID, FinishReason, Geometry

SIZES: Final = Geometry(pages=5, slots=3, page_size=2, pages_per_seq=2)
MACHINE: Final = walked(SIZES).machine
SETUP: Final = contents.setup_of(walked(SIZES))
SPARE: Final = 3
"""How much longer a result is than what is expected of it."""

Numbers = list[int | None]


def padded(numbers: Any, size: int, fill: int | None) -> Numbers:
    """Numbers in an array of this size."""
    found: Numbers = [fill] * size
    for place, number in enumerate(numbers):
        found[place] = number
    return found


def plan(setup: Setup, after: State, batch: Any) -> Numbers:
    """The plan of a batch as `BatchPlan` describes it, field by field."""
    seqs, tokens = min(SIZES.slots, setup.limits.prefill_tokens), setup.limits.prefill_tokens
    entries = sorted((*entry, place) for place, entry in enumerate(batch) if entry is not None)
    slots = sorted({slot for slot, _, _ in entries})
    rows, lengths, starts, cells = Numbers(), Numbers(), Numbers([0]), Numbers()
    for slot in slots:
        sequence = after.sequences[slot]
        assert sequence is not None
        rows += padded(sequence.row, SIZES.pages_per_seq, INVALID)
        lengths.append(sequence.allocated)
        starts.append(sum(one <= slot for one, _, _ in entries))
        for _, position, _ in (entry for entry in entries if entry[0] == slot):
            page = sequence.row[position // SIZES.page_size]
            cells.append(page * SIZES.page_size + position % SIZES.page_size)
    return [
        *padded(slots, seqs, INVALID),
        *padded(rows, seqs * SIZES.pages_per_seq, INVALID),
        *padded(lengths, seqs, 0),
        *padded(starts, seqs + 1, len(entries)),
        len(slots),
        *padded([place for _, _, place in entries], tokens, None),
        *padded(cells, tokens, INVALID),
    ]


def leaving(setup: Setup, state: State) -> Numbers:
    """The tokens, slots and positions that leave the queue; nobody reads what is past a slot."""
    width = setup.limits.round_tokens
    first = sorted((entry.slot, entry.position, entry.token) for entry in state.queue[:width])
    return [
        *padded([token for _, _, token in first], width, None),
        *padded([slot for slot, _, _ in first], width, INVALID),
        *padded([position for _, position, _ in first], width, None),
    ]


def rounds(state: State) -> Numbers:
    """How many rounds can be done one after the other."""
    done = 0
    while done < state.limits.rounds and not MACHINE.refusals(state, act.Round()):
        state, done = MACHINE.step(state, act.Round()), done + 1
    return [done]


def finished(setup: Setup, state: State) -> Numbers:
    """The outputs: how many, and each of their fields, as the arrays of `Outputs` hold them."""
    codes = {FinishReason.LIMIT: 1, FinishReason.STOP: 2}
    fields = zip(
        *((one.request, one.choice, codes[one.reason], len(one.tokens)) for one in state.outputs),
        strict=True,
    )
    columns = list(fields) or [()] * 4
    most, length = setup.limits.outputs, SIZES.page_size * SIZES.pages_per_seq
    found: Numbers = [len(state.outputs)]
    for column in columns:
        found += padded(column, most, None)
    for output in state.outputs:
        found += padded(output.tokens, length, None)
    return found


def expected(setup: Setup, state: State, action: Action, after: State) -> Numbers:
    """The numbers that an engine must return, and None where any number will do."""
    unused = [slot for slot, sequence in enumerate(state.sequences) if sequence is None]
    match action:
        case act.Reserve(None) | act.Clone(child=None):
            return [unused[0]]
        case act.Reserve(int(slot)) | act.Clone(child=int(slot)):
            return [slot]
        case act.Allocate(batch):
            return plan(setup, after, batch)
        case act.Pack():
            return leaving(setup, state)
        case act.Generate():
            return rounds(state)
        case act.TakeOutputs():
            return finished(setup, state)
        case _:
            return []


def asked(seed: int) -> Iterator[tuple[State, Action]]:
    """States of a random walk, each with actions that can be done.

    These are the action that is taken, forms of it that the alphabets leave out (without a slot,
    with a padded batch), and actions that read the queue and the outputs.
    """
    for state, action, _ in walk(SIZES, seed, 40):
        yield state, action
        match action:
            case act.Reserve():
                yield state, act.Reserve(None)
            case act.Clone(parent):
                yield state, act.Clone(parent, None, action.choice)
            case act.Allocate(batch):
                yield state, act.Allocate((None, *reversed(batch), None))
        for reading in (act.Pack(), act.Generate(), act.TakeOutputs()):
            if not MACHINE.refusals(state, reading):
                yield state, reading


WALKS: Final = range(12)


@pytest.mark.parametrize("seed", WALKS)
def test_an_answer_has_the_numbers_that_a_caller_reads(seed: int) -> None:
    """The answer of each action that is done has these numbers, and leaves open all others."""
    for state, action in asked(seed):
        after = MACHINE.step(state, action)
        right = expected(SETUP, state, action, after)

        size = len(right) + SPARE
        result, care = answers.answer(SETUP, MACHINE, state, action, after, size)

        told = zip(result.tolist(), care.tolist(), strict=True)
        assert right + [None] * SPARE == [number if cared else None for number, cared in told]
        assert (np.int32, np.bool_) == (result.dtype, care.dtype)


def test_the_walks_have_every_kind_of_answer() -> None:
    """The walks have batches, queues and outputs of several sizes, and rounds that end early."""
    found = set[tuple[str, int]]()
    for state, action in (one for seed in WALKS for one in asked(seed)):
        sizes = {
            act.Allocate: len(getattr(action, "batch", ())),
            act.Pack: len(state.queue),
            act.Generate: rounds(state)[0] or 0,
            act.TakeOutputs: len(state.outputs),
        }
        found.add((type(action).__name__, sizes.get(type(action), 0)))

    assert {
        *(("Reserve", 0), ("Clone", 0)),
        *(("Allocate", 1), ("Allocate", 2)),
        *(("Pack", 1), ("Pack", 2)),
        *(("Generate", 0), ("Generate", 1), ("Generate", 2)),
        *(("TakeOutputs", 0), ("TakeOutputs", 1), ("TakeOutputs", 2)),
    } <= found


@pytest.mark.parametrize("size", [0, 1, 7])
def test_of_a_refused_action_nothing_is_read(size: int) -> None:
    """The result of a refused action has its size, and may be any numbers."""
    result, care = answers.nothing(size)

    assert (size,) == result.shape
    assert [False] * size == care.tolist()


def test_names_of_lower_machines_have_no_answer() -> None:
    """A sequence that has a name in place of a slot is returned by no entry point."""
    state = walked(SIZES).initial()

    _, care = answers.answer(SETUP, MACHINE, state, act.Reserve((1, 0)), state, 2)

    assert [False, False] == care.tolist()
