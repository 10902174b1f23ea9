"""The layers with contents on the engine: whole states of the specification are injected.

Dead cells are filled with junk, so that reading one shows. Calls are made by the engine's own
driver, which is asked what it would pass to its entry point.
"""

from functools import cache, lru_cache, partial
from typing import Any, Final, Never

import jax
import jax.numpy as jnp
import numpy as np
from attrs import frozen
from jax import Array

from conformance.engines.ours import drive
from conformance.exploration.alphabets import Layer
from conformance.refinement.answers import Answer, answer, nothing
from conformance.refinement.transition import agrees
from conformance.refinement.vmapped import Kind
from impl import arguments, entries
from impl.engine import Engine, compiled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from impl.state import FINISH_CODES, State, initial
from impl.state.packing import Packed, pack, unpack
from spec import model
from spec.cells import POISON
from spec.machines import scheduling
from spec.vocabulary import Refused

JUNK: Final = 0xDEADBEEF
"""Each word of a dead cell."""

Call = tuple[tuple[Any, ...], Answer]
"""Arguments of an entry point, and what it must answer."""


@frozen(eq=False)
class Asked:
    """A call: which entry point, and what is passed and expected."""

    entry: str
    call: Call


def setup_of(layer: Layer) -> Setup:
    """The engine of a layer, with the integer model."""
    return Setup(
        geometry=layer.geometry, limits=layer.limits, model=IntegerModel(), cleanup=layer.cleanup
    )


def kinds(setup: Setup) -> dict[str, Kind]:
    """One check per entry point."""
    return {
        name: Kind(name, partial(_check, setup, name), _Shipped(setup, name))
        for name in entries.NAMES
    }


def encode(setup: Setup, state: scheduling.State) -> State:
    """The engine's state for a state of the specification, as numpy arrays."""
    held: Any = jax.tree.map(np.copy, _blank(setup))
    held.pages.counts[:] = state.lifecycle.sharing.counts
    for slot in range(setup.geometry.slots):
        _set_slot(setup, held, state, slot)
    for index, queued in enumerate(state.queue):
        held.queue.tokens[index] = queued.token
        held.queue.slots[index] = queued.slot
        held.queue.positions[index] = queued.position
    for index, output in enumerate(state.lifecycle.outputs):
        held.outputs.requests[index] = output.request
        held.outputs.choices[index] = output.choice
        held.outputs.reasons[index] = FINISH_CODES[output.reason]
        held.outputs.lens[index] = len(output.tokens)
        held.outputs.tokens[index, : len(output.tokens)] = output.tokens
    held.queue.filled[...] = len(state.queue)
    held.outputs.filled[...] = len(state.lifecycle.outputs)
    encoded: State = held._replace(pages=held.pages._replace(cache=_pools(setup, state)))
    return encoded


def ask(
    setup: Setup,
    state: scheduling.State,
    action: scheduling.Action,
    after: scheduling.State | None,
) -> Asked | frozenset[int]:
    """What the driver passes to which entry point; or the codes of its own refusal."""
    made = _driven(setup, action)
    if isinstance(made, frozenset):
        return made
    name, given, size = made
    wanted = nothing(size) if after is None else answer(setup, state, action, after, size)
    return Asked(name, (given, wanted))


@lru_cache(maxsize=1 << 16)
def _driven(
    setup: Setup, action: scheduling.Action
) -> tuple[str, tuple[Any, ...], int] | frozenset[int]:
    try:
        drive(_Recorder(setup), action)
    except _Recorded as recorded:
        given = jax.tree.map(np.asarray, recorded.arguments)
        return recorded.name, given, result_size(setup, recorded.name, given)
    except Refused as refused:
        return frozenset(reason.value for reason in refused.reasons)
    raise AssertionError(f"{action} calls no entry point")


_SIZES: Final[dict[tuple[Setup, str], int]] = {}


def result_size(setup: Setup, name: str, given: tuple[Any, ...]) -> int:
    """The length of an entry point's result."""
    if (setup, name) not in _SIZES:
        entry = partial(getattr(entries, name), setup, ())
        shapes = jax.eval_shape(lambda: initial(setup))
        _SIZES[setup, name] = jax.eval_shape(entry, shapes, *given)[2].shape[0]
    return _SIZES[setup, name]


class Table:
    """Encoded states by number, in arrays that grow: a batch is gathered, not built."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._places: dict[int, int] = {}
        self._leaves: list[Any] = []

    def place(self, number: int, state: scheduling.State) -> int:
        """Where the state with this number lies; it is encoded when it is first asked for."""
        found = self._places.setdefault(number, len(self._places))
        if found == len(self._places) - 1:
            leaves = jax.tree.leaves(encode(self._setup, state))
            if not self._leaves:
                self._leaves = [np.zeros((1024, *leaf.shape), leaf.dtype) for leaf in leaves]
            if found == len(self._leaves[0]):
                self._leaves = [np.concatenate([held, held]) for held in self._leaves]
            for held, leaf in zip(self._leaves, leaves, strict=True):
                held[found] = leaf
        return found

    def gather(self, places: Any) -> State:
        """The states at these places, stacked."""
        shape = jax.tree.structure(jax.eval_shape(lambda: initial(self._setup)))
        state: State = jax.tree.unflatten(shape, [held[places] for held in self._leaves])
        return state


class _Recorded(Exception):
    """The call that a driver is about to make."""

    def __init__(self, name: str, given: tuple[Any, ...]) -> None:
        super().__init__(name)
        self.name, self.arguments = name, given


class _Recorder(Engine):
    """The engine's driver without an engine: the call is told instead of made."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def _call(self, name: str, *rest: Any) -> Never:
        raise _Recorded(name, rest)


@cache
def _blank(setup: Setup) -> State:
    """A new state as numpy arrays."""
    state: State = jax.tree.map(np.array, jax.jit(lambda: initial(setup))())
    return state


def _set_slot(setup: Setup, held: Any, state: scheduling.State, slot: int) -> None:
    sequence, detail = state.sequences[slot], state.lifecycle.details[slot]
    if sequence is None:
        return
    slots = held.slots
    slots.used[slot] = True
    held.pages.rows[slot, : len(sequence.row)] = sequence.row
    slots.tokens[slot, : len(sequence.tokens)] = sequence.tokens
    slots.known[slot] = len(sequence.tokens)
    slots.allocated[slot] = sequence.allocated
    slots.written[slot] = sequence.written
    if detail is None:
        return
    slots.prompt_lens[slot] = detail.prompt_len
    slots.choices[slot] = detail.choice
    slots.finished[slot] = FINISH_CODES[detail.finished] if detail.finished else 0
    params = arguments.params(setup, [detail.params], [detail.request])
    for name, value in params._asdict().items():
        getattr(slots, name)[slot] = value[0]


def _pools(setup: Setup, state: scheduling.State) -> tuple[Any, ...]:
    """A pool per layer, K and V of each live cell where they belong."""
    pools = tuple(np.full_like(pool, JUNK) for pool in _blank(setup).pages.cache)
    for page, content in enumerate(state.lifecycle.sharing.pages.cells):
        for offset, tag in enumerate(content):
            if tag != POISON:
                words = model.contents(tag)
                for index, pool in enumerate(pools):
                    pool[page, offset, :, 0] = words[2 * index : 2 * index + 2]
    return pools


def _check(setup: Setup, name: str, before: State, call: Call, after: State, mask: Array) -> Array:
    given, wanted = call
    seen, status, result = getattr(entries, name)(setup, (), before, *given)
    told = jnp.all((result == wanted.result) | ~wanted.care)
    return agrees(setup, before, seen, status, after, mask) & ((mask != 0) | told)


@lru_cache(maxsize=4)
def _compiled_judge(setup: Setup) -> Any:
    """The judgement alone, the same for all entry points."""

    def judge(before: State, packed: Packed, status: Array, after: State, mask: Array) -> Array:
        return agrees(setup, before, unpack(setup, packed), status, after, mask)

    return jax.jit(judge)


class _Shipped:
    """The same check of the entry point that an engine runs: jitted alone, its state donated."""

    def __init__(self, setup: Setup, name: str) -> None:
        self._entry, self._judge = compiled(setup, name), _compiled_judge(setup)

    def __call__(self, before: State, call: Call, after: State, mask: Any) -> bool:
        given, wanted = call
        packed = jax.tree.map(jnp.array, _compiled_pack(before))
        packed, report = self._entry((), packed, *given)
        report = np.asarray(report)
        if not mask and (report[3:] != wanted.result)[wanted.care].any():
            return False
        return bool(self._judge(before, packed, report[:3], after, mask))


_compiled_pack = jax.jit(pack)
