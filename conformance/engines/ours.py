"""The adapter of the reference engine, with the exact integer model.

The whole observable state is read back as one packed array.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
from attrs import asdict
from jax import Array

from conformance.engines import pool_copies
from conformance.engines.driving import drive, entries_of, host_plan, with_a_list
from conformance.engines.lost_state import lose
from conformance.engines.serving import Serving, require_there
from conformance.engines.snapshots import WORDS, Views, layout, snapshots
from conformance.engines.trouble import (
    RAISED,
    RestorableHost,
    Trouble,
    TroubledEngine,
    damaged,
    is_main_thread,
)
from conformance.engines.wrong_kinds import replaced, wrong_values
from conformance.protocol import Action, EngineFailed, Poison, Profile, Result, Rounds
from conformance.runtime import compiled_code
from impl import host
from impl.attention.reference import ragged_paged_attention
from impl.engine import Engine, Output, StateLost
from impl.models.integer import IntegerModel
from impl.models.protocol import BatchPlan as DevicePlan
from impl.setup import Setup
from impl.state import State
from impl.state.packing import Packed, unpack
from spec.fields import OutputEntry
from spec.machines import actions as act
from spec.stats import NAMED
from spec.table import BatchPlan
from spec.view import View
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Reason,
    Refused,
    Request,
    ResetMode,
)
from spec.vocabulary.events import Event

# One step at a time is taken and read back: handing each to another thread only adds latency.
jax.config.update("jax_cpu_enable_async_dispatch", val=False)  # type: ignore[no-untyped-call]
compiled_code.keep()

ACTIONS = frozenset(
    {
        act.Reserve,
        act.Assign,
        act.Hit,
        act.Share,
        act.Publish,
        act.Merge,
        act.Evict,
        act.Drop,
        act.Allocate,
        act.Write,
        act.Clone,
        act.Commit,
        act.Free,
        act.Release,
        act.FreeFinished,
        act.Reset,
        act.TakeOutputs,
        act.Truncate,
        act.Enqueue,
        act.Pack,
        act.Purge,
        act.Prefill,
        act.Propose,
        act.Round,
        act.MixedRound,
        act.Preempt,
        act.Replay,
        act.Dispatch,
        act.Retire,
        act.Deliver,
        act.Generate,
        act.Submit,
        act.Admit,
    }
)
"""Those that it offers; Release only if there is a window."""
LIMITS = frozenset({Reason.OUT_OF_PAGES, Reason.QUEUE_FULL, Reason.OUTPUTS_FULL, Reason.TOO_LONG})
"""Reasons whose refusal has two numbers: one that is not allowed, and the most that may be."""
SELDOM = 300
TROUBLE_EVERY = {act.Reset: 4, act.Submit: 80, act.Admit: 40, act.TakeOutputs: 40, act.Generate: 80}
"""One of so many of these actions is done once more, in trouble, and one of SELDOM others."""
SETTLED = (act.Assign, act.Prefill)
"""Actions of the engine that may take the id of a request that has left."""
KINDS_EVERY = 8
"""One of so many actions has an argument of a wrong kind at first."""
_JUNK = {Poison.NAN: 0x7FC00000, Poison.INFINITY: 0x7F800000}


def make(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> "Ours":
    """The engine with everything observed."""
    return Ours(geometry, limits, cleanup, observed=True)


def make_without_cells(geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> "Ours":
    """The engine as users have it, and for large pools: without read-back of cells, and without
    log-probabilities. Wrong cells show in tokens.
    """
    return Ours(geometry, limits, cleanup, observed=False)


class Ours:
    """See `conformance.protocol`; it has every optional method, `logprobs` only if observed.

    observed: whether cells are read back, and log-probabilities are kept.
    """

    def __init__(
        self, geometry: Geometry, limits: Limits, cleanup: CleanupMode, *, observed: bool
    ) -> None:
        compiled_code.ignore_damage()
        setup = Setup(
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            model=IntegerModel(),
            logprobs=observed,
        )
        self._cells = observed
        if observed:
            self.logprobs = self._logprobs
        self._engine = TroubledEngine(setup)
        self._host = RestorableHost(self._engine)
        self._serving = Serving(self._engine, self._host)
        self._profile = Profile(
            name="kvspec reference engine",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=ACTIONS if geometry.window else ACTIONS - {act.Release},
        )
        self._views = Views(layout(setup, cells=observed), geometry)
        self._seen: tuple[bytes, View] | None = None
        self._last_outputs: tuple[Output, ...] = ()
        self._plan: tuple[DevicePlan, BatchPlan] | None = None

    @property
    def profile(self) -> Profile:
        """Exact refusals, lowest free page first."""
        return self._profile

    @property
    def engine(self) -> Engine:
        """The engine itself."""
        return self._engine

    def apply(self, action: Action) -> Result:
        """Call the engine for an action; actions on requests go to the host.

        Some have an argument of a wrong kind at first, which nothing may come of. If everything is
        observed, some are done once more, in trouble: that copies the pool.
        """
        last = self._seen[0] if self._seen else b""
        asked = f"{len(self._host.state.waiting)} {action}"
        number = zlib.crc32(asked.encode(), zlib.crc32(last))
        every = TROUBLE_EVERY.get(type(action), SELDOM)
        self._require_kinds(action, number)
        try:
            if number % every or not self._cells or not is_main_thread():
                return self._do(action)
            return self._do_in_trouble_too(action, number // every)
        except Refused as refused:
            _require_past_its_limit(refused)
            raise

    def _do(self, action: Action) -> Result:
        match action:
            case act.Submit(request):
                self._host.submit(request)
            case act.Admit():
                self._admit()
            case act.Reset(mode):
                self._reset(mode)
            case act.TakeOutputs():
                self._last_outputs = self._host.take_outputs()
                return entries_of(self._last_outputs)
            case act.Generate():
                return Rounds(*self._host.generate_rounds())
            case act.Allocate(batch):
                return self._allocate(batch)
            case _:
                if self._host.state.admitted and isinstance(action, SETTLED):
                    self._host.settle()
                return drive(self._engine, action)
        return None

    def _do_in_trouble_too(self, action: Action, number: int) -> Result:
        """Do it; then once more from the state before, with trouble in one of its calls.

        Raises EngineFailed unless the action is then done or not, or the host says that its state
        is lost and the trouble is not Ctrl-C. After Ctrl-C in its last call it is done, unless it
        only reads; Ctrl-C that is ignored changes nothing.
        """
        number, kind = divmod(number, len(Trouble))
        trouble = tuple(Trouble)[kind]
        if isinstance(action, SETTLED):
            self._host.settle()  # which may be all that is done of it
        before, old = (self._engine.extract(), self._host.state), self._shown(action)
        result, refused = None, None
        with self._engine.meets(trouble):
            try:
                result = self._do(action)
            except Refused as error:
                refused = error
        after, new = (self._engine.extract(), self._host.state), self._shown(action)
        calls = 1 if isinstance(action, act.Reset) else self._engine.calls
        if calls:
            at = number % calls
            given = self._serving.put_back(*before)
            reads = refused is not None or isinstance(action, act.Submit)  # also in its last call
            may_be = {
                Trouble.CTRL_C: (new,) if at == calls - 1 and not reads else (old, new),
                Trouble.IGNORED: (new,),
            }
            told = f"after {trouble.value} in call {at} of {calls}, {action}"
            try:
                is_lost = self._meet(action, trouble, at)
                if not is_lost and self._shown(action) not in may_be.get(trouble, (old, new)):
                    raise EngineFailed(f"{told} is neither done nor not", clause="ATOMIC")
                require_there(given)
            except StateLost as lost:
                raise EngineFailed(f"{told}: {lost}", clause="ATOMIC") from None
            finally:
                self._serving.put_back(*after)
        if refused is not None:
            raise refused
        return result

    def _meet(self, action: Action, trouble: Trouble, at: int) -> bool:
        """Do it with trouble in the call of this number; returns whether its state is lost.

        Raises EngineFailed if the trouble is lost, and StateLost if the state must not be.
        """
        is_raised = False
        try:
            with self._engine.meets(trouble, at), suppress(Refused):
                self._do_plainly(action)
        except RAISED.get(trouble, ()):
            is_raised = True
        if is_raised != (trouble in RAISED):
            raise EngineFailed(f"{trouble.value} in call {at} of {action} is lost", clause="ATOMIC")
        if trouble is Trouble.CTRL_C and isinstance(action, act.TakeOutputs):
            self._do(action)  # what has left the device is kept for the next call
        self._engine.stats()
        return trouble is not Trouble.CTRL_C and self._serving.is_lost()

    def _shown(self, action: Action) -> tuple[object, ...]:
        """All that an action may change. A reset may leave what cells hold, or not."""
        cells = not isinstance(action, act.Reset)
        snapshot = np.asarray(snapshots(self._engine.packed, cells=cells))
        return snapshot.tobytes(), self._host.state, self._last_outputs

    def _require_kinds(self, action: Action, number: int) -> None:
        """Raise EngineFailed if an argument of a wrong kind is not refused by its name."""
        kind: type = type(action)
        wrong = wrong_values(kind)
        if number % KINDS_EVERY or not wrong:
            return
        name, value = wrong[number // KINDS_EVERY % len(wrong)]
        told = f"with {value!r} as {name}, {type(action).__name__} is done"
        try:
            self._do_plainly(replaced(action, name, value))
        except InvalidInput as refused:
            if refused.name == name:
                return
            told = f"{value!r} as {name} is refused as {refused.name}"
        except Exception as error:
            told = f"{value!r} as {name} raises {type(error).__name__}: {error}"
        raise EngineFailed(told, clause="ATOMIC")

    def _do_plainly(self, action: Action) -> Result:
        """Do it, without what may come before a reset."""
        if isinstance(action, act.Reset):
            self._host.reset(action.mode)
            return None
        return self._do(action)

    def _admit(self) -> None:
        """Admit. Raises EngineFailed unless the host tells which requests wait no more."""
        before = self._host.state.waiting
        admitted = self._host.admit()
        if (*admitted, *self._host.state.waiting) != before:
            wrong = f"it admits {admitted} of {before}, and {self._host.state.waiting} wait"
            raise EngineFailed(wrong, clause="DET")

    def _allocate(self, batch: tuple[tuple[int, int] | None, ...]) -> BatchPlan:
        """Allocate. Raises EngineFailed if that changes the plan of an earlier call."""
        plan = with_a_list(self._engine.allocate, batch)
        before, self._plan = self._plan, (plan, host_plan(plan))
        if before is not None and host_plan(before[0]) != before[1]:
            raise EngineFailed("the plan of an earlier call changes", clause="DET")
        return self._plan[1]

    def _reset(self, mode: ResetMode) -> None:
        """Reset: sometimes after a call that has lost the state, sometimes from a damaged state.

        It is not lost while steps are in flight, which would be lost with it. Raises EngineFailed
        if it is lost afterwards, too.
        """
        stats = self._engine.stats()
        if len(self._host.state.waiting) % 2 and not stats.in_flight:
            lose(self._engine, self._host)
        elif stats.queued % 2:
            self._engine.inject(damaged(self._engine.extract()))
        self._host.reset(mode)
        try:
            self._host.settle()
        except StateLost as lost:
            raise EngineFailed(f"after a reset: {lost}", clause="RESET") from None

    def observe(self) -> View:
        """Read the whole state back as one array; reuse the last view if nothing has changed."""
        snapshot = np.asarray(snapshots(self._engine.packed, cells=self._cells))
        held = snapshot.tobytes()
        if self._seen is None or held != self._seen[0]:
            self._seen = held, self._views.read(snapshot)
        return self._seen[1]

    def poison(self, kind: Poison) -> None:
        """Overwrite dead cells on the device."""
        if kind is Poison.STALE:
            return
        engine = self._engine
        junk = jnp.uint32(_JUNK.get(kind, 0))
        engine.packed = _poisoned(engine.setup, engine.packed, junk, live=kind is Poison.LIVE)

    def serve(self, requests: Sequence[Request]) -> tuple[OutputEntry, ...]:
        """See `serving.Serving`."""
        return self._serving.serve(requests)

    def statistics(self) -> dict[str, object]:
        """Those of the engine that the specification has, and the requests of the host."""
        stats = self._host.stats()
        held = host.release(self._host.state, stats)
        shown = asdict(stats, recurse=False)
        return {
            **{name: number for name, number in shown.items() if name in NAMED},
            "waiting": [request.id for request in held.waiting],
            "admitted": [request.id for request in held.admitted],
        }

    def events(self) -> tuple[Event, ...]:
        """Those of the engine."""
        return self._engine.take_events()

    def _logprobs(self) -> list[tuple[float, ...]]:
        """Those of the outputs that were taken last."""
        return [output.logprobs for output in self._last_outputs]

    def erased(self) -> tuple[int, ...]:
        """Zero, in the words of a cell."""
        return (0,) * WORDS

    def compilations(self) -> dict[str, int]:
        """One for each entry point, as long as the geometry stays the same."""
        return self._engine.compilations()

    def pool_copies(self) -> dict[str, tuple[str, ...]]:
        """What the entry points that were called do to copy a pool, as their programs show."""
        setup = self._engine.setup
        found = {name: pool_copies.copies(setup, name) for name in self.compilations()}
        return {name: wrong for name, wrong in found.items() if wrong}

    def attend(self) -> dict[int, dict[int, int]]:
        """Reference attention with equal scores over one-hot values, which show the cells read."""
        engine = self._engine
        read = np.asarray(_read_sets(engine.setup, engine.packed))
        written, window = engine.extract().slots.written, engine.setup.geometry.window
        seen = written if window is None else np.minimum(written, window)
        times = np.rint(np.nan_to_num(read, nan=-1.0) * seen[:, None]).astype(int)
        return {
            slot: dict(Counter({int(cell): int(row[cell]) for cell in np.flatnonzero(row)}))
            for slot, row in enumerate(times)
            if written[slot]
        }


def _require_past_its_limit(refused: Refused) -> None:
    """Raise EngineFailed if a refusal tells a number that is below the most that may be there."""
    for one in refused.refusals:
        seen, allowed = one.seen, one.allowed
        if one.reason in LIMITS and type(seen) is type(allowed) is int and seen < allowed:
            raise EngineFailed(f"{one}; it is allowed", clause="ATOMIC") from None


def _dead(state: State) -> Array:
    """bool[P, page_size]: cells that no used slot has written and the index does not hold.

    Nor does a step in flight read them, through the rows that it was dispatched with.
    """
    pages, size = state.pages.cache[0].shape[:2]
    width = state.pages.rows.shape[1]
    position = jnp.arange(width)[:, None] * size + jnp.arange(size)
    alive = state.slots.used[:, None, None] & (position < state.slots.written[:, None, None])
    held = jnp.broadcast_to(state.indexed.holds[:, None], (pages, size))
    live = held.at[state.pages.rows].max(alive, mode="drop")
    read = alive & (state.flights.lens > 0)[:, :, None, None]
    return ~live.at[state.flights.rows].max(read, mode="drop")


def _poison_with(setup: Setup, packed: Packed, junk: Array, *, live: bool) -> Packed:
    dead = _dead(unpack(setup, packed))[:, :, None, None]
    first = jnp.argmin(dead.ravel())

    def overwrite(pool: Array) -> Array:
        alive = pool.reshape(-1, *pool.shape[2:])[first]
        return jnp.where(dead, alive if live else junk.astype(pool.dtype), pool)

    return packed._replace(cache=tuple(overwrite(pool) for pool in packed.cache))


_poisoned = jax.jit(_poison_with, static_argnums=0, static_argnames="live", donate_argnums=1)


def _read_sets_of(setup: Setup, packed: Packed) -> Array:
    """f32[S, P * page_size]: the weight of each cell in the slot's last query; NaN is a leak."""
    geometry, state = setup.geometry, unpack(setup, packed)
    cells = geometry.pages * geometry.page_size
    dead = _dead(state).reshape(cells, 1)
    values = jnp.where(dead, jnp.nan, jnp.eye(cells, dtype=jnp.float32))
    keys = jnp.where(dead, jnp.nan, jnp.zeros((cells, cells), jnp.float32))
    pool = jnp.stack([keys, values], axis=1).reshape(geometry.pages, geometry.page_size, 2, cells)
    slots = geometry.slots
    written = state.slots.written
    read = state.slots.used & (written > 0)
    lens = jnp.where(read, written, 0)
    queries = jnp.cumsum(jnp.concatenate([jnp.zeros((1,), jnp.int32), read.astype(jnp.int32)]))
    out = ragged_paged_attention(
        jnp.zeros((slots, 1, cells), jnp.float32),
        pool,
        lens,
        state.pages.rows,
        queries,
        jnp.array([slots], jnp.int32),
        sliding_window=geometry.window,
        q_block=1,
    )
    return out[jnp.maximum(queries[1:] - 1, 0), 0]


_read_sets = jax.jit(_read_sets_of, static_argnums=0)
