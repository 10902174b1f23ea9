"""Expected results of the entry points, number by number, and which of the numbers count.

Padding that no caller reads may be any number.
"""

from typing import Any, NamedTuple

import numpy as np

from impl.setup import Setup
from impl.state import FINISH_CODES
from spec import table
from spec.machines import actions as act
from spec.machines import pages, scheduling
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import INVALID

Numbers = list[int | None]
"""Expected numbers; None where any number is right."""


class Answer(NamedTuple):
    """An expected result, i32[R]. care bool[R]: which of its numbers the engine must return."""

    result: Any
    care: Any


def nothing(size: int) -> Answer:
    """Any result; for an action that is refused."""
    return _answer([None] * size)


def answer(
    setup: Setup,
    machine: Machine,
    state: State,
    action: Action,
    after: State,
    size: int,
) -> Answer:
    """The expected result, of `size` numbers, of an action that is done."""
    numbers = _numbers(setup, machine, state, action, after)
    return _answer(numbers + [None] * (size - len(numbers)))


def _numbers(setup: Setup, machine: Machine, state: State, action: Action, after: State) -> Numbers:
    match action:
        case act.Reserve(slot) if slot is None or isinstance(slot, int):
            return [pages.reserved_slot(state, slot)]
        case act.Clone():
            return [pages.reserved_slot(state, action.child)]
        case act.Allocate(batch):
            return _plan(setup, table.plan(after.sequences, batch, setup.geometry.page_size))
        case act.Pack():
            leaving, width = scheduling.packed(state), setup.limits.round_tokens
            return [
                *_filled([queued.token for queued in leaving], width, fill=None),
                *_filled([queued.slot for queued in leaving], width, fill=INVALID),
                *_filled([queued.position for queued in leaving], width, fill=None),
            ]
        case act.Generate():
            return [scheduling.generate(machine, state)[1]]
        case act.TakeOutputs():
            return _outputs(setup, state)
        case _:
            return []


def _plan(setup: Setup, plan: table.BatchPlan) -> Numbers:
    seqs, tokens = setup.batch_seqs, setup.limits.prefill_tokens
    width = setup.geometry.pages_per_seq
    rows = [_filled(row, width, fill=INVALID) for row in plan.page_indices]
    rows += [_filled([], width, fill=INVALID)] * (seqs - plan.num_seqs)
    return [
        *_filled(plan.slot_ids, seqs, fill=INVALID),
        *(entry for row in rows for entry in row),
        *_filled(plan.kv_lens, seqs, fill=0),
        *_filled(plan.cu_q_lens, seqs + 1, fill=plan.cu_q_lens[-1]),
        plan.num_seqs,
        *_filled(plan.order, tokens, fill=None),
        *_filled(plan.destinations, tokens, fill=INVALID),
    ]


def _outputs(setup: Setup, state: State) -> Numbers:
    outputs, most = state.outputs, setup.limits.outputs
    texts = [_filled(output.tokens, setup.geometry.max_len, fill=None) for output in outputs]
    return [
        len(outputs),
        *_filled([output.request for output in outputs], most, fill=None),
        *_filled([output.choice for output in outputs], most, fill=None),
        *_filled([FINISH_CODES[output.reason] for output in outputs], most, fill=None),
        *_filled([len(output.tokens) for output in outputs], most, fill=None),
        *(token for text in texts for token in text),
    ]


def _filled(numbers: Any, size: int, *, fill: int | None) -> Numbers:
    return [*numbers, *[fill] * (size - len(numbers))]


def _answer(numbers: Numbers) -> Answer:
    return Answer(
        np.array([number or 0 for number in numbers], np.int32),
        np.array([number is not None for number in numbers], np.bool_),
    )
