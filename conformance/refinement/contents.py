"""Refinement of the instances with contents: whole states of the specification are injected.

Dead cells are filled with junk, so that reading one shows. The arguments of each call come from the
engine's own driver.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cache, lru_cache, partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from attrs import frozen
from jax import Array

from conformance.engines.driving import call_of
from conformance.exploration.instances import Instance
from conformance.refinement.answers import Answer, answer, nothing
from conformance.refinement.names import same_step
from conformance.refinement.transition import agrees, refuses
from conformance.refinement.vmapped import Kind, unsampled
from impl import arguments, entries
from impl.engine import compiled
from impl.models.integer import IntegerModel
from impl.setup import Setup
from impl.state import FINISH_CODES, initial
from impl.state import State as DeviceState
from impl.state.index import link
from impl.state.packing import Packed, pack, unpack
from spec import model
from spec.cells import POISON
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import InFlight, State
from spec.vocabulary import INVALID, Refused, Tokens

JUNK: Final = 0xDEADBEEF
"""Each word of a dead cell."""

Call = tuple[tuple[Any, ...], Answer]
"""Arguments of an entry point, and its expected answer."""


@frozen(eq=False)
class Asked:
    """A call of an entry point: its arguments and the expected answer."""

    entry: str
    call: Call


def setup_of(instance: Instance) -> Setup:
    """The engine of an instance, with the integer model."""
    return Setup(
        geometry=instance.geometry,
        limits=instance.limits,
        model=IntegerModel(),
        cleanup=instance.cleanup,
    )


def kinds(setup: Setup) -> dict[str, Kind]:
    """One check per entry point."""
    return {
        name: Kind(name, partial(_check, setup, name), _Shipped(setup, name))
        for name in entries.NAMES
    }


def blind_kinds(setup: Setup) -> dict[str, Kind]:
    """The checks that an entry point does not look at names."""
    return {
        name: Kind(name, partial(_check_blind, setup, name), unsampled) for name in entries.NAMES
    }


def encode(setup: Setup, state: State) -> DeviceState:
    """The engine's state for a state of the specification, as numpy arrays."""
    leaves, shape = _blank_leaves(setup)
    held: Any = jax.tree.unflatten(shape, [leaf.copy() for leaf in leaves])
    for encode_components in ENCODERS.values():
        encode_components(setup, held, state)
    encoded: DeviceState = held._replace(pages=held.pages._replace(cache=_pools(setup, state)))
    return encoded


def ask(
    setup: Setup,
    machine: Machine,
    state: State,
    action: Action,
    after: State | None,
) -> Asked | frozenset[int]:
    """The call by which the driver applies an action; or the codes of its own refusal.

    after: the expected successor; None if the action is refused.
    """
    made = _driven(setup, action)
    if isinstance(made, frozenset):
        return made
    name, given, size = made
    wanted = nothing(size) if after is None else answer(setup, machine, state, action, after, size)
    return Asked(name, (given, wanted))


@lru_cache(maxsize=1 << 16)
def _driven(setup: Setup, action: Action) -> tuple[str, tuple[Any, ...], int] | frozenset[int]:
    try:
        name, passed = call_of(setup, action)
    except Refused as refused:
        return frozenset(reason.value for reason in refused.reasons)
    given = jax.tree.map(np.asarray, passed)
    return name, given, result_size(setup, name, given)


def forget_calls() -> None:
    """Forget the calls of the driver, which is about to be another one."""
    _driven.cache_clear()


_SIZES: Final[dict[tuple[Setup, str], int]] = {}


def result_size(setup: Setup, name: str, given: tuple[Any, ...]) -> int:
    """The length of an entry point's result."""
    if (setup, name) not in _SIZES:
        entry = partial(getattr(entries, name), setup, ())
        shapes = jax.eval_shape(lambda: initial(setup))
        _SIZES[setup, name] = jax.eval_shape(entry, shapes, *given)[2].shape[0]
    return _SIZES[setup, name]


class Table:
    """Encoded states by key, in growing arrays from which batches are gathered."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._places: dict[Hashable, int] = {}
        self._leaves: list[Any] = []

    def place(self, key: Hashable, state: State) -> int:
        """The place of the state with this key; the state is encoded at its first use."""
        found = self._places.setdefault(key, len(self._places))
        if found == len(self._places) - 1:
            leaves = jax.tree.leaves(encode(self._setup, state))
            if not self._leaves:
                self._leaves = [np.zeros((1024, *leaf.shape), leaf.dtype) for leaf in leaves]
            if found == len(self._leaves[0]):
                self._leaves = [np.concatenate([held, held]) for held in self._leaves]
            for held, leaf in zip(self._leaves, leaves, strict=True):
                held[found] = leaf
        return found

    def __len__(self) -> int:
        """How many states are encoded."""
        return len(self._places)

    def gather(self, places: Any) -> DeviceState:
        """The states at these places, stacked."""
        shape = jax.tree.structure(_blank(self._setup))
        state: DeviceState = jax.tree.unflatten(shape, [held[places] for held in self._leaves])
        return state


@cache
def _blank(setup: Setup) -> DeviceState:
    """A new state as numpy arrays."""
    state: DeviceState = jax.tree.map(np.array, jax.jit(lambda: initial(setup))())
    return state


@cache
def _blank_leaves(setup: Setup) -> tuple[list[Any], Any]:
    """The leaves of a new state and their structure."""
    return jax.tree.flatten(_blank(setup))


def _encode_pages(_setup: Setup, held: Any, state: State) -> None:
    held.pages.counts[:] = state.counts
    for slot, sequence in enumerate(state.sequences):
        if sequence is not None:
            held.pages.rows[slot, : len(sequence.row)] = sequence.row
            held.slots.used[slot] = True
            held.slots.tokens[slot, : len(sequence.tokens)] = sequence.tokens
            held.slots.known[slot] = len(sequence.tokens)
            held.slots.allocated[slot] = sequence.allocated
            held.slots.written[slot] = sequence.written
            held.slots.committed[slot] = sequence.written


def _encode_drafts(_setup: Setup, held: Any, state: State) -> None:
    for slot, drafts in enumerate(state.proposed):
        known = int(held.slots.known[slot])
        held.slots.committed[slot] = state.committed[slot]
        held.slots.proposed[slot] = len(drafts)
        held.slots.tokens[slot, known : known + len(drafts)] = drafts


def _encode_requests(setup: Setup, held: Any, state: State) -> None:
    for slot, detail in enumerate(state.details):
        if detail is not None:
            held.slots.prompt_lens[slot] = detail.prompt_len
            held.slots.choices[slot] = detail.choice
            held.slots.finished[slot] = FINISH_CODES[detail.finished] if detail.finished else 0
            params = arguments.params(setup, [detail.params], [detail.request])
            for name, value in params._asdict().items():
                getattr(held.slots, name)[slot] = value[0]
    for index, output in enumerate(state.outputs):
        held.outputs.requests[index] = output.request
        held.outputs.choices[index] = output.choice
        held.outputs.reasons[index] = FINISH_CODES[output.reason]
        held.outputs.lens[index] = len(output.tokens)
        held.outputs.tokens[index, : len(output.tokens)] = output.tokens
    held.outputs.filled[...] = len(state.outputs)


def _encode_queue(_setup: Setup, held: Any, state: State) -> None:
    for index, queued in enumerate(state.queue):
        held.queue.tokens[index] = queued.token
        held.queue.slots[index] = queued.slot
        held.queue.positions[index] = queued.position
    held.queue.filled[...] = len(state.queue)


def _encode_index(setup: Setup, held: Any, state: State) -> None:
    """Pages enter as they would in the engine, a parent before its children."""
    if not state.indexed:
        return
    held.slots.contexts[:], held.slots.stale[:] = state.contexts, state.stale
    size, known = setup.geometry.page_size, dict[tuple[int, Tokens], int]()
    entered = [(entry, page) for page, entry in enumerate(state.indexed) if entry]
    linked = _blank(setup).indexed
    for entry, page in sorted(entered, key=lambda one: len(one[0].chain)):
        parent = known.get((entry.context, entry.chain[:-size]), INVALID)
        tokens = np.array(entry.chain[-size:], np.int32)
        numbers = map(np.int32, (page, entry.context, parent))
        linked = _linked(linked, *numbers, tokens)
        known[entry.context, entry.chain] = page
        held.pages.released[page] = entry.rank
    held.pages.clock[...] = setup.geometry.pages + 1
    for name, field in linked._asdict().items():
        getattr(held.indexed, name)[...] = field


def _encode_flights(setup: Setup, held: Any, state: State) -> None:
    steps = held.flights
    steps.filled[...] = len(state.flights)
    for index, flight in enumerate(state.flights):
        steps.retired[index] = flight.retired
        named = {page for part in flight.parts for page in part.pages}
        held.pages.held[[*named]] += 1
        for part in flight.parts:
            steps.holds[index, part.slot] = True
            steps.first[index, part.slot] = part.first
            steps.lens[index, part.slot] = part.count
            steps.draws[index, part.slot] = part.draws
            start = _first_entry(setup, part)
            steps.rows[index, part.slot, start : start + len(part.pages)] = part.pages


def _first_entry(setup: Setup, part: InFlight) -> int:
    """The entry of the row that the first page of a part has; 0 where nothing tells it any more."""
    return setup.geometry.pages_for(part.end) - len(part.pages) if part.current else 0


_linked = jax.jit(link)

ENCODERS: Final[Mapping[str, Callable[[Setup, Any, State], None]]] = {
    "pages": _encode_pages,
    "rollback": _encode_drafts,
    "lifecycle": _encode_requests,
    "scheduling": _encode_queue,
    "prefix": _encode_index,
    "flights": _encode_flights,
}
"""For each rung whose components are on the device, how they stand in the engine's arrays.

Without the rung rollback, everything written is committed. The rows say what is released. Which
entries the pages of a step have, of whose slot it has no positions any more, nothing asks.
"""


def _pools(setup: Setup, state: State) -> tuple[Any, ...]:
    """A pool per layer, with K and V of each live cell in their place."""
    pools = tuple(np.full_like(pool, JUNK) for pool in _blank(setup).pages.cache)
    live = {
        (page, offset): tag
        for page, content in enumerate(state.cells)
        for offset, tag in enumerate(content)
        if tag != POISON
    }
    for (page, offset), tag in (live | _read_in_flight(setup, state)).items():
        words = model.contents(tag, setup.geometry.window)
        for index, pool in enumerate(pools):
            pool[page, offset, :, 0] = words[2 * index : 2 * index + 2]
    return pools


def _read_in_flight(setup: Setup, state: State) -> dict[tuple[int, int], Tokens]:
    """The cells that steps in flight read in the pages that they name, also if no row does."""
    size, found = setup.geometry.page_size, dict[tuple[int, int], Tokens]()
    for part in (part for flight in state.flights for part in flight.parts if part.current):
        sequence = state.sequences[part.slot]
        assert sequence is not None
        text, start = sequence.tokens + state.proposed[part.slot], _first_entry(setup, part)
        for position in range(start * size, min(sequence.written, part.end)):
            entry, offset = divmod(position, size)
            found[part.pages[entry - start], offset] = text[: position + 1]
    return found


def _check(
    setup: Setup, name: str, before: DeviceState, call: Call, after: DeviceState, mask: Array
) -> Array:
    given, wanted = call
    seen, status, result = getattr(entries, name)(setup, (), before, *given)
    told = jnp.all((result == wanted.result) | ~wanted.care)
    return agrees(setup, before, seen, status, after, mask) & (refuses(mask) | told)


def _check_blind(
    setup: Setup, name: str, before: DeviceState, calls: Any, other: DeviceState, _mask: Array
) -> Array:
    call, (again, slots, pages) = calls
    return same_step(setup, name, (before, other), (slots, pages), call, again)


@lru_cache(maxsize=4)
def _compiled_judge(setup: Setup) -> Any:
    """The comparison of states, compiled once for all entry points."""

    def judge(
        before: DeviceState, packed: Packed, status: Array, after: DeviceState, mask: Array
    ) -> Array:
        return agrees(setup, before, unpack(setup, packed), status, after, mask)

    return jax.jit(judge)


class _Shipped:
    """The same check of the entry point that an engine runs: jitted alone, its state donated."""

    def __init__(self, setup: Setup, name: str) -> None:
        self._entry, self._judge = compiled(setup, name), _compiled_judge(setup)

    def __call__(self, before: DeviceState, call: Call, after: DeviceState, mask: Any) -> bool:
        given, wanted = call
        packed = jax.tree.map(jnp.array, _compiled_pack(before))
        packed, report = self._entry((), packed, *given)
        report = np.asarray(report)
        if not np.any(mask) and (report[3:] != wanted.result)[wanted.care].any():
            return False
        return bool(self._judge(before, packed, report[:3], after, mask))


_compiled_pack = jax.jit(pack)
