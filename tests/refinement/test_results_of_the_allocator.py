"""Results of the entry points in the allocator instance: which numbers must be right."""

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deep import deep_after
from explore_tools import every_state, plan, sizes

from conformance.refinement import allocator
from conformance.refinement.vmapped import Transitions, joined, part
from impl import entries

SIZES: Final = (3, 2, 2, 2)
PLAN: Final = plan(SIZES, illegal=True)
SETUP: Final = allocator.setup_of(sizes(SIZES))
WANTED: Final = {"reserve": 1, "clone": 1, "free": 0}
"""How many of the numbers of a result count; all of them elsewhere."""


def some_transitions(entry: str) -> Transitions:
    """A few transitions of each move of an entry point, done and refused."""
    states, found = every_state(plan(SIZES)), list[Transitions]()
    for number, (asked, move) in enumerate(PLAN.moves):
        if allocator.ENTRIES[move.kind] == entry:
            expansion = asked.expand(states, move)
            made = allocator.transitions(asked, states, 0, move, number, expansion)
            found.append(part(made, slice(None, None, max(1, len(made.mask) // 6))))
    return joined(found)


def judged(entry: str, change: Any, before: Any, given: Any, after: Any, mask: Any) -> Any:
    """The verdict about the engine's answer with a change of its result."""
    state = allocator.inject(SETUP, before)
    call = allocator.call(SETUP, entry, state, given)
    seen, status, result = getattr(entries, entry)(SETUP, (), state, *call)
    answered = seen, status, result + change[: result.shape[0]]
    return allocator._verdict(SETUP, entry, state, answered, given, after, mask)


@pytest.mark.parametrize("entry", deep_after(1, sorted({*allocator.ENTRIES.values()})))
def test_each_number_of_a_result_counts_where_the_action_is_done(entry: str) -> None:
    """One number that is wrong is found in a result that is read, and in no other one."""
    held = some_transitions(entry)
    state = allocator.inject(SETUP, held.before[0])
    call = allocator.call(SETUP, entry, state, jax.tree.map(lambda leaf: leaf[0], held.arguments))
    size = jax.eval_shape(partial(getattr(entries, entry), SETUP, ()), state, *call)[2].shape[0]
    changes = np.concatenate([np.zeros((1, size)), np.eye(size), -np.eye(size)]).astype(np.int32)

    judge = jax.jit(
        jax.vmap(jax.vmap(partial(judged, entry), (0, None, None, None, None)), (None, 0, 0, 0, 0))
    )
    fine = np.asarray(
        judge(jnp.asarray(changes), held.before, held.arguments, held.after, held.mask)
    )

    wanted = np.arange(size) < WANTED.get(entry, size)
    right = np.concatenate([[True], ~wanted, ~wanted])
    refused = (held.mask != 0).any(axis=1)
    assert refused.any()
    assert not refused.all()
    for verdicts, skipped in zip(fine, refused, strict=True):
        expected = np.ones_like(right) if skipped else right
        assert expected.tolist() == verdicts.tolist()
