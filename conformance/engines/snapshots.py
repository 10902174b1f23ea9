"""The whole observable state of our engine as one packed array, and the view of it."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from impl.setup import Setup
from impl.state import FINISH_CODES
from impl.state.index import OUTSIDE
from impl.state.packing import Packed, fields, is_joined
from spec import model
from spec.fields import FlightEntry, IndexEntry, OutputEntry, QueueEntry
from spec.view import View
from spec.vocabulary import INVALID, Geometry

WORDS: Final = 4
"""The words of a cell: K and V of both layers."""
_REASONS: Final = {code: reason for reason, code in FINISH_CODES.items()}

Ints = np.ndarray[Any, np.dtype[np.int32]]
T = TypeVar("T")


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


class Views:
    """The views of the snapshots of one engine, see `layout`.

    A field is made again only if one of the parts that it is made of has changed since the last
    snapshot.
    """

    def __init__(self, spans: dict[str, slice], geometry: Geometry) -> None:
        self._spans, self._geometry = spans, geometry
        self._made: dict[str, tuple[list[bytes], Any]] = {}

    def read(self, snapshot: Ints) -> View:
        """The view of a snapshot."""
        geometry, length = self._geometry, self._geometry.max_len

        def field(name: str, make: Callable[..., T], *parts: str) -> T:
            held = [snapshot[self._spans[part]] for part in parts]
            key = [part.tobytes() for part in held]
            if name not in self._made or self._made[name][0] != key:
                self._made[name] = key, make(*[part.tolist() for part in held])
            made: T = self._made[name][1]
            return made

        def numbers(name: str, part: str) -> tuple[int, ...]:
            return field(name, tuple, part)

        def flags(name: str, part: str) -> tuple[bool, ...]:
            return field(name, _flags, part)

        return View(
            geometry=geometry,
            counts=numbers("counts", "pages.counts"),
            used=flags("used", "slots.used"),
            rows=field("rows", partial(_rows, geometry.pages_per_seq), "pages.rows"),
            allocated=numbers("allocated", "slots.allocated"),
            written=numbers("written", "slots.written"),
            committed=numbers("committed", "slots.committed"),
            first_page=None
            if geometry.window is None
            else field(
                "first_page",
                partial(_first_pages, geometry),
                *("pages.rows", "slots.allocated"),
            ),
            tokens=field("tokens", partial(_tokens, length), "slots.tokens", "slots.known"),
            proposed=field(
                "proposed",
                partial(_proposed, length),
                *("slots.tokens", "slots.known", "slots.proposed"),
            ),
            finished=flags("finished", "slots.finished"),
            queue=field(
                "queue",
                _queue,
                *("queue.filled", "queue.tokens", "queue.slots", "queue.positions"),
            ),
            outputs=field(
                "outputs",
                partial(_outputs, length),
                *("outputs.filled", "outputs.tokens"),
                *("outputs.requests", "outputs.choices", "outputs.reasons", "outputs.lens"),
            ),
            cells=Cells(snapshot[self._spans["cache"]]) if "cache" in self._spans else None,
            expected=partial(model.contents, window=geometry.window),
            indexed=field(
                "indexed",
                partial(_keys, geometry.page_size),
                *("indexed.parents", "indexed.contexts", "indexed.tokens"),
            ),
            idle_ranks=field(
                "idle_ranks",
                _idle_ranks,
                *("pages.clock", "pages.released", "pages.counts", "indexed.parents"),
            ),
            contexts=numbers("contexts", "slots.contexts"),
            stale=flags("stale", "slots.stale"),
            flights=field(
                "flights",
                _flights,
                *("flights.filled", "flights.retired", "flights.holds"),
                *("flights.first", "flights.lens", "flights.draws"),
            ),
            held=numbers("held", "pages.held"),
        )


def _flags(numbers: list[int]) -> tuple[bool, ...]:
    return tuple(map(bool, numbers))


def _rows(width: int, pages: list[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(pages[at : at + width]) for at in range(0, len(pages), width))


def _first_pages(geometry: Geometry, pages: list[int], allocated: list[int]) -> tuple[int, ...]:
    """How many entries of each row are released: those that its cells need, and it does not have.

    A row has no other entries without a page before its end.
    """
    there = (sum(page != INVALID for page in row) for row in _rows(geometry.pages_per_seq, pages))
    return tuple(
        geometry.pages_for(cells) - count for cells, count in zip(allocated, there, strict=True)
    )


def _tokens(length: int, tokens: list[int], known: list[int]) -> tuple[tuple[int, ...], ...]:
    starts = range(0, len(tokens), length)
    return tuple(
        tuple(tokens[start : start + count]) for start, count in zip(starts, known, strict=True)
    )


def _proposed(
    length: int, tokens: list[int], known: list[int], proposed: list[int]
) -> tuple[tuple[int, ...], ...]:
    starts = range(0, len(tokens), length)
    return tuple(
        tuple(tokens[start + after : start + after + count])
        for start, after, count in zip(starts, known, proposed, strict=True)
    )


def _queue(filled: list[int], *entries: list[int]) -> tuple[QueueEntry, ...]:
    queue: list[Any] = list(zip(*entries, strict=True))
    return tuple(queue[: filled[0]])


def _outputs(
    length: int, filled: list[int], texts: list[int], *entries: list[int]
) -> tuple[OutputEntry, ...]:
    outputs = zip(*entries, range(0, len(texts), length), strict=True)
    return tuple(
        (request, choice, tuple(texts[at : at + count]), _REASONS[reason])
        for request, choice, reason, count, at in islice(outputs, filled[0])
    )


def _flights(filled: list[int], retired: list[int], *numbers: list[int]) -> tuple[FlightEntry, ...]:
    """The steps in flight, from the numbers of each step and slot."""
    slots = len(numbers[0]) // len(retired)
    found = list[FlightEntry]()
    for step in range(filled[0]):
        of_slots = [column[step * slots : (step + 1) * slots] for column in numbers]
        parts = [(slot, *part) for slot, part in enumerate(zip(*of_slots, strict=True)) if part[0]]
        current = tuple(
            (slot, first, count, bool(draws)) for slot, _, first, count, draws in parts if count
        )
        found.append(
            (bool(retired[step]), current, tuple(slot for slot, *_, n, _ in parts if not n))
        )
    return tuple(found)


def _keys(
    page_size: int, parents: list[int], contexts: list[int], tokens: list[int]
) -> tuple[IndexEntry, ...]:
    """The keys of the pages of the index, each read from page to page to the first."""
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


def _idle_ranks(
    clock: list[int], released: list[int], counts: list[int], parents: list[int]
) -> tuple[int, ...]:
    """The order in which rows let go of the pages of the index that none names."""
    idle = {
        page: (clock[0] - released[page]) % 2**32
        for page, parent in enumerate(parents)
        if parent != OUTSIDE and counts[page] == 0
    }
    waited = sorted({*idle.values()}, reverse=True)
    places = {age: 1 + place for place, age in enumerate(waited)}
    return tuple(places[idle[page]] if page in idle else 0 for page in range(len(parents)))


def layout(setup: Setup, *, cells: bool) -> dict[str, slice]:
    """The range of each field of a state in its snapshot; the cells, if present, are last."""
    sizes = {
        name: shape.size
        for name, shape in fields(setup).items()
        if shape.dtype == jnp.int32 or is_joined(name, shape.shape)
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
