"""The timed calls of `make bench`: imports, entry points on a prepared state, the model alone.

Each call does its work once and returns the seconds of the measured part. Calls are made in turns,
so that the drift of a shared machine affects all of them alike.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from attrs import evolve

from conformance.engines import pool_copies
from impl import arguments
from impl.commit import commit_pages
from impl.engine import Engine, compiled
from impl.models.integer import IntegerModel
from impl.models.llama import Llama
from impl.models.protocol import BatchPlan, Cache, Weights
from impl.plan import batch_plan, plan_pages, sort_batch
from impl.setup import Setup
from impl.state import State, queue
from impl.state.packing import Packed
from spec.vocabulary import INVALID, Geometry, Limits, Params, Refused, Request

GEOMETRY: Final = Geometry(pages=64, page_size=16, slots=8, pages_per_seq=8)
LIMITS: Final = Limits(
    queue=16,
    prefill_tokens=128,
    prefill_seqs=4,
    round_tokens=8,
    rounds=4,
    stops=2,
    stop_len=4,
    outputs=16,
)
WIDE: Final = Llama(
    vocabulary=64, layers=1, embed=32, q_heads=4, kv_heads=4, head_dim=64, mlp=32, q_block=4
)
"""A cell of 2 KiB: 4,096 pages are 128 MiB, and a copy of them shows in the time."""
T = TypeVar("T")

Timed = Callable[[], float]
"""Does its work once and returns the seconds of the measured part."""


def take_turns(calls: list[Timed], *, turns: int) -> list[float]:
    """The median seconds of each call, made in turns, so that drift affects all alike."""
    taken = [[call() for call in calls] for _ in range(turns)]
    return [median(column) for column in zip(*taken, strict=True)]


def wait(tree: T) -> T:
    """The same arrays, after they are computed."""
    there: T = jax.block_until_ready(tree)  # type: ignore[no-untyped-call]
    return there


def exact(*, pages: int = GEOMETRY.pages, slots: int = GEOMETRY.slots) -> Setup:
    """The exact model, with limits that fit the slots."""
    limits = evolve(LIMITS, queue=max(16, slots), outputs=max(16, slots))
    geometry = evolve(GEOMETRY, pages=pages, slots=slots)
    return Setup(geometry=geometry, limits=limits, model=IntegerModel())


def wide(pages: int) -> Setup:
    """The wide model."""
    return Setup(geometry=evolve(GEOMETRY, pages=pages), limits=LIMITS, model=WIDE)


def request(number: int, prompt: int, max_new: int, choices: int = 1) -> Request:
    """A request with a prompt of this many tokens."""
    tokens = tuple(1 + index % 7 for index in range(prompt))
    return Request(id=number, prompt=tokens, params=Params(max_new=max_new), n_generations=choices)


def importing(code: str) -> Timed:
    """An import in a fresh process, without the start of the interpreter."""
    script = f"import time\nt = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)"

    def call() -> float:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        return float(done.stdout)

    return call


def calling(engine: Engine, name: str, *rest: object) -> Timed:
    """Calls of an entry point, each on the state that the last one left."""
    run = compiled(engine.setup, name)

    def call() -> float:
        start = time.perf_counter()
        engine.packed, report = run((), engine.packed, *rest)
        wait((engine.packed, report))
        return time.perf_counter() - start

    call()
    return call


def allocating(setup: Setup) -> Timed:
    """Allocation of the same two pages of slot 0, which is freed and reserved in between."""
    engine = Engine(setup)
    engine.reserve(0)
    batch = arguments.batch(setup, [(0, position) for position in range(17)])
    timed = calling(engine, "allocate", *batch)

    def call() -> float:
        engine.free(0)
        engine.reserve(0)
        return timed()

    return call


_LIVE, _PUBLISHED, _RESERVED, _ALLOCATED, _INDEXED, _DRAFTED, _UNUSED = range(7)
"""The slots of `Prepared`: two of requests, the second with a page in the index, one without a
prompt, one with unwritten cells, one without cells whose text the index has, one with a draft, and
one that nothing has."""

_IDLE: Final = (9,) * 16
"""The text of a page of the index that no row names."""


def _cells(slot: int) -> list[tuple[int, int]]:
    return [(slot, position) for position in range(20)]


def _metadata(engine: Engine) -> Packed:
    copied: Packed = jax.tree.map(np.array, engine.packed._replace(cache=()))
    return copied


class Prepared:
    """Entry points of the wide model, each called on the same metadata, in which it is legal.

    Those that need a step in flight, which others may not have, are called on metadata with one.

    The pool is passed from call to call, so that its creation is not measured.
    """

    def __init__(self, pages: int, compiled_entries: dict[str, jax.stages.Compiled]) -> None:
        self._weights = jax.jit(WIDE.init)(jax.random.key(0))
        engine = Engine(wide(pages), self._weights)
        engine.prefill([request(1, 20, 40), request(2, 33, 40)])
        engine.publish(_PUBLISHED, 16)
        engine.prefill([evolve(request(3, 17, 40), prompt=(*_IDLE, 9))])
        engine.publish(_RESERVED, 16)
        engine.free(_RESERVED)
        for slot in (_ALLOCATED, _INDEXED, _DRAFTED):
            engine.reserve(slot)
            engine.assign(slot, request(slot, 20, 40).prompt, Params(max_new=40), request=slot)
        engine.reserve(_RESERVED)
        engine.allocate(_cells(_ALLOCATED))
        engine.allocate(_cells(_DRAFTED))
        engine.write(_cells(_DRAFTED))
        engine.propose(_DRAFTED, (5,))
        engine.purge(_DRAFTED)
        engine.allocate([(_DRAFTED, 20)])
        engine.write([(_DRAFTED, 20)])
        self._metadata = _metadata(engine)
        engine.dispatch([(_LIVE, 1)])
        self._others = {"retire": _metadata(engine)}
        engine.retire()
        self._others["deliver"] = _metadata(engine)
        self.cache = engine.packed.cache
        self._programs, self._arguments = compiled_entries, legal_arguments(wide(pages))

    def entry(self, name: str) -> Timed:
        """One call of this entry point, which must not be refused."""
        program, rest = self._programs[name], self._arguments[name]

        def call() -> float:
            held = self._others.get(name, self._metadata)
            copied: Packed = jax.tree.map(jnp.array, held)
            state = wait(copied._replace(cache=self.cache))
            start = time.perf_counter()
            after, report = wait(program(self._weights, state, *rest))
            seconds = time.perf_counter() - start
            self.cache = after.cache
            if report[0]:
                raise AssertionError(f"{name} was refused: {report[:3]}")
            return seconds

        call()
        return call


def programs(pages: int) -> dict[str, jax.stages.Compiled]:
    """Every entry point of the wide model, compiled ahead of time, for the pool-copy check."""
    setup = wide(pages)
    state, weights = pool_copies.abstract_state(setup), jax.eval_shape(WIDE.init, jax.random.key(0))
    return {
        name: compiled(setup, name).lower(weights, state, *rest).compile()
        for name, rest in legal_arguments(setup).items()
    }


def legal_arguments(setup: Setup) -> dict[str, tuple[object, ...]]:
    """Arguments that are legal in the state of `Prepared`."""
    one_page = [(_RESERVED, position) for position in range(16)]
    changed: dict[str, tuple[object, ...]] = {
        "reserve": (np.int32(INVALID), np.int32(0)),
        "assign": (
            np.int32(_RESERVED),
            np.int32(0),
            *arguments.prompt(setup, (1, 2)),
            arguments.params(setup, [Params(max_new=3)], [7]),
        ),
        "begin": (
            np.zeros((3 + setup.geometry.slots,), np.int32),
            np.int32(_UNUSED),
            *arguments.prompt(setup, (1, 2)),
            arguments.params(setup, [Params(max_new=3)], [7]),
        ),
        "allocate": arguments.batch(setup, one_page),
        "write": arguments.batch(setup, _cells(_ALLOCATED)),
        "clone": (np.int32(_LIVE), np.int32(INVALID), np.int32(1)),
        "enqueue": (np.int32(_ALLOCATED), np.int32(5)),
        "commit": (np.int32(_DRAFTED), np.int32(21)),
        "truncate": (np.int32(_DRAFTED), np.int32(20)),
        "hit": (np.int32(_INDEXED), np.int32(16)),
        "share": (np.int32(_PUBLISHED), np.int32(_INDEXED), np.int32(16)),
        "merge": (np.int32(_LIVE), np.int32(0)),
        "evict": (*arguments.prompt(setup, _IDLE), np.int32(0)),
        "mixed_round": (arguments.chunks(setup, [(_INDEXED, 1)]),),
        "preempt": (np.int32(1),),
        "replay": (np.int32(_INDEXED), *arguments.prompt(setup, (1,))),
        "prefill_requests": (arguments.prefill_work(setup, [request(8, 20, 40, 2)]),),
    }
    return pool_copies.example_arguments(setup) | changed


def rounding(engine: Engine, weights: Weights, held: State) -> Timed:
    """Decode rounds, one after another."""
    run = compiled(engine.setup, "run_round")

    def call() -> float:
        engine.inject(held)
        wait(engine.packed)
        start = time.perf_counter()
        engine.packed, report = run(weights, engine.packed)
        wait((engine.packed, report))
        return time.perf_counter() - start

    call()
    return call


def modelling(setup: Setup, weights: Weights, held: State) -> Timed:
    """The model's step and draw alone, on the batch of the next round."""
    width, geometry, done = LIMITS.round_tokens, setup.geometry, jnp.ones((), jnp.bool_)

    @jax.jit
    def prepare(state: State) -> tuple[BatchPlan, jax.Array, jax.Array]:
        slots, positions = queue.head(state.queue, width)
        batch = sort_batch(slots, positions, seqs=width)
        grant = plan_pages(state, batch, geometry)
        state = commit_pages(state, batch, grant, done, geometry)
        tokens = state.slots.tokens[batch.slots, batch.positions]
        return batch_plan(state, batch, done, geometry), tokens, batch.positions

    def step(weights: Weights, cache: Cache, *batch: Any) -> tuple[Any, Cache]:
        rows, cache = setup.model.decode(weights, cache, *batch, window=geometry.window)
        zeros = jnp.zeros((width,), jnp.int32)
        drawn = setup.model.sample(weights, rows, zeros, zeros, zeros, zeros.astype(jnp.float32))
        return drawn, cache

    batch, run = prepare(jax.tree.map(jnp.array, held)), jax.jit(step, donate_argnums=1)

    def call() -> float:
        cache = wait(jax.tree.map(jnp.array, held.pages.cache))
        start = time.perf_counter()
        wait(run(weights, cache, *batch))
        return time.perf_counter() - start

    call()
    return call


class Prompting:
    """First tokens of long prompts of a small Llama, read in parts of LIMITS.prefill_tokens / 2.

    Each call begins a sequence, writes its prompt, and draws the first token in a round. The last
    token of the prompt is queued for that round.
    """

    def __init__(self, model: Llama, *, shared: int, own: int) -> None:
        """shared, own: how many tokens of each prompt are those of all prompts, or its own.

        The shared ones are whole pages.
        """
        self._geometry = Geometry(pages=160, page_size=16, slots=2, pages_per_seq=48)
        self._part = LIMITS.prefill_tokens // 2
        setup = Setup(
            geometry=self._geometry,
            limits=evolve(LIMITS, prefill_tokens=self._part, prefill_seqs=2),
            model=model,
        )
        self._engine = Engine(setup, jax.jit(model.init)(jax.random.key(0)))
        self._shared, self._own, self._made = shared, own, 0

    def plain(self) -> float:
        """Nothing is looked up, and nothing published."""
        return self._timed(self._prompt(is_shared=False), hits=None, publish=False)

    def missing(self) -> float:
        """A prompt that was never there is looked up, and published; it evicts earlier ones."""
        return self._timed(self._prompt(is_shared=False), hits=False, publish=True)

    def hitting(self) -> float:
        """The shared tokens are hit. They were published before."""
        self._timed(self._prompt(is_shared=True), hits=None, publish=True)
        return self._timed(self._prompt(is_shared=True), hits=True, publish=True)

    def _prompt(self, *, is_shared: bool) -> tuple[int, ...]:
        """A prompt that no earlier call has had, but for its shared tokens."""
        self._made += 1
        count = self._shared + self._own
        others = [1 + (self._made * 7 + at * at) % 997 for at in range(count)]
        return (*[1 + at % 13 for at in range(self._shared * is_shared)], self._made % 1000,
                *others)[:count]  # fmt: skip

    def _timed(self, prompt: tuple[int, ...], *, hits: bool | None, publish: bool) -> float:
        """hits: whether a lookup must find the shared tokens; None for no lookup."""
        engine = self._engine
        wait(engine.packed)
        start = time.perf_counter()
        engine.reserve(0)
        engine.assign(0, prompt[:-1], Params(max_new=8), request=self._made)
        engine.enqueue(0, prompt[-1])
        found = False
        if hits is not None:
            with suppress(Refused):
                engine.hit(0, self._shared)
                found = True
            assert found is hits, "the figure is of prompts that are hit, or not, as it says"
        written = self._shared if found else 0
        for begin in range(written, len(prompt) - 1, self._part):
            batch = [(0, at) for at in range(begin, min(begin + self._part, len(prompt) - 1))]
            engine.allocate(batch)
            engine.write(batch)
        if publish:
            engine.publish(0, len(prompt) - 1)
        engine.round()
        wait(engine.packed)
        took = time.perf_counter() - start
        engine.free(0)
        return took
