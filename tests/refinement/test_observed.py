"""The comparison of states beside a second reading of what can be observed, number by number.

The reading makes a nested list of what an engine shows; two states agree exactly if their lists
are equal. It is plain Python, so it can be slow and obvious.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import jax
import numpy as np
import pytest
from deep import deep_after
from walk_tools import walk, walked

from conformance.refinement import contents
from conformance.refinement.transition import agrees, identical, same_observed, words
from impl.state import State as DeviceState
from spec.state import State
from spec.vocabulary import Geometry, Reason

SIZES: Final = Geometry(pages=4, slots=3, page_size=2, pages_per_seq=2)
SETUP: Final = contents.setup_of(walked(SIZES))
WALKS, STEPS = range(12), 40

LENGTHS = (
    *("allocated", "written", "committed", "known", "proposed", "finished", "prompt_lens"),
    *("contexts", "stale"),
)
OF_STEP = ("retired", "holds", "first", "lens", "draws")
REQUEST = ("max_new", "requests", "choices", "seeds", "temperatures", "stops", "stop_lens")


def shown(state: DeviceState) -> list[Any]:
    """Everything that can be observed of an engine's state."""
    pages, indexed, slots, queue, outputs, steps = state
    found: list[Any] = [pages.counts.tolist(), pages.rows.tolist(), pages.held.tolist()]
    found.append([int(steps.filled), *(getattr(steps, name).tolist() for name in OF_STEP)])
    for lens, rows in zip(steps.lens.tolist(), steps.rows.tolist(), strict=True):
        found.append([row if n else sorted(row) for n, row in zip(lens, rows, strict=True)])
    for page, held in enumerate(indexed.holds.tolist()):
        found.append(held)
        if held:
            found += [indexed.contexts[page], indexed.parents[page], indexed.children[page]]
            found += [indexed.tokens[page].tolist(), [pool[page].tolist() for pool in pages.cache]]
    waited = np.where(indexed.holds & (pages.counts == 0), pages.clock - pages.released, -1)
    found.append([np.sign(waited - one).tolist() for one in waited])
    for slot, used in enumerate(slots.used.tolist()):
        found.append([used, [getattr(slots, name)[slot].item() for name in LENGTHS]])
        if used:
            end = int(slots.known[slot]) + int(slots.proposed[slot])
            found.append(slots.tokens[slot].tolist()[: max(0, end)])
            found.append([cell(state, slot, place) for place in range(int(slots.written[slot]))])
        if used and slots.prompt_lens[slot] > 0:
            found.append([getattr(slots, name)[slot].tolist() for name in REQUEST])
    waiting = zip(queue.tokens, queue.slots, queue.positions, strict=True)
    found.append([tuple(map(int, entry)) for entry in waiting][: max(0, int(queue.filled))])
    found.append([int(queue.filled), int(outputs.filled)])
    for index in range(min(int(outputs.filled), len(outputs.lens))):
        names = ("lens", "reasons", "requests", "choices")
        found.append([int(getattr(outputs, name)[index]) for name in names])
        found.append(outputs.tokens[index].tolist()[: max(0, int(outputs.lens[index]))])
    return found


def cell(state: DeviceState, slot: int, place: int) -> Any:
    """K and V of a position in every layer; None where the row has no page for it."""
    row, (entry, offset) = state.pages.rows[slot].tolist(), divmod(place, SIZES.page_size)
    if entry >= len(row) or not 0 <= row[entry] < SIZES.pages:
        return None
    return [pool[row[entry], offset].tolist() for pool in state.pages.cache]


def reached() -> Iterator[State]:
    """States of random walks."""
    for seed in WALKS:
        for number, (_, _, after) in enumerate(walk(SIZES, seed, STEPS)):
            if number % 10 == 9:
                yield after


def expected_states() -> list[DeviceState]:
    """Distinct states as the engine holds them, and of some of them also one with leftovers.

    Leftovers are what an unused slot still holds, and entries of queue and outputs that were taken.
    """
    states = [contents.encode(SETUP, state) for state in dict.fromkeys(reached())]
    return states + [
        with_leftovers(state, at % SIZES.slots) for at, state in enumerate(states[::3])
    ]


def with_leftovers(state: DeviceState, slot: int) -> DeviceState:
    """The state with this slot unused, and one entry less in queue and outputs."""
    left: Any = jax.tree.map(np.copy, state)
    left.slots.used[slot] = False
    for part in (left.queue, left.outputs):
        part.filled[...] = max(0, part.filled - 1)
    changed: DeviceState = left
    return changed


def variants(state: DeviceState) -> Iterator[DeviceState]:
    """The state with one number changed, for each number of each array, upwards and downwards."""
    leaves, shape = jax.tree.flatten(state)
    for place, leaf in enumerate(leaves):
        for at in np.ndindex(leaf.shape):
            for by in (1, -1):
                other = leaf.copy()
                step = np.asarray(by).astype(leaf.dtype)  # -1 wraps where there is no sign
                other[at] = ~leaf[at] if leaf.dtype == np.bool_ else (leaf + step)[at]
                yield jax.tree.unflatten(shape, [*leaves[:place], other, *leaves[place + 1 :]])


@pytest.fixture(scope="module")
def states() -> list[DeviceState]:
    """The expected states."""
    return expected_states()


def stacked(states: list[DeviceState]) -> DeviceState:
    """States along a new first axis."""
    whole: DeviceState = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    return whole


@pytest.mark.parametrize("first", deep_after(1, range(8)))
def test_the_comparison_is_of_what_is_shown(states: list[DeviceState], first: int) -> None:
    """A state with any one number changed agrees exactly if it shows the same."""
    judge = jax.jit(jax.vmap(partial(same_observed, SETUP), in_axes=(0, None)))

    for right in states[first::8]:
        others = [right, *variants(right)]
        expected = [shown(other) == shown(right) for other in others]
        assert expected == np.asarray(judge(stacked(others), right)).tolist()


def test_the_states_have_everything_that_can_be_shown(states: list[DeviceState]) -> None:
    """The expected states have drafts, queues, outputs, and slots of each kind."""
    whole = stacked(states)
    slots = whole.slots

    assert (slots.proposed > 0).any()
    assert (slots.committed < slots.written).any()
    assert (slots.written < slots.allocated).any()
    assert (slots.used & (slots.prompt_lens == 0) & (slots.allocated > 0)).any()
    assert (~slots.used & (slots.prompt_lens > 0) & (slots.written > 0)).any()
    assert (slots.finished > 0).any()
    assert {0, 1, 2} <= set(whole.queue.filled.tolist())
    assert {0, 1, 2} <= set(whole.outputs.filled.tolist())
    assert any(state.outputs.lens[state.outputs.filled :].any() for state in states)
    assert (whole.pages.counts > 1).any()


def test_a_pool_of_one_page_is_compared_outside_jit_too() -> None:
    """Of dead positions no page is read, also where only page 0 exists."""
    sizes = Geometry(pages=1, slots=2, page_size=2, pages_per_seq=1)
    setup = contents.setup_of(walked(sizes))

    for seed in range(3):
        *_, (_, _, state) = walk(sizes, seed, 10)
        encoded = contents.encode(setup, state)
        assert same_observed(setup, encoded, encoded)


def test_states_of_different_engines_are_not_compared(states: list[DeviceState]) -> None:
    """A state with one pool less is an error, and never passes for the same state."""
    whole = states[0]
    less = whole._replace(pages=whole.pages._replace(cache=whole.pages.cache[:-1]))

    for compare in (identical, partial(same_observed, SETUP)):
        with pytest.raises(ValueError, match="zip"):
            jax.eval_shape(compare, less, whole)
        with pytest.raises(ValueError, match="zip"):
            jax.eval_shape(compare, whole, less)


CODES: Final = (*range(66), *(256 + reason for reason in Reason), -1, -(2**31), 2**31 - 1)
"""0 is "done"; the codes from 256 on end like a reason, and are none."""
MASKS: Final = (
    *(0, 1, 2**32 - 1, 2**64 - 1, 2**31 + 1, 2**32),
    *(1 << reason for reason in Reason),
    *(1 << reason | 1 << Reason.OUT_OF_PAGES for reason in (Reason.SLOT_RANGE, Reason.STOPS)),
)
"""Bit 0 is no reason: with it alone, nothing is legal."""


def test_what_an_engine_may_do_is_decided_by_code_mask_and_states(
    states: list[DeviceState],
) -> None:
    """A step is done and shows what is expected, or is refused for a listed reason, unchanged."""
    before = max(states, key=lambda state: len(str(shown(state))))
    every = list(variants(before))
    alike = next(other for other in every if shown(other) == shown(before))
    right, wrong = [other for other in every if shown(other) != shown(before)][:2]
    hidden = next(other for other in variants(right) if shown(other) == shown(right))
    afters = [before, alike, right, hidden, wrong]
    statuses = np.array([(code, 7, 0) for code in CODES], np.int32)
    masks = words(np.array(MASKS, np.uint64))
    expected = [
        [
            [
                (code == 0 and shown(after) == shown(right))
                if mask == 0
                else (0 < code < 64 and bool(mask >> code & 1) and after is before)
                for mask in MASKS
            ]
            for code in CODES
        ]
        for after in afters
    ]

    # One axis for each choice: the states after the step, the codes, and the masks.
    over = jax.vmap(partial(agrees, SETUP), in_axes=(None, None, None, None, 0))
    over = jax.vmap(over, in_axes=(None, None, 0, None, None))
    over = jax.vmap(over, in_axes=(None, 0, None, None, None))

    seen = jax.jit(over)(before, stacked(afters), statuses, right, masks)

    assert expected == np.asarray(seen).tolist()
