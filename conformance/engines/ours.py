"""The adapter of the reference engine, with the exact integer model.

The whole observable state is read back as one packed array.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from itertools import accumulate, islice
from typing import Any, Never

import jax
import jax.numpy as jnp
import numpy as np
from attrs import asdict
from jax import Array, lax

from conformance.engines import pool_copies
from conformance.engines.trouble import (
    NEVER,
    Alarm,
    Failed,
    Pressed,
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
from impl.engine import Engine, Key, Output, StateLost
from impl.host import Host, HostState, Stalled
from impl.models.integer import IntegerModel
from impl.models.protocol import BatchPlan as DevicePlan
from impl.setup import Setup
from impl.state import FINISH_CODES, State
from impl.state.packing import Packed, fields, unpack
from spec import model
from spec.fields import OutputEntry, QueueEntry
from spec.machines import actions as act
from spec.table import BatchPlan
from spec.view import View
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Reason,
    Refused,
    Request,
    ResetMode,
)

# One step at a time is taken and read back: handing each to another thread only adds latency.
jax.config.update("jax_cpu_enable_async_dispatch", val=False)  # type: ignore[no-untyped-call]
compiled_code.keep()

ACTIONS = frozenset(
    {
        act.Reserve,
        act.Assign,
        act.Allocate,
        act.Write,
        act.Clone,
        act.Commit,
        act.Free,
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
        act.Generate,
        act.Submit,
        act.Admit,
    }
)
LIMITS = frozenset({Reason.OUT_OF_PAGES, Reason.QUEUE_FULL, Reason.OUTPUTS_FULL, Reason.TOO_LONG})
"""The reasons with the least number that is not allowed, or more, and the most that is."""
SELDOM = 300
CTRL_C_EVERY = {act.Reset: 10, act.Submit: 80, act.Admit: 80, act.TakeOutputs: 80, act.Generate: 80}
"""One of so many of these actions is done once more, with Ctrl-C, and one of SELDOM others."""
ELSEWHERE_EVERY = 5
"""One of so many times another thread serves."""
KINDS_EVERY = 8
"""One of so many actions has an argument of a wrong kind at first."""
WORDS = 4
"""The words of a cell: K and V of both layers."""
_REASONS = {code: reason for reason, code in FINISH_CODES.items()}
_JUNK = {Poison.NAN: 0x7FC00000, Poison.INFINITY: 0x7F800000}

Ints = np.ndarray[Any, np.dtype[np.int32]]


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
        self._profile = Profile(
            name="kvspec reference engine",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=ACTIONS,
        )
        self._spans = layout(setup, cells=observed)
        self._seen: tuple[bytes, View] | None = None
        self._last_outputs: tuple[Output, ...] = ()

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
        observed, some are done once more, with Ctrl-C: that copies the pool.
        """
        last = self._seen[0] if self._seen else b""
        asked = f"{len(self._host.state.waiting)} {action}"
        number = zlib.crc32(asked.encode(), zlib.crc32(last))
        every = CTRL_C_EVERY.get(type(action), SELDOM)
        self._require_kinds(action, number)
        try:
            if number % every or not self._cells or not is_main_thread():
                return self._do(action)
            return self._do_with_ctrl_c_too(action, number // every)
        except Refused as refused:
            for one in refused.refusals:
                seen, allowed = one.seen, one.allowed
                if one.reason in LIMITS and type(seen) is type(allowed) is int and seen < allowed:
                    raise EngineFailed(f"{one}; it is allowed", clause="ATOMIC") from None
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
            case _:
                if self._host.state.admitted and isinstance(action, act.Assign | act.Prefill):
                    self._host.settle()  # the action may take the id of a request that has left
                return drive(self._engine, action)
        return None

    def _do_with_ctrl_c_too(self, action: Action, number: int) -> Result:
        """Do it; then once more from the state before, with Ctrl-C in one of its calls.

        Raises EngineFailed unless the last call ends with the same state, and one that only reads
        with that or with the state before.
        """
        before, old = (self._engine.extract(), self._host.state), self._shown(action)
        result, refused = None, None
        with self._engine.meets(Trouble.CTRL_C):
            try:
                result = self._do(action)
            except Refused as error:
                refused = error
        after, new = (self._engine.extract(), self._host.state), self._shown(action)
        calls = 1 if isinstance(action, act.Reset) else self._engine.calls
        if calls:
            at = number % calls
            self._put_back(*before)
            told = f"after Ctrl-C in call {at} of {calls}, {action}"
            try:
                self._press(action, at)
                seen = self._shown(action)
            except StateLost as lost:
                raise EngineFailed(f"{told}: {lost}", clause="ATOMIC") from None
            finally:
                self._put_back(*after)
            reads = refused is not None or isinstance(action, act.Submit)  # also in its last call
            if seen != new and (seen != old or (at == calls - 1 and not reads)):
                raise EngineFailed(f"{told} is neither done nor not", clause="ATOMIC")
        if refused is not None:
            raise refused
        return result

    def _press(self, action: Action, at: int) -> None:
        """Do it with Ctrl-C in the call of this number. Raises EngineFailed if that is lost."""
        try:
            with self._engine.meets(Trouble.CTRL_C, at):
                if isinstance(action, act.Reset):
                    self._host.reset(action.mode)
                else:
                    self._do(action)
        except Pressed:
            if isinstance(action, act.TakeOutputs):
                self._do(action)  # what has left the device is kept for the next call
            return
        raise EngineFailed(f"Ctrl-C in call {at} of {action} is lost", clause="ATOMIC")

    def _shown(self, action: Action) -> tuple[object, ...]:
        """All that an action may change. A reset may leave what cells hold, or not."""
        cells = not isinstance(action, act.Reset)
        snapshot = np.asarray(_snapshots(self._engine.packed, cells=cells))
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
            self._call(replaced(action, name, value))
        except InvalidInput as refused:
            if refused.name == name:
                return
            told = f"{value!r} as {name} is refused as {refused.name}"
        except Exception as error:
            told = f"{value!r} as {name} raises {type(error).__name__}: {error}"
        raise EngineFailed(told, clause="ATOMIC")

    def _call(self, action: Action) -> None:
        """The call for an action that has arguments, and nothing else."""
        match action:
            case act.Submit(request):
                self._host.submit(request)
            case act.Reset(mode):
                self._host.reset(mode)
            case _:
                drive(self._engine, action)

    def _admit(self) -> None:
        """Admit. Raises EngineFailed unless the host tells which requests wait no more."""
        before = self._host.state.waiting
        admitted = self._host.admit()
        if (*admitted, *self._host.state.waiting) != before:
            wrong = f"it admits {admitted} of {before}, and {self._host.state.waiting} wait"
            raise EngineFailed(wrong, clause="DET")

    def _reset(self, mode: ResetMode) -> None:
        """Reset: sometimes after a call that has lost the state, sometimes from a damaged state.

        Raises EngineFailed if it is lost afterwards, too.
        """
        if len(self._host.state.waiting) % 2:
            self._lose()
        elif self._engine.stats().queued % 2:
            self._engine.inject(damaged(self._engine.extract()))
        self._host.reset(mode)
        try:
            self._host.settle()
        except StateLost as lost:
            raise EngineFailed(f"after a reset: {lost}", clause="RESET") from None

    def _lose(self) -> None:
        """Lose the state. Raises EngineFailed unless host and engine say so, with what waits."""
        waiting, self._engine.fails = self._host.state.waiting, True
        with suppress(Failed):
            self._host.take_outputs()
        self._require_lost(calls_of_host(self._host))
        self._require_lost(calls_of_engine(self._engine))
        if self._host.state.waiting != waiting:
            wrong = f"{self._host.state.waiting} wait after a call that failed, and not {waiting}"
            raise EngineFailed(wrong, clause="RESET")

    def observe(self) -> View:
        """Read the whole state back as one array; reuse the last view if nothing has changed."""
        snapshot = np.asarray(_snapshots(self._engine.packed, cells=self._cells))
        held = snapshot.tobytes()
        if self._seen is None or held != self._seen[0]:
            self._seen = held, read_view(snapshot, self._spans, self._profile.geometry)
        return self._seen[1]

    def poison(self, kind: Poison) -> None:
        """Overwrite dead cells on the device."""
        if kind is Poison.STALE:
            return
        engine = self._engine
        junk = jnp.uint32(_JUNK.get(kind, 0))
        engine.packed = _poisoned(engine.setup, engine.packed, junk, live=kind is Poison.LIVE)

    def serve(self, requests: Sequence[Request]) -> tuple[OutputEntry, ...]:
        """The host's whole loop. It is served once more, from the same state, with trouble in it,
        or in another thread.

        What is returned is not kept: nothing is left to be taken.
        """
        before = self._engine.extract(), self._host.state
        number = self._number(requests)
        first = self._generated(requests)
        calls = self._engine.calls
        right = entries_of((*first, *self._rest(first)))
        if is_main_thread():
            after = self._engine.extract(), self._host.state
            kind, at = divmod(number, calls)
            self._put_back(*before)
            if kind % ELSEWHERE_EVERY:
                self._serve_in_trouble(requests, right, kind, at)
            else:
                self._serve_elsewhere(requests, right)
            self._put_back(*after)
        return right

    def _number(self, requests: Sequence[Request]) -> int:
        """A number by the state and the requests alone, so that each run has the same one."""
        snapshot = np.asarray(_snapshots(self._engine.packed, cells=False))
        asked = repr((self._host.state, tuple(requests)))
        return zlib.crc32(asked.encode(), zlib.crc32(snapshot.tobytes()))

    def _serve_in_trouble(
        self, requests: Sequence[Request], right: tuple[OutputEntry, ...], kind: int, at: int
    ) -> None:
        """Serve with trouble at the call of this number, and then reset or go on, by the kind.

        Raises EngineFailed unless the outputs are the right ones then.
        """
        trouble = (Trouble.CTRL_C, Trouble.ALARM)[kind % 2]
        try:
            self._generated(requests, trouble, at)
        except (Pressed, Alarm):
            is_lost = self._is_lost()
        else:
            raise EngineFailed(f"{trouble.value} in call {at} is lost", clause="ATOMIC")
        told = f"after {trouble.value} in call {at} of the host"
        if is_lost and trouble is Trouble.CTRL_C:
            raise EngineFailed(f"{told}, its state is lost", clause="ATOMIC")
        if is_lost or kind % 3 == 0:
            self._require_as_new(told)
            return
        self._require_ids_taken()
        rest, kept = self._unknown(requests), entries_of(self._host.state.finished)
        taken = self._host.take_outputs() if kind % 3 == 1 else ()
        first = self._generated(rest)
        served = entries_of((*taken, *first, *self._rest(first)))
        if Counter(served) != Counter(right):
            wrong = f"{told}, what is served is {[*served]}, and {[*right]} without it"
            raise EngineFailed(wrong, clause="OUT")
        if served[: len(kept)] != kept:
            wrong = f"{told}, what is served is {[*served]}, and had begun with {[*kept]}"
            raise EngineFailed(wrong, clause="OUT")

    def _serve_elsewhere(self, requests: Sequence[Request], right: tuple[OutputEntry, ...]) -> None:
        """Serve in another thread. Raises EngineFailed unless the outputs are the right ones."""
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self._generated, requests).result()
        served = entries_of((*first, *self._rest(first)))
        if served != right:
            wrong = f"in another thread {[*served]} is served, and {[*right]} in this one"
            raise EngineFailed(wrong, clause="OUT")

    def _rest(self, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        """What is served after these were taken, so that their ids are free."""
        rest: tuple[Output, ...] = ()
        while outputs and (self._host.state.waiting or self._engine.stats().queued):
            outputs = self._generated(())
            rest += outputs
        return rest

    def _put_back(self, state: State, of_host: HostState) -> None:
        """Bring engine and host into a state. Raises EngineFailed if that takes the arrays."""
        given = jax.tree.map(jnp.asarray, state)
        self._engine.inject(given)
        self._engine.reset()
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(given)):
            raise EngineFailed("a call after inject() deletes what was injected", clause="RESET")
        self._engine.inject(given)
        self._host.restore(of_host)

    def _is_lost(self) -> bool:
        """Whether the host says that it must be reset. Raises EngineFailed if it goes on then."""
        try:
            self._host.stats()
        except StateLost:
            pass
        else:
            return False
        self._require_lost(calls_of_host(self._host))
        return True

    def _require_lost(self, calls: Mapping[str, Callable[[], object]]) -> None:
        """Raise EngineFailed if one of these calls goes on without its state."""
        for name, call in calls.items():
            with suppress(StateLost):
                call()
                raise EngineFailed(f"{name} goes on without its state", clause="RESET")

    def _require_as_new(self, told: str) -> None:
        """Reset. Raises EngineFailed if something is left."""
        self._host.reset()
        left = self._host.settle()
        if self._host.state != HostState() or left.active or left.outputs or left.queued:
            wrong = f"{told} and a reset, {self._host.state} and {left} are left"
            raise EngineFailed(wrong, clause="RESET")

    def _unknown(self, requests: Sequence[Request]) -> tuple[Request, ...]:
        """Those that the host had not yet queued."""
        stats, state = self._host.stats(), self._host.state
        known = {one.id for one in (*state.waiting, *state.admitted)}
        known |= {one.request for one in state.finished}
        known |= {name for name, _ in stats.occupants | stats.untaken}
        return tuple(one for one in requests if one.id not in known)

    def _require_ids_taken(self) -> None:
        """Raise EngineFailed if the id of an output that the host keeps can be used again."""
        for output in self._host.state.finished:
            try:
                self._host.submit(Request(id=output.request, prompt=(0,), params=Params(max_new=1)))
            except Refused as refused:
                if Reason.CHOICE_TAKEN in refused.reasons:
                    continue
            raise EngineFailed(f"the id of {output}, which was not taken, is free", clause="OUT")

    def _generated(
        self,
        requests: Sequence[Request],
        trouble: Trouble = Trouble.CTRL_C,
        at: int = NEVER,
    ) -> tuple[Output, ...]:
        """Serve, in trouble at one call; returns all that is then to be taken.

        Raises EngineFailed if it stalls without work, or ends with some.
        """
        meets = self._engine.meets(trouble, at) if is_main_thread() else nullcontext()
        stalled: Stalled | None = None
        try:
            with meets:
                served = _named(self._host.generate(requests))
        except Stalled as error:
            served, stalled = _named(error.outputs), error
        waiting, queued = len(self._host.state.waiting), self._engine.stats().queued
        if (stalled is not None) != bool(waiting or queued):
            how = "is done" if stalled is None else "stalls"
            wrong = f"it {how} with {waiting} requests waiting and {queued} tokens queued"
            raise EngineFailed(wrong, clause="PROG")
        if stalled is not None:
            self._require_stalls(stalled)
        return (*served, *self._host.take_outputs())

    def _require_stalls(self, stalled: Stalled) -> None:
        """Raise EngineFailed unless the host tells what the rest waits for.

        It may be the name of an output that is taken now: then nothing is asked once more.
        """
        told = sorted(one.reason.name for one in stalled.refusals)
        waiting = self._host.state.waiting
        if any(
            name == one.id and choice < one.n_generations
            for one in waiting[:1]
            for name, choice in stalled.outputs
        ):
            if Reason.CHOICE_TAKEN.name not in told:
                wrong = f"it stalls for {told}, should be for CHOICE_TAKEN"
                raise EngineFailed(wrong, clause="PROG")
            return
        try:
            if waiting:
                self._host.admit()
            else:
                self._engine.round()
        except Refused as refused:
            wanted = sorted(one.reason.name for one in refused.refusals)
            if told != wanted:
                wrong = f"it stalls for {told}, should be for {wanted}"
                raise EngineFailed(wrong, clause="PROG") from None
            return
        raise EngineFailed("it stalls, and goes on if it is asked once more", clause="PROG")

    def statistics(self) -> dict[str, object]:
        """Those of the engine, and the requests of the host."""
        stats = self._host.stats()
        held = host.release(self._host.state, stats)
        return {
            **asdict(stats, recurse=False),
            "waiting": [request.id for request in held.waiting],
            "admitted": [request.id for request in held.admitted],
        }

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
        written = engine.extract().slots.written
        times = np.rint(np.nan_to_num(read, nan=-1.0) * written[:, None]).astype(int)
        return {
            slot: dict(Counter({int(cell): int(row[cell]) for cell in np.flatnonzero(row)}))
            for slot, row in enumerate(times)
            if written[slot]
        }


def calls_of_host(host: Host) -> dict[str, Callable[[], object]]:
    """A call of each public method but `reset`, by name."""
    return {
        "stats": host.stats,
        "settle": host.settle,
        "submit": partial(host.submit, Request(id=0, prompt=(0,), params=Params(max_new=1))),
        "admit": host.admit,
        "generate_rounds": host.generate_rounds,
        "take_outputs": host.take_outputs,
        "generate": partial(host.generate, ()),
    }


def calls_of_engine(engine: Engine) -> dict[str, Callable[[], object]]:
    """A call of each public method that reads or changes the state, but `reset`, by name."""
    params, cell = Params(max_new=1), [(0, 0)]
    return {
        "reserve": engine.reserve,
        "assign": partial(engine.assign, 0, (0,), params, request=0),
        "allocate": partial(engine.allocate, cell),
        "write": partial(engine.write, cell),
        "clone": partial(engine.clone, 0, choice=0),
        "free": partial(engine.free, 0),
        "free_finished": engine.free_finished,
        "enqueue": partial(engine.enqueue, 0, 0),
        "pack": engine.pack,
        "purge": partial(engine.purge, 0),
        "propose": partial(engine.propose, 0, (0,)),
        "commit": partial(engine.commit, 0, 1),
        "truncate": partial(engine.truncate, 0, 0),
        "prefill": partial(engine.prefill, [Request(id=0, prompt=(0,), params=params)]),
        "round": engine.round,
        "generate": engine.generate,
        "take_outputs": engine.take_outputs,
        "stats": engine.stats,
        "extract": engine.extract,
    }


def drive(engine: Engine, action: Action) -> Result:  # noqa: C901, PLR0912 - a table
    """Apply an action of the specification to the engine, without a host."""
    match action:
        case act.Reserve(slot):
            return engine.reserve(slot)  # type: ignore[arg-type]
        case act.Assign(slot, prompt, params):
            engine.assign(slot, prompt, params, request=action.request, choice=action.choice)
        case act.Allocate(batch):
            return _host_plan(engine.allocate(batch))
        case act.Write(batch):
            engine.write(batch)
        case act.Clone(parent, child):
            return engine.clone(parent, child, choice=action.choice)
        case act.Free(slot):
            engine.free(slot)  # type: ignore[arg-type]
        case act.Enqueue(slot, token):
            engine.enqueue(slot, token)
        case act.Pack():
            return engine.pack()
        case act.Purge(slot):
            engine.purge(slot)
        case act.Propose(slot, tokens):
            engine.propose(slot, tokens)
        case act.Commit(slot, length):
            engine.commit(slot, length)
        case act.Truncate(slot, length):
            engine.truncate(slot, length)
        case act.Prefill(requests):
            engine.prefill(requests)
        case act.Generate():
            return Rounds(*engine.generate())
        case act.Reset(mode):
            engine.reset(mode)
        case _:
            return _drive_simple(engine, action)
    return None


def _drive_simple(engine: Engine, action: Action) -> Result:
    match action:
        case act.Round():
            engine.round()
        case act.FreeFinished():
            engine.free_finished()
        case act.TakeOutputs():
            return entries_of(engine.take_outputs())
        case _:
            raise TypeError(action)
    return None


def _named(outputs: Mapping[Key, Output]) -> tuple[Output, ...]:
    """The outputs. Raises EngineFailed unless each has the key of its request and choice."""
    for key, output in outputs.items():
        if key != (output.request, output.choice):
            raise EngineFailed(f"the output {output} has the key {key}", clause="OUT")
    return tuple(outputs.values())


def entries_of(outputs: Sequence[Output]) -> tuple[OutputEntry, ...]:
    """Outputs as the specification has them."""
    return tuple(
        (output.request, output.choice, output.tokens, output.reason) for output in outputs
    )


class _Recorded(Exception):
    """The call that a driver is about to make."""

    def __init__(self, name: str, given: tuple[Any, ...]) -> None:
        super().__init__(name)
        self.name, self.arguments = name, given


class _Recorder(Engine):
    """The driver without device state: it records its call instead of making it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def _call(self, name: str, *rest: Any) -> Never:
        raise _Recorded(name, rest)


def call_of(setup: Setup, action: Action) -> tuple[str, tuple[Any, ...]]:
    """The entry point that an action calls, and its arguments after weights and state.

    Raises Refused where the driver itself refuses.
    """
    try:
        drive(_Recorder(setup), action)
    except _Recorded as recorded:
        return recorded.name, recorded.arguments
    raise AssertionError(f"{action} calls no entry point")


def _snapshot(packed: Packed, *, cells: bool) -> Array:
    """i32[...]: the packed state as it lies in memory; without cells unless requested.

    Log-probabilities, the only floats that are not joined, are left out: `Ours.logprobs` has them.
    It is not split here: XLA runs a program of a few steps in one thread, and wakes others for a
    longer one.
    """
    pools = [lax.bitcast_convert_type(pool, jnp.int32) for pool in packed.cache if cells]
    long = [part for part in packed.long if part.dtype == jnp.int32]
    return jnp.concatenate([part.ravel() for part in (*long, *packed.short, *pools)])


_snapshots = jax.jit(_snapshot, static_argnames="cells")


def read_view(snapshot: Ints, spans: dict[str, slice], geometry: Geometry) -> View:
    """The view of a snapshot, see `layout`."""
    length, width = geometry.max_len, geometry.pages_per_seq
    cells = spans.get("cache", slice(len(snapshot), None))
    values: list[int] = snapshot[: cells.start].tolist()

    def part(name: str) -> list[int]:
        return values[spans[name]]

    rows, tokens, texts = part("pages.rows"), part("slots.tokens"), part("outputs.tokens")
    known, starts = part("slots.known"), range(0, len(tokens), length)
    queue: list[QueueEntry] = list(
        zip(part("queue.tokens"), part("queue.slots"), part("queue.positions"), strict=True)
    )
    outputs = zip(
        part("outputs.requests"),
        part("outputs.choices"),
        part("outputs.reasons"),
        part("outputs.lens"),
        range(0, len(texts), length),
        strict=True,
    )
    return View(
        geometry=geometry,
        counts=tuple(part("pages.counts")),
        used=tuple(map(bool, part("slots.used"))),
        rows=tuple(tuple(rows[at : at + width]) for at in range(0, len(rows), width)),
        allocated=tuple(part("slots.allocated")),
        written=tuple(part("slots.written")),
        committed=tuple(part("slots.committed")),
        tokens=tuple(
            tuple(tokens[start : start + count]) for start, count in zip(starts, known, strict=True)
        ),
        proposed=tuple(
            tuple(tokens[start + after : start + after + count])
            for start, after, count in zip(starts, known, part("slots.proposed"), strict=True)
        ),
        finished=tuple(map(bool, part("slots.finished"))),
        queue=tuple(queue[: part("queue.filled")[0]]),
        outputs=tuple(
            (request, choice, tuple(texts[at : at + count]), _REASONS[reason])
            for request, choice, reason, count, at in islice(outputs, part("outputs.filled")[0])
        ),
        cells=Cells(snapshot[cells]) if "cache" in spans else None,
        expected=model.contents,
    )


def layout(setup: Setup, *, cells: bool) -> dict[str, slice]:
    """The range of each field of a state in its snapshot; the cells, if present, are last."""
    sizes = {
        name: shape.size
        for name, shape in fields(setup).items()
        if shape.dtype == jnp.int32 or len(shape.shape) <= 1
    }
    ends = accumulate(sizes.values())
    spans = {
        name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)
    }
    return spans | ({"cache": slice(sum(sizes.values()), None)} if cells else {})


class Cells(Sequence[object]):
    """The contents of every cell, by destination; unpacked on access."""

    def __init__(self, packed: Ints) -> None:
        self._words: list[int] = packed.view(np.uint32).tolist()

    def __len__(self) -> int:
        return len(self._words) // WORDS

    def __getitem__(self, at: Any) -> Any:
        first, second = 2 * at, len(self._words) // 2 + 2 * at
        return (*self._words[first : first + 2], *self._words[second : second + 2])


def _host_plan(plan: DevicePlan) -> BatchPlan:
    """The plan without its padding. Raises EngineFailed unless that names no slot and no cell."""
    count = int(plan.num_seqs[0])
    ends = plan.cu_q_lens[: count + 1].tolist()
    past = {*plan.slot_ids[count:].tolist(), *plan.destinations[ends[-1] :].tolist()}
    if not past <= {INVALID}:
        raise EngineFailed(f"the padding of a plan names {past}", clause="DET")
    rows = [
        tuple(page for page in row if page != INVALID) for row in plan.page_indices[:count].tolist()
    ]
    return BatchPlan(
        slot_ids=tuple(plan.slot_ids[:count].tolist()),
        page_indices=tuple(rows),
        kv_lens=tuple(plan.kv_lens[:count].tolist()),
        cu_q_lens=tuple(ends),
        num_seqs=count,
        order=tuple(plan.order[: ends[-1]].tolist()),
        destinations=tuple(plan.destinations[: ends[-1]].tolist()),
    )


def _dead(state: State) -> Array:
    """bool[P, page_size]: cells that no used slot has written."""
    pages, size = state.pages.cache[0].shape[:2]
    width = state.pages.rows.shape[1]
    position = jnp.arange(width)[:, None] * size + jnp.arange(size)
    alive = state.slots.used[:, None, None] & (position < state.slots.written[:, None, None])
    live = jnp.zeros((pages, size), jnp.bool_).at[state.pages.rows].max(alive, mode="drop")
    return ~live


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
        q_block=1,
    )
    return out[jnp.maximum(queries[1:] - 1, 0), 0]


_read_sets = jax.jit(_read_sets_of, static_argnums=0)
