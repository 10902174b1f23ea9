"""The whole observable state of our engine as one packed array, and the view of it."""

from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from impl.setup import Setup
from impl.state import FINISH_CODES
from impl.state.packing import Packed, fields
from spec import model
from spec.fields import QueueEntry
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
