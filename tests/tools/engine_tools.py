"""Tools for the tests of the engine: setups, actions on an engine, and comparison with the spec.

The adapter of the conformance kit is not used here: the engine is called by its own methods and
read by its own arrays.
"""

from typing import Any, Final, cast

import jax
import numpy as np
from attrs import evolve
from jax import Array
from numpy.typing import NDArray
from spec_tools import INDEXING as MACHINE

from impl.engine import Engine
from impl.models.integer import IntegerModel
from impl.models.protocol import Cache
from impl.setup import Setup
from impl.state import FINISH_CODES
from impl.state import State as DeviceState
from spec import model
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.state import Output, State
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Geometry,
    Limits,
    Params,
    Request,
    Tokens,
)

GEOMETRY: Final = Geometry(pages=8, page_size=2, slots=4, pages_per_seq=4)
LIMITS: Final = Limits(
    queue=5,
    prefill_tokens=8,
    prefill_seqs=3,
    round_tokens=3,
    rounds=4,
    stops=2,
    stop_len=3,
    outputs=5,
)
SETUPS: Final = {
    cleanup: Setup(
        geometry=GEOMETRY,
        limits=LIMITS if cleanup is CleanupMode.NONE else evolve(LIMITS, rounds=1),
        model=IntegerModel(),
        cleanup=cleanup,
        logprobs=cleanup is not CleanupMode.END,
    )
    for cleanup in CleanupMode
}
"""One setup for each cleanup mode, shared by all tests, since compilation takes longest."""
KEPT: Final = SETUPS[CleanupMode.NONE]
"""A setup in which finished sequences stay, so that every action can be tried on them."""

WINDOWED: Final = evolve(KEPT, geometry=evolve(GEOMETRY, window=3))
"""The same with a window."""

Leaves = list[NDArray[Any]]


def params(max_new: int, *stops: Tokens, temperature: float = 0.0, seed: int = 0) -> Params:
    """Parameters, with stops and seed in one call."""
    return Params(max_new=max_new, stops=stops, temperature=temperature, seed=seed)


def request(number: int, prompt: Tokens, max_new: int, choices: int = 1, **how: Any) -> Request:
    """A request and its parameters in one call."""
    given = params(max_new, *how.pop("stops", ()), **how)
    return Request(id=number, prompt=prompt, params=given, n_generations=choices)


def specification(setup: Setup) -> State:
    """The initial state of the specification, with the sizes of an engine."""
    return MACHINE.initial(setup.geometry, setup.limits, setup.cleanup)


def do(engine: Engine, action: Action) -> Any:
    """Take an action of the specification on an engine, and return the engine's result."""
    match action:
        case act.Assign(slot, prompt, given):
            return engine.assign(slot, prompt, given, request=action.request, choice=action.choice)
        case act.Clone(parent, child):
            return engine.clone(parent, child, choice=action.choice)
        case act.Enqueue(slot, token):
            return engine.enqueue(slot, token)
        case act.Reserve(slot) if slot is None or isinstance(slot, int):
            return engine.reserve(slot, context=action.context)
        case act.Free(int(slot)) | act.Purge(slot):
            return engine.free(slot) if isinstance(action, act.Free) else engine.purge(slot)
        case act.Allocate(batch):
            return engine.allocate(batch)
        case act.Write(batch):
            return engine.write(batch)
        case act.Prefill(requests):
            return engine.prefill(requests)
        case act.Reset(mode):
            return engine.reset(mode)
        case _:
            return _others(engine, action)


def _others(engine: Engine, action: Action) -> Any:
    match action:
        case act.Propose(slot, tokens):
            return engine.propose(slot, tokens)
        case act.Commit(slot, length) | act.Truncate(slot, length):
            return (engine.commit if isinstance(action, act.Commit) else engine.truncate)(
                slot, length
            )
        case act.Release(slot, before):
            return engine.release(slot, before)
        case act.Hit(slot, length):
            return engine.hit(slot, length)
        case act.Share(parent, slot, length):
            return engine.share_prefix(parent, slot, length)
        case act.Publish(slot, length):
            return engine.publish(slot, length)
        case act.Merge(slot, entry):
            return engine.merge(slot, entry)
        case act.Evict(tokens):
            return engine.evict(tokens, context=action.context)
        case _:
            return _of_rounds(engine, action)


def _of_rounds(engine: Engine, action: Action) -> Any:
    match action:
        case act.MixedRound(chunks):
            return engine.mixed_round(chunks)
        case act.Dispatch(chunks):
            return engine.dispatch(chunks)
        case act.Preempt(request):
            return engine.preempt(request)
        case act.Replay(slot, tokens):
            return engine.replay(slot, tokens)
        case _:
            return _PLAIN[type(action)](engine)


_PLAIN = {
    act.Drop: Engine.drop,
    act.FreeFinished: Engine.free_finished,
    act.Pack: Engine.pack,
    act.Round: Engine.round,
    act.Generate: Engine.generate,
    act.TakeOutputs: Engine.take_outputs,
    act.Retire: Engine.retire,
    act.Deliver: Engine.deliver,
}


def run(engine: Engine, *history: Action) -> Engine:
    """Take these actions, and return the engine."""
    for action in history:
        do(engine, action)
    return engine


def leaves(state: DeviceState) -> Leaves:
    """Copies of all arrays of a state."""
    return [np.array(leaf) for leaf in jax.tree.leaves(state)]


def assert_identical(expected: DeviceState, seen: DeviceState, *, cache: bool = True) -> None:
    """Assert that two states are equal bit for bit. cache: whether to compare the pools too."""
    both = (expected, seen) if cache else (with_cache(expected, ()), with_cache(seen, ()))
    leaves = (jax.tree_util.tree_leaves_with_path(state) for state in both)
    for (path, before), (same_path, after) in zip(*leaves, strict=True):
        assert path == same_path
        name = jax.tree_util.keystr(path)
        np.testing.assert_array_equal(_bits(before), _bits(after), err_msg=name)


def with_cache(state: DeviceState, cache: Cache) -> DeviceState:
    """A state with other pools."""
    return state._replace(pages=state.pages._replace(cache=cache))


def garbage(engine: Engine, seed: int = 0) -> DeviceState:
    """The engine's state with random words in every cell of the pool."""
    rng, held = np.random.default_rng(seed), engine.extract()
    words = [rng.integers(1, 2**32, pool.shape, dtype=np.uint32) for pool in held.pages.cache]
    return with_cache(held, cast(Cache, tuple(words)))


def assert_holds(engine: Engine, state: State) -> None:
    """Assert that the engine's arrays equal the specification's state, each live cell included."""
    held = engine.extract()
    slots = [index for index, found in enumerate(state.sequences) if found is not None]
    assert slots == np.flatnonzero(held.slots.used).tolist()
    assert [*state.counts] == held.pages.counts.tolist()
    for slot in slots:
        sequence, detail = state.sequences[slot], state.details[slot]
        assert sequence is not None
        row = held.pages.rows[slot].tolist()
        past = [INVALID] * (len(row) - len(sequence.row))
        assert [*sequence.row, *past] == row
        lengths = [len(sequence.tokens), sequence.allocated, sequence.written]
        assert lengths == _column(slot, held.slots.known, held.slots.allocated, held.slots.written)
        assert [*sequence.tokens] == held.slots.tokens[slot][: lengths[0]].tolist()
        finished = detail.finished if detail else None
        assert [FINISH_CODES[finished] if finished else 0] == _column(slot, held.slots.finished)
        text = (*sequence.tokens, *state.proposed[slot])
        _assert_contents(held, slot, text, sequence.written, window=state.geometry.window)
    queue = [[queued.token, queued.slot, queued.position] for queued in state.queue]
    columns = (held.queue.tokens, held.queue.slots, held.queue.positions)
    assert queue == [_column(index, *columns) for index in range(int(held.queue.filled))]
    _assert_outputs(held, state.outputs)


def expected_logprobs(prompt: Tokens, generated: Tokens) -> tuple[float, ...]:
    """The exact model's log-probabilities: 24 bits of the last row before each token."""
    rows = [hidden for _, hidden in model.forward(prompt + generated)]
    return tuple(-(row >> 8) / 2**24 for row in rows[len(prompt) - 1 : -1])


def _assert_contents(
    held: DeviceState, slot: int, tokens: Tokens, written: int, *, window: int | None
) -> None:
    size = held.pages.cache[0].shape[1]
    for position in range(written):
        page = held.pages.rows[slot][position // size]
        if page == INVALID:  # it is released
            continue
        cell = [
            int(word) for pool in held.pages.cache for word in pool[page, position % size].ravel()
        ]
        assert model.contents(tokens[: position + 1], window) == tuple(cell)


def _assert_outputs(held: DeviceState, outputs: tuple[Output, ...]) -> None:
    kept = held.outputs
    columns = (kept.requests, kept.choices, kept.reasons, kept.lens)
    assert len(outputs) == int(kept.filled)
    for index, output in enumerate(outputs):
        names = [output.request, output.choice, FINISH_CODES[output.reason], len(output.tokens)]
        assert names == _column(index, *columns)
        assert [*output.tokens] == kept.tokens[index][: names[3]].tolist()


def _column(index: int, *arrays: Array) -> list[int]:
    return [int(array[index]) for array in arrays]


def _bits(leaf: Any) -> NDArray[Any]:
    array = np.asarray(leaf)
    return array.view(np.uint32) if array.dtype == np.float32 else array
