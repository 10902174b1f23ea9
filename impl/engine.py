"""The driver: one device state, one compiled entry point per action, refusals as typed errors.

It plans nothing. Ids and sizes are brought into the static shapes of the entry points, the state is
donated and rebound before anything is raised, and one packed array is read back per call. Source:
docs/sources.md, "Host and device" and "Plan, then commit".
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from attrs import frozen
from jax import Array

from impl import arguments, entries, events
from impl.interrupts import hold_interrupts
from impl.models.protocol import BatchPlan, Weights
from impl.setup import Setup
from impl.state import FINISH_CODES, State, initial
from impl.state.packing import Packed, assert_same_shapes, pack, unpack
from spec.vocabulary import (
    FinishReason,
    Params,
    Reason,
    Refusal,
    Request,
    ResetMode,
    Tokens,
    refused,
)
from spec.vocabulary.errors import KvspecError
from spec.vocabulary.events import Event, PageKey
from spec.vocabulary.rules import a

_REASONS = {code: reason for reason, code in FINISH_CODES.items()}

Key = tuple[int, int]
"""(request, choice)."""


class StateLost(KvspecError):
    """The state is lost: a call failed after the state had been donated to it.

    `reset` makes a new one, and `Engine.inject` takes one; until then every other call raises this.
    Requests that were being served have to be sent again.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a call failed after it had begun to change the state. "
            "Call reset(), then send the unfinished requests again."
        )


@frozen
class Output:
    """One finished choice. tokens: generated, a stop token included. logprobs: theirs, if kept."""

    request: int
    choice: int
    tokens: Tokens
    reason: FinishReason
    logprobs: tuple[float, ...] = ()


@frozen
class Stats:
    """A few numbers for logs and admission (docs/sources.md, "Decode statistics").

    active: slots in use, finished ones included. pages_in_use: pages that a row or a step in flight
    names. idle_pages: pages of the index that neither names; they are not free, but may be taken.
    queued, outputs: entries of the queue and of the
    outputs. hit_pages: pages of the index that sequences began with; stored_pages, removed_pages:
    pages that entered it and left it; evicted_pages: those of the latter that did not leave it by
    `drop`; each since the last reset, modulo 2**32. in_flight: steps in flight. held_slots: slots
    without a sequence that those hold. promised: slots of which they draw tokens. occupants: the
    (request, choice) in each slot that has a prompt. untaken: that of each output that is not taken
    yet.
    """

    active: int
    pages_in_use: int
    free_pages: int
    idle_pages: int
    largest_count: int
    queued: int
    outputs: int
    hit_pages: int
    stored_pages: int
    removed_pages: int
    evicted_pages: int
    in_flight: int
    held_slots: int
    promised: int
    occupants: frozenset[Key]
    untaken: frozenset[Key]


def jitted(run: Callable[..., Any], *, donate: bool = True, **options: Any) -> Any:
    """An entry point. donate: whether it donates the state. options: those of `jax.jit`."""
    return jax.jit(run, donate_argnums=(1,) if donate else (), **options)


@cache
def compiled(setup: Setup, name: str) -> Any:
    """The jitted entry point: (weights, packed state, *arguments) to (packed state, i32 report).

    The report is the status i32[3], then the result.
    """
    entry = getattr(entries, name)

    def run(weights: Weights, packed: Packed, *rest: Any) -> tuple[Packed, Array]:
        state, status, result = entry(setup, weights, unpack(setup, packed), *rest)
        assert_same_shapes(setup, state)
        return pack(state), jnp.concatenate([status, result])

    run.__name__ = name
    return jitted(run)


@cache
def compiled_stats(setup: Setup) -> Any:
    """The jitted statistics: (weights, packed state) to i32[...]; the state is only read."""

    def run(weights: Weights, packed: Packed) -> Array:
        return entries.stats(setup, weights, unpack(setup, packed))

    return jitted(run, donate=False)


@partial(jax.jit, static_argnums=0)
def _compiled_initial(setup: Setup) -> Packed:
    return pack(initial(setup))


_packed_copy = jax.jit(lambda state: jax.tree.map(jnp.copy, pack(state)))
_compiled_unpack = jax.jit(unpack, static_argnums=0)


def _is_there(packed: Packed | None) -> bool:
    """Whether the arrays can be read: neither donated, nor results of a failed call."""
    try:
        for leaf in jax.tree.leaves(packed):
            leaf.block_until_ready()
    except RuntimeError:
        return False
    return True


class Engine:
    """A paged KV cache engine. Every method is one action; a refused one raises Refused.

    An argument that no state could accept raises InvalidInput, which names it; so do weights that
    do not fit the model, or are not finite, when the engine is made. Integers are Python ints:
    int() converts a numpy integer.

    An interrupt (SIGINT in the main thread) waits until the call in progress, its compilation
    included, has ended and its state is kept; then the interrupt is raised instead of what the call
    returns. So the action is done or refused, and the engine remains usable. A caller that must not
    lose results uses a Host, which keeps them. A call that fails halfway, by an error of XLA or an
    exception in the handler of another signal, may lose the state: see StateLost.
    """

    def __init__(self, setup: Setup, weights: Weights = ()) -> None:
        a(Setup).require("setup", setup)
        arguments.check_weights(setup, weights)
        self.setup = setup
        self._packed: Packed | None = hold_interrupts(lambda: _compiled_initial(setup))
        self._weights = weights
        self._entries: dict[str, Any] = {}
        self._told: frozenset[PageKey] = frozenset()

    @property
    def packed(self) -> Packed:
        """The packed state on the device; raises StateLost if there is none."""
        if self._packed is None:
            raise StateLost("the engine has no state")
        return self._packed

    @packed.setter
    def packed(self, packed: Packed) -> None:
        """Put the engine into this state."""
        self._packed = packed

    def reserve(self, slot: int | None = None, *, context: int = 0) -> int:
        """Take a slot, or the lowest unused one; returns it.

        context: what beside its tokens decides what its cells hold, such as an adapter; pages are
        found again under the same context alone.
        """
        given = arguments.slot_or_any(slot)
        return int(self._call("reserve", given, arguments.number("context", context))[0])

    def assign(
        self, slot: int, prompt: Tokens, params: Params, *, request: int, choice: int = 0
    ) -> None:
        """Give a reserved slot its prompt."""
        arguments.check_params(self.setup, params)
        arguments.number("request", request)
        given = (
            arguments.slot(slot),
            arguments.number("choice", choice),
            *arguments.prompt(self.setup, prompt),
        )
        arguments.check_stops(self.setup, [params])
        self._call("assign", *given, arguments.params(self.setup, [params], [request]))

    def allocate(self, batch: Sequence[tuple[int, int] | None]) -> BatchPlan:
        """Cover a batch of (slot, position) with pages. The plan's leaves are numpy arrays."""
        result = self._call("allocate", *arguments.batch(self.setup, batch))
        return self._plan(result)

    def write(self, batch: Sequence[tuple[int, int] | None]) -> None:
        """Compute and store K and V of a batch of known, allocated, unwritten tokens."""
        self._call("write", *arguments.batch(self.setup, batch))

    def clone(self, parent: int, child: int | None = None, *, choice: int) -> int:
        """Clone a slot into another, or the lowest unused one; returns it."""
        parent_id = arguments.slot(parent, name="parent")
        child_id = arguments.slot_or_any(child, name="child")
        number = arguments.number("choice", choice)
        return int(self._call("clone", parent_id, child_id, number)[0])

    def free(self, slot: int) -> None:
        """Free a slot."""
        self._call("free", arguments.slot(slot))

    def free_finished(self) -> None:
        """Free every finished slot."""
        self._call("free_finished")

    def enqueue(self, slot: int, token: int) -> None:
        """Append a known token to a slot, and queue it."""
        self._call("enqueue", arguments.slot(slot), arguments.token(self.setup, token))

    def pack(self) -> tuple[tuple[int, int, int], ...]:
        """Take tokens from the queue: (token, slot, position), by slot, then position."""
        columns = self._call("pack").reshape(3, -1).T.tolist()
        slots = self.setup.geometry.slots
        return tuple((token, slot, at) for token, slot, at in columns if slot < slots)

    def purge(self, slot: int) -> None:
        """Drop the queued tokens of a slot."""
        self._call("purge", arguments.slot(slot))

    def propose(self, slot: int, tokens: Tokens) -> None:
        """Add draft tokens after the tokens of a slot, and queue them."""
        given = arguments.prompt(self.setup, tokens, name="tokens")
        self._call("propose", arguments.slot(slot), *given)

    def commit(self, slot: int, length: int) -> None:
        """Make the written cells of a slot below `length` final, and drafts there known."""
        self._call("commit", arguments.slot(slot), arguments.number("length", length))

    def truncate(self, slot: int, length: int) -> None:
        """Cut off cells and drafts of a slot from `length` on; release the emptied pages."""
        self._call("truncate", arguments.slot(slot), arguments.number("length", length))

    def release(self, slot: int, before: int) -> None:
        """Release the whole pages of a slot before position `before`, which no query sees again.

        With a window of w positions `before` is at most `committed - w + 1`; without one it is 0.
        """
        self._call("release", arguments.slot(slot), arguments.number("before", before))

    def hit(self, slot: int, length: int) -> None:
        """Begin a slot with the pages of the index that hold its first `length` tokens."""
        self._call("hit", arguments.slot(slot), arguments.number("length", length))

    def share_prefix(self, parent: int, slot: int, length: int) -> None:
        """Begin a slot with the pages of another one that hold its first `length` tokens."""
        self._call(
            "share",
            arguments.slot(parent, name="parent"),
            arguments.slot(slot),
            arguments.number("length", length),
        )

    def publish(self, slot: int, length: int) -> None:
        """Enter the whole pages of a slot below `length`, which are committed, in the index."""
        self._call("publish", arguments.slot(slot), arguments.number("length", length))

    def merge(self, slot: int, entry: int) -> None:
        """Move a row entry of a slot to the page of the index with the same key."""
        self._call("merge", arguments.slot(slot), arguments.number("entry", entry))

    def evict(self, tokens: Tokens, *, context: int = 0) -> None:
        """Remove the idle page with this key, and all that extend it, from the index."""
        key = arguments.prompt(self.setup, tokens, name="tokens")
        self._call("evict", *key, arguments.number("context", context))

    def drop(self) -> None:
        """Forget the whole index, since the weights change. Sequences go on."""
        self._call("drop")

    def prefill(self, requests: Sequence[Request]) -> None:
        """Prefill prompts in one batch, and draw the first token of every choice."""
        arguments.check_prefill(self.setup, requests)
        arguments.check_stops(self.setup, [request.params for request in requests])
        self._call("prefill_requests", arguments.prefill_work(self.setup, requests))

    def round(self) -> None:
        """One decode round."""
        self._call("run_round")

    def mixed_round(self, chunks: Sequence[tuple[int, int]]) -> None:
        """One round that also reads prompts in parts: for each (slot, count), its next tokens.

        The queued tokens and the chunks are at most `limits.round_tokens` together. The last chunk
        of a prompt draws its first token.
        """
        self._call("mixed_round", arguments.chunks(self.setup, chunks))

    def preempt(self, request: int) -> None:
        """Free every slot of a request whose choice has not finished.

        The caller keeps their tokens, and replays them later in other slots.
        """
        self._call("preempt", arguments.number("request", request))

    def replay(self, slot: int, tokens: Tokens) -> None:
        """Make tokens known that a slot had drawn before. Chunks read them; none is drawn."""
        given = arguments.prompt(self.setup, tokens, name="tokens")
        self._call("replay", arguments.slot(slot), *given)

    def dispatch(self, chunks: Sequence[tuple[int, int]]) -> None:
        """Begin a step: for each (slot, count), its next tokens get cells. Nothing is written yet.

        They leave the queue, are known without being queued, or are drawn by a step in flight. A
        slot whose last token is among them draws its next one. At most three steps are in flight,
        each of at most `limits.round_tokens` tokens.
        """
        self._call("dispatch", arguments.chunks(self.setup, chunks))

    def retire(self) -> None:
        """Do the oldest step in flight that is not done: write its cells and draw its tokens.

        A drawn token is proposed. For a slot whose sequence has ended nothing is done.
        """
        self._call("retire")

    def deliver(self) -> None:
        """Learn of the oldest step in flight, which has retired: its cells and tokens are final.

        A drawn token is queued, unless a later step has its position, or ends its sequence and
        leaves an output. The slots and pages that the step held are then free for others.
        """
        self._call("deliver")

    def generate(self) -> tuple[int, Reason | None]:
        """Run at most `limits.rounds` rounds: the number done, and why the next one was refused."""
        done, code, _, _ = self._call("generate").tolist()
        return done, Reason(code) if code else None

    def take_outputs(self) -> tuple[Output, ...]:
        """The finished choices since the last call, in order of finishing."""
        return outputs_of(self.setup, self._call("take_outputs"))

    def reset(self, mode: ResetMode = ResetMode.LOGICAL) -> None:
        """Forget everything; PHYSICAL also zeroes the pool. The same on every host.

        If the state was lost, the engine is afterwards as new, whatever the mode.
        """
        a(ResetMode).require("mode", mode)
        try:
            self._call("reset_logical" if mode is ResetMode.LOGICAL else "reset_physical")
        except StateLost:
            self._packed = hold_interrupts(lambda: _compiled_initial(self.setup))

    def stats(self) -> Stats:
        """The statistics of the state, which does not change."""
        run, packed = compiled_stats(self.setup), self.packed
        numbers = hold_interrupts(lambda: np.asarray(run(self._weights, packed))).tolist()
        half, slots = (len(numbers) - 14) // 2, self.setup.geometry.slots
        pairs = list(zip(numbers[14 : 14 + half], numbers[14 + half :], strict=True))
        active, in_use, free, idle, largest, queued, outputs = numbers[:7]
        hits, stored, removed, evicted = (number % 2**32 for number in numbers[7:11])
        in_flight, held, promised = numbers[11:14]
        return Stats(
            active=active,
            pages_in_use=in_use,
            free_pages=free,
            idle_pages=idle,
            largest_count=largest,
            queued=queued,
            outputs=outputs,
            hit_pages=hits,
            stored_pages=stored,
            removed_pages=removed,
            evicted_pages=evicted,
            in_flight=in_flight,
            held_slots=held,
            promised=promised,
            occupants=arguments.named(pairs[:slots]),
            untaken=arguments.named(pairs[slots:]),
        )

    def take_events(self) -> tuple[Event, ...]:
        """What entered and left the index since the last call, for others who follow it.

        The index is read back whole, which costs as much as its size. What entered and left it
        between two calls is not told.
        """
        packed, before = self.packed, self._told
        self._told = hold_interrupts(lambda: events.keys(self.setup, packed))
        return events.between(before, self._told)

    def inject(self, state: State) -> None:
        """Put the engine into a state; the arrays are copied, so that the caller keeps its own."""
        arguments.check_state(self.setup, state)
        self.packed = hold_interrupts(lambda: _packed_copy(state))

    def extract(self) -> State:
        """The state as numpy arrays, copied."""
        packed = self.packed
        held = hold_interrupts(lambda: jax.tree.map(np.array, _compiled_unpack(self.setup, packed)))
        return cast(State, held)

    def compilations(self) -> dict[str, int]:
        """How often each entry point that was called has been compiled."""
        found = {}
        for name in entries.ALL:
            count = compiled(self.setup, name)._cache_size()  # noqa: SLF001 - there is no public count
            if count:
                found[name] = count
        return found

    def start(self, name: str, *rest: Any) -> Array:
        """Call an entry point without waiting for it; returns its report, for `finish`.

        name: one of `impl.entries.ALL`. rest: what it takes after the weights and the state, in its
        static shapes, which jax checks. Calls are done in the order in which they are started. The
        state of the engine is then that after the call, also if it turns out to be refused.
        """
        arguments.ENTRY.require("name", name)
        run = self._entry(name)
        return hold_interrupts(lambda: self._start(run, rest))

    def finish(self, report: Array) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Wait for a report: the result behind its status. Raises Refused if that is not 0."""
        arguments.REPORT.require("report", report)
        return _result(hold_interrupts(lambda: self._read(report)))

    def _call(self, name: str, *rest: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
        run = self._entry(name)
        return _result(hold_interrupts(lambda: self._bind(run, rest)))

    def _entry(self, name: str) -> Any:
        run = self._entries.get(name)
        if run is None:  # hashing a setup costs as much as a small call
            run = self._entries[name] = compiled(self.setup, name)
        return run

    def _bind(self, run: Any, rest: tuple[Any, ...]) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._read(self._start(run, rest))

    def _start(self, run: Any, rest: tuple[Any, ...]) -> Array:
        """Call an entry point and keep the state that it returns, or None if the state is lost."""
        packed = self.packed
        try:
            self._packed, report = run(self._weights, packed, *rest)
        except BaseException:
            self._forget_lost()
            raise
        return cast(Array, report)

    def _read(self, report: Array) -> np.ndarray[Any, np.dtype[np.int32]]:
        try:
            return np.asarray(report)
        except BaseException:
            self._forget_lost()
            raise

    def _forget_lost(self) -> None:
        """Keep no state that cannot be read."""
        if not _is_there(self._packed):
            self._packed = None

    def _plan(self, flat: np.ndarray[Any, np.dtype[np.int32]]) -> BatchPlan:
        seqs, tokens = self.setup.batch_seqs, self.setup.limits.prefill_tokens
        width = self.setup.geometry.pages_per_seq
        sizes = (seqs, seqs * width, seqs, seqs + 1, 1, tokens, tokens)
        fields = [np.array(part) for part in np.split(flat, np.cumsum(sizes)[:-1])]
        fields[1] = fields[1].reshape(seqs, width)
        return BatchPlan(*cast(list[Array], fields))


def outputs_of(setup: Setup, flat: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[Output, ...]:
    """The outputs in a result of the entry point `take_outputs`."""
    size, length = setup.limits.outputs, setup.geometry.max_len
    count = int(flat[0])
    columns = flat[1 : 1 + 4 * size].reshape(4, size)[:, :count].T.tolist()
    rest = flat[1 + 4 * size :]
    tokens = rest[: size * length].reshape(size, length)
    logprobs = rest[size * length :].view(np.float32).reshape(size, -1)
    return tuple(
        Output(
            request,
            choice,
            tuple(tokens[index, :generated].tolist()),
            _REASONS[reason],
            tuple(logprobs[index, :generated].tolist()),
        )
        for index, (request, choice, reason, generated) in enumerate(columns)
    )


def _result(
    report: np.ndarray[Any, np.dtype[np.int32]],
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The result in a report; raises Refused if the action was."""
    code, seen, allowed = report[:3].tolist()
    if code:
        reason = Reason(code)
        most = f"0 to {allowed}" if reason is Reason.SLOT_RANGE else allowed
        raise refused([Refusal(reason, seen, most)])
    return report[3:]
