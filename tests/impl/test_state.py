"""The components of the state: each has one module that makes, forks, releases and packs it."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_tools import KEPT

from impl.state import Slots, State, initial, slots
from impl.state.packing import JOINED, Packed, fields, is_joined, pack, shapes, unpack

IMPL = Path(__file__).resolve().parents[2] / "impl"


def numbered(setup: State) -> State:
    """A state whose numbers count up within each field, as far as the dtype allows."""

    def fill(leaf: jax.Array) -> jax.Array:
        return jnp.arange(1, leaf.size + 1).reshape(leaf.shape).astype(leaf.dtype)

    filled: State = jax.tree.map(fill, setup)
    return filled


@pytest.fixture(scope="module")
def state() -> State:
    """A state in which every field differs from its initial value."""
    return numbered(initial(KEPT))


PER_PAGE = {
    *("pages.counts", "pages.released", "pages.held"),
    *("indexed.contexts", "indexed.parents", "indexed.children", "indexed.buckets"),
    *("indexed.after", "indexed.before"),
}
"""Fields that are changed in place, since they grow with the pages."""


def test_a_packed_state_is_the_same_state(state: State) -> None:
    """Unpacking restores the state, and fields of one number per slot or entry share an array."""
    packed: Packed = jax.jit(pack)(state)
    same: State = jax.jit(unpack, static_argnums=0)(KEPT, packed)

    jax.tree.map(np.testing.assert_array_equal, state, same)
    assert len(JOINED) == len(packed.short)
    wide = {name for name, shape in fields(KEPT).items() if not is_joined(name, shape.shape)}
    assert len(packed.long) == len(wide | PER_PAGE | {"pages.clock", "indexed.totals"})


def test_every_field_is_packed() -> None:
    """Every field except the pools is packed under its path."""
    paths = jax.tree_util.tree_leaves_with_path(shapes(KEPT))
    names = {jax.tree_util.keystr(path).lstrip(".").partition("[")[0] for path, _ in paths}

    assert names - {"pages.cache"} == set(fields(KEPT))


@pytest.mark.parametrize("name", Slots._fields)
def test_a_fork_copies_every_field_of_a_slot(name: str, state: State) -> None:
    """A fork copies all fields but the choice, and a child out of range is dropped."""
    parents, children, choices = jnp.array([1, 2]), jnp.array([3, 99]), jnp.array([70, 71])

    after = np.asarray(getattr(slots.fork(state.slots, parents, children, choices), name))

    before = np.array(getattr(state.slots, name))
    before[3] = 70 if name == "choices" else before[1]
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", Slots._fields)
def test_a_release_clears_every_field_of_a_slot_that_is_not_kept(name: str, state: State) -> None:
    """A release resets every field to its initial value, except the fields listed as kept."""
    after = np.asarray(getattr(slots.release(state.slots, jnp.array([2, 2**31 - 1])), name))

    before = np.array(getattr(state.slots, name))
    if name not in slots.KEPT:
        before[2] = np.asarray(getattr(initial(KEPT).slots, name))[2]
    np.testing.assert_array_equal(before, after)


def modules_that_say(pattern: str) -> list[str]:
    """The modules of the engine with a line that matches a pattern."""
    found = re.compile(pattern)
    sources = {path: path.read_text(encoding="utf-8") for path in IMPL.rglob("*.py")}
    return sorted(
        str(path.relative_to(IMPL)) for path, text in sources.items() if found.search(text)
    )


@pytest.mark.parametrize("pattern", [r"\bcounts\.at\[|\bcounts=", r"\bcounts\b\)? *[=!<>]=? *0"])
def test_counts_change_in_one_module_and_free_is_said_in_one(pattern: str) -> None:
    """Only one module writes to the counts or compares a count with 0."""
    assert ["state/pages.py"] == modules_that_say(pattern)
