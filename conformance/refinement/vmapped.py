"""Checks of transitions in vmapped batches of one size, and of a sample without batches.

A kind of transition is one entry point and one shape of arguments; it is compiled once. Results are
fetched late, so that the exploration goes on meanwhile.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import jax
import numpy as np
from attrs import define, field, frozen

from conformance.lockstep.watchdog import Watchdog
from conformance.runtime.unoptimised import compiler_options

Tree = Any
"""A pytree of arrays that share their first axis: one entry per transition."""

PENDING: Final = 3
BATCH_SECONDS: Final = 240.0
"""How long a batch may take, compilation included, before it counts as hanging."""
LOOP: Final = 1000
"""The most transitions in the timed loop without batches."""


class Transitions(NamedTuple):
    """N transitions. state, move: their numbers, i64[N]. before, arguments, after: trees. mask
    u32[N, 2]: the reasons why each is refused, see `conformance.refinement.transition.words`.
    """

    state: Any
    move: Any
    before: Tree
    arguments: Tree
    after: Tree
    mask: Any


@frozen
class Kind:
    """A kind of transition.

    check: from (before, arguments, after, mask) of one transition to bool[], whether the engine
    agrees. shipped: the same through the entry point as shipped; not traced.
    """

    name: str
    check: Callable[..., Any]
    shipped: Callable[..., bool]


def unsampled(*_: object) -> bool:
    """For a kind of which no sample is taken."""
    raise NotImplementedError("no sample is taken of this kind")


class Takes(Protocol):
    """A consumer of transitions: a Checker, or an object that keeps them."""

    def add(self, kind: str, transitions: Transitions) -> None:
        """Take some transitions of a kind."""
        ...

    def finish(self) -> None:
        """Take note that there are no more."""
        ...


def _pair(held: Sequence[int] | None) -> tuple[int, int] | None:
    """The pair that a checkpoint keeps as a list."""
    return None if held is None else (held[0], held[1])


@define
class Tally:
    """The counts of a check. first: (state, move) of the first mismatch, by number of state.

    by_driver: those of the checked actions that the driver refuses before it makes a call.
    """

    checked: int = 0
    by_driver: int = 0
    mismatches: int = 0
    checked_unbatched: int = 0
    first: tuple[int, int] | None = field(default=None, converter=_pair)

    def wrong(self, state: int, move: int) -> None:
        """Count a mismatch."""
        self.mismatches += 1
        if self.first is None or (state, move) < self.first:
            self.first = (state, move)


class Checker:
    """Checks transitions of all kinds in batches of `size`, and `sample` of them without batches.

    tally: the counts, which may be those of an interrupted check. optimise: compile for speed,
    which takes longer. watchdog: watches each batch.
    """

    def __init__(
        self,
        kinds: dict[str, Kind],
        *,
        size: int,
        sample: int,
        seed: int,
        tally: Tally,
        optimise: bool = True,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._watchdog = watchdog
        self.tally, self._size = tally, size
        self._kinds = kinds
        options = None if optimise else compiler_options()
        self._batched = {
            name: jax.jit(jax.vmap(kind.check), compiler_options=options)
            for name, kind in kinds.items()
        }
        self._waiting: dict[str, list[Transitions]] = {name: [] for name in kinds}
        self._pending: deque[tuple[Transitions, int, Any]] = deque()
        self._sample = _Sample(sample, np.random.default_rng(seed))

    def add(self, kind: str, transitions: Transitions) -> None:
        """Take transitions; they are checked when they fill a batch."""
        if not len(transitions.mask):
            return
        self._sample.offer(kind, transitions)
        waiting = self._waiting[kind]
        waiting.append(transitions)
        if sum(len(one.mask) for one in waiting) >= self._size:
            whole = joined(waiting)
            full = len(whole.mask) // self._size * self._size
            for start in range(0, full, self._size):
                self._dispatch(kind, part(whole, slice(start, start + self._size)))
            self._waiting[kind] = [part(whole, slice(full, None))]

    def flush(self) -> None:
        """Check the transitions that wait for a batch to fill."""
        for kind, waiting in self._waiting.items():
            if waiting and len(joined(waiting).mask):
                self._dispatch(kind, joined(waiting))
            self._waiting[kind] = []
        while self._pending:
            self._fetch()

    def finish(self) -> None:
        """Check the remaining transitions, then the sample."""
        self.flush()
        for kind, one in self._sample.transitions():
            self.tally.checked_unbatched += 1
            if not self._kinds[kind].shipped(one.before, one.arguments, one.after, one.mask):
                self.tally.wrong(int(one.state), int(one.move))

    def measure_loop(self) -> float:
        """Transitions per second of the same check, jitted, one at a time."""
        singly = {name: jax.jit(kind.check) for name, kind in self._kinds.items()}
        chosen = list(self._sample.transitions())[:LOOP]
        started = time.perf_counter()
        for turn in range(2):  # the first turn compiles
            started = time.perf_counter()
            for kind, one in chosen[: 50 if turn == 0 else None]:
                bool(singly[kind](one.before, one.arguments, one.after, one.mask))
        return len(chosen) / (time.perf_counter() - started)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Watch compiled code, which might never return."""
        if self._watchdog is not None:
            self._watchdog.begin((), BATCH_SECONDS)
        try:
            yield
        finally:
            if self._watchdog is not None:
                self._watchdog.end()

    def _dispatch(self, kind: str, transitions: Transitions) -> None:
        size = len(transitions.mask)
        filled = padded(transitions, self._size)
        with self._watching():
            answer = self._batched[kind](filled.before, filled.arguments, filled.after, filled.mask)
        self._pending.append((transitions, size, answer))
        while len(self._pending) > PENDING:
            self._fetch()

    def _fetch(self) -> None:
        transitions, size, answer = self._pending.popleft()
        with self._watching():
            right = np.asarray(answer)[:size]
        self.tally.checked += size
        for index in np.flatnonzero(~right):
            self.tally.wrong(int(transitions.state[index]), int(transitions.move[index]))


class _Sample:
    """The transitions with the smallest random keys, so that any subset is equally likely."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size, self._rng = size, rng
        self._threshold = 1.0
        self._kept: dict[str, list[Transitions]] = {}
        self._keys: dict[str, list[Any]] = {}
        self._held = 0

    def offer(self, kind: str, transitions: Transitions) -> None:
        """Keep those of these transitions with small enough keys."""
        keys = self._rng.random(len(transitions.mask))
        chosen = np.flatnonzero(keys < self._threshold)
        if not len(chosen):
            return
        self._kept.setdefault(kind, []).append(part(transitions, chosen))
        self._keys.setdefault(kind, []).append(keys[chosen])
        self._held += len(chosen)
        if self._held > 4 * self._size:
            self._cut()

    def transitions(self) -> Iterator[tuple[str, Transitions]]:
        """The sampled transitions, one at a time."""
        self._cut()
        for kind, parts in self._kept.items():
            whole = joined(parts)
            for index in range(len(whole.mask)):
                yield kind, part(whole, index)

    def _cut(self) -> None:
        every = np.concatenate(
            [np.zeros(0), *(key for keys in self._keys.values() for key in keys)]
        )
        if len(every) > self._size:
            self._threshold = float(np.partition(every, self._size)[self._size])
        for kind, parts in self._kept.items():
            whole, keys = joined(parts), np.concatenate(self._keys[kind])
            chosen = np.flatnonzero(keys < self._threshold)
            self._kept[kind], self._keys[kind] = [part(whole, chosen)], [keys[chosen]]
        self._held = sum(len(part.mask) for parts in self._kept.values() for part in parts)


def joined(parts: list[Transitions]) -> Transitions:
    """Transitions joined along their first axis."""
    whole: Transitions = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return whole


def part(transitions: Transitions, index: Any) -> Transitions:
    """The transitions at an index, a slice or an array of indices."""
    chosen: Transitions = jax.tree.map(lambda leaf: leaf[index], transitions)
    return chosen


def padded(transitions: Transitions, size: int) -> Transitions:
    """Transitions padded with the first one, so that every batch has the same shape."""
    index = np.arange(size)
    index[len(transitions.mask) :] = 0
    return part(transitions, index)
