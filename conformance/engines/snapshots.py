"""The whole observable state of our engine as one packed array, and the view of it."""

from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from impl.setup import Setup
from impl.state import FINISH_CODES
from impl.state.index import OUTSIDE
from impl.state.packing import Packed, fields
from spec import model
from spec.fields import IndexEntry, QueueEntry
from spec.view import View
from spec.vocabulary import Geometry

WORDS: Final = 4
"""The words of a cell: K and V of both layers."""
_REASONS: Final = {code: reason for reason, code in FINISH_CODES.items()}

Ints = np.ndarray[Any, np.dtype[np.int32]]


def _snapshot(packed: Packed, *, cells: bool) -> Array:
    """i32[...]: the packed state as it lies in memory; without cells unless requested.

    Log-probabilities, the only floats that are not joined, are left out: `Ours.logprobs` has them.
    It is not split here: XLA runs a program of a few steps in one thread, and wakes others for a
    longer one.
    """
    pools = [lax.bitcast_convert_type(pool, jnp.int32) for pool in packed.cache if cells]
    long = [part for part in packed.long if part.dtype == jnp.int32]
    return jnp.concatenate([part.ravel() for part in (*long, *packed.short, *pools)])


snapshots = jax.jit(_snapshot, static_argnames="cells")


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
        indexed=_keys(part, geometry.page_size),
        idle_ranks=_idle_ranks(part),
        contexts=tuple(part("slots.contexts")),
        stale=tuple(map(bool, part("slots.stale"))),
    )


def _keys(part: Callable[[str], list[int]], page_size: int) -> tuple[IndexEntry, ...]:
    """The keys of the pages of the index, each read from page to page to the first."""
    parents, contexts, tokens = map(part, ("indexed.parents", "indexed.contexts", "indexed.tokens"))
    chains: dict[int, tuple[int, ...]] = {}
    for page, parent in enumerate(parents):
        path, at = dict[int, None](), page
        while parent != OUTSIDE and 0 <= at < len(parents) and at not in chains:
            if at in path:  # a wrong index may go round
                break
            path[at] = None
            at = parents[at]
        for one in reversed(path):
            own = tokens[one * page_size : (one + 1) * page_size]
            chains[one] = (*chains.get(parents[one], ()), *own)
    return tuple(
        (contexts[page], *chains[page]) if parent != OUTSIDE else ()
        for page, parent in enumerate(parents)
    )


def _idle_ranks(part: Callable[[str], list[int]]) -> tuple[int, ...]:
    """The order in which rows let go of the pages of the index that none names."""
    now, released, counts = part("pages.clock")[0], part("pages.released"), part("pages.counts")
    ranks = [0] * len(counts)
    idle = {
        page: (now - released[page]) % 2**32
        for page, parent in enumerate(part("indexed.parents"))
        if parent != OUTSIDE and counts[page] == 0
    }
    waited = sorted({*idle.values()}, reverse=True)
    for page, age in idle.items():
        ranks[page] = 1 + waited.index(age)
    return tuple(ranks)


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
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        first, second = 2 * at, len(self._words) // 2 + 2 * at
        return (*self._words[first : first + 2], *self._words[second : second + 2])
