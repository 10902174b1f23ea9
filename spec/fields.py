"""The registry of fields: one record for each observable part of an engine's state.

The view, the comparer, recordings, the wire protocol and the picture loop over it. A rung that adds
an observable field adds a record here, and an attribute to `spec.view.View`.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, Final, Literal

from attrs import frozen

from spec import pool
from spec.index import Indexed
from spec.state import Flight, Output, State
from spec.table import Sequence
from spec.vocabulary import INVALID, FinishReason, Tokens

QueueEntry = tuple[int, int, int]
"""(token, slot, position)."""

OutputEntry = tuple[int, int, Tokens, FinishReason]
"""(request, choice, generated tokens, reason)."""

IndexEntry = tuple[int, ...]
"""A page of the index: (context, *tokens up to its end); () if the page is not in the index."""

PartEntry = tuple[int, int, int, bool]
"""(slot, first position, positions, whether the next token is drawn)."""

FlightEntry = tuple[bool, tuple[PartEntry, ...], tuple[int, ...]]
"""A step in flight: (retired, its parts by slot, the slots that it only holds)."""

Index = Literal["slot", "page", "cell", "whole"]
"""The index of a field: one entry per slot, page or cell; `whole` is one entry without an index."""


def _as_it_is(entry: Any) -> Any:
    return entry


@frozen(kw_only=True)
class Field:
    """One observable field.

    meaning: an entry, in words. index: see `Index`. owner: the rung that adds the field. clause:
    the invariant that is violated if this field alone differs from the specification; after a reset
    it is RESET. of: the entries in a state of the specification; an unused slot has an entry too.
    record: the type of an entry in a recording; None if recordings do not contain the field.
    to_record, from_record: convert an entry of a view to an entry of a recording, and back. viewed:
    whether it is an attribute of View. paged: whether it names pages, so that it is compared under
    the page policy of the engine. required: whether an engine with the rung must show it, since
    rows or a queue mean nothing without it.
    """

    name: str
    meaning: str
    index: Index
    owner: str
    clause: str
    of: Callable[[State], Any]
    record: Any = None
    to_record: Callable[[Any], Any] = _as_it_is
    from_record: Callable[[Any], Any] = _as_it_is
    viewed: bool = True
    paged: bool = False
    required: bool = False


def output_entry(output: Output) -> OutputEntry:
    """A finished choice as an entry of the field `outputs`."""
    return output.request, output.choice, output.tokens, output.reason


def index_entry(entry: Indexed | None) -> IndexEntry:
    """The entry of a page in the field `indexed`."""
    return () if entry is None else (entry.context, *entry.chain)


def flight_entry(flight: Flight) -> FlightEntry:
    """A step in flight as an entry of the field `flights`."""
    parts = tuple(
        (part.slot, part.first, part.count, part.draws) for part in flight.parts if part.current
    )
    return flight.retired, parts, tuple(part.slot for part in flight.parts if not part.current)


def _named_in_flight(state: State) -> tuple[int, ...]:
    """For each page, how many steps in flight name it."""
    named = [0] * state.geometry.pages
    for flight in state.flights:
        for page in {page for part in flight.parts for page in part.pages}:
            named[page] += 1
    return tuple(named)


def _per_slot(entry: Callable[[Sequence], Any]) -> Callable[[State], Any]:
    """One entry for each slot; an unused slot has the entry of an empty sequence."""
    empty = entry(Sequence())
    return lambda state: tuple(
        entry(sequence) if sequence else empty for sequence in state.sequences
    )


def _rows(state: State) -> tuple[tuple[int, ...], ...]:
    """The rows at full width, INVALID where there is no page."""
    width = state.geometry.pages_per_seq
    empty = (INVALID,) * width
    return tuple(
        sequence.row + empty[len(sequence.row) :] if sequence else empty
        for sequence in state.sequences
    )


def _valid_pages(row: tuple[int, ...]) -> tuple[int, ...]:
    """A row up to its last page. A hole before that page is an error, and is kept to be seen."""
    end = len(row)
    while end and row[end - 1] == INVALID:
        end -= 1
    return tuple(row[:end])


def _outputs_to_record(outputs: tuple[OutputEntry, ...]) -> tuple[tuple[object, ...], ...]:
    return tuple((*rest, reason.value) for *rest, reason in outputs)


def _outputs_from_record(outputs: Any) -> tuple[Any, ...]:
    return tuple((*rest, FinishReason(reason)) for *rest, reason in outputs)


FIELDS: Final = (
    Field(
        name="used",
        meaning="whether the slot has a sequence",
        index="slot",
        owner="pages",
        clause="DET",
        of=lambda state: tuple(sequence is not None for sequence in state.sequences),
        record=bool,
    ),
    Field(
        name="rows",
        meaning="the pages of the slot, in order of position",
        index="slot",
        owner="pages",
        clause="ROW",
        of=_rows,
        record=tuple[int, ...],
        to_record=_valid_pages,
        paged=True,
    ),
    Field(
        name="counts",
        meaning="how many row entries of used slots name the page; 0: it may be taken",
        index="page",
        owner="pages",
        clause="RC",
        of=lambda state: state.counts,
        record=int,
        paged=True,
    ),
    Field(
        name="allocated",
        meaning="how many positions of the slot have a cell",
        index="slot",
        owner="pages",
        clause="LEN",
        of=_per_slot(lambda sequence: sequence.allocated),
        record=int,
    ),
    Field(
        name="written",
        meaning="how many of its cells hold K and V",
        index="slot",
        owner="pages",
        clause="LEN",
        of=_per_slot(lambda sequence: sequence.written),
        record=int,
    ),
    Field(
        name="committed",
        meaning="how many of its leading cells are final",
        index="slot",
        owner="rollback",
        clause="LEN",
        of=lambda state: state.committed,
        record=int,
    ),
    Field(
        name="first_page",
        meaning="how many of its leading pages are released",
        index="slot",
        owner="window",
        clause="WIN",
        of=lambda state: state.first_page,
        record=int,
        required=True,
    ),
    Field(
        name="indexed",
        meaning="the key of the page in the index of prefixes, as (context, *tokens up to the end "
        "of the page); empty: it is not in the index",
        index="page",
        owner="prefix",
        clause="PC",
        of=lambda state: tuple(map(index_entry, state.indexed)),
        record=tuple[int, ...],
        paged=True,
        required=True,
    ),
    Field(
        name="idle_ranks",
        meaning="the rank of the release of an idle page among those of all idle pages, from 1 on, "
        "the oldest first; 0: some row names it, or it is not in the index",
        index="page",
        owner="prefix",
        clause="EVICT",
        of=lambda state: tuple(entry.rank if entry else 0 for entry in state.indexed),
        record=int,
        paged=True,
    ),
    Field(
        name="contexts",
        meaning="what, beside its tokens, decides what the cells of the slot hold",
        index="slot",
        owner="prefix",
        clause="PC",
        of=lambda state: state.contexts,
        record=int,
    ),
    Field(
        name="stale",
        meaning="whether the slot has cells from before the index was dropped",
        index="slot",
        owner="prefix",
        clause="PC",
        of=lambda state: state.stale,
        record=bool,
    ),
    Field(
        name="tokens",
        meaning="its known tokens",
        index="slot",
        owner="pages",
        clause="ALONE",
        of=_per_slot(lambda sequence: sequence.tokens),
        record=tuple[int, ...],
    ),
    Field(
        name="proposed",
        meaning="its draft tokens, which follow the known ones",
        index="slot",
        owner="rollback",
        clause="RB",
        of=lambda state: state.proposed,
        record=tuple[int, ...],
    ),
    Field(
        name="finished",
        meaning="whether its sequence has ended, by a stop or by its limit",
        index="slot",
        owner="lifecycle",
        clause="OUT",
        of=lambda state: tuple(bool(found and found.finished) for found in state.details),
        record=bool,
    ),
    Field(
        name="queue",
        meaning="the tokens that wait to be written, oldest first, as (token, slot, position)",
        index="whole",
        owner="scheduling",
        clause="Q",
        of=lambda state: tuple((one.token, one.slot, one.position) for one in state.queue),
        record=tuple[tuple[int, int, int], ...],
    ),
    Field(
        name="outputs",
        meaning="the outputs that are not taken, in order of finishing, as "
        "(request, choice, generated tokens, reason)",
        index="whole",
        owner="lifecycle",
        clause="OUT",
        of=lambda state: tuple(map(output_entry, state.outputs)),
        record=tuple[tuple[int, int, tuple[int, ...], str], ...],
        to_record=_outputs_to_record,
        from_record=_outputs_from_record,
    ),
    Field(
        name="flights",
        meaning="the steps in flight, oldest first, as (retired, parts, held): for each slot that "
        "is still current (slot, first position, positions, whether it draws), and the other slots",
        index="whole",
        owner="flights",
        clause="SNAP",
        of=lambda state: tuple(map(flight_entry, state.flights)),
        record=tuple[tuple[bool, tuple[tuple[int, int, int, bool], ...], tuple[int, ...]], ...],
        required=True,
    ),
    Field(
        name="held",
        meaning="how many steps in flight name the page; while it is above 0 the page is not taken",
        index="page",
        owner="flights",
        clause="HELD",
        of=_named_in_flight,
        record=int,
        paged=True,
    ),
    Field(
        name="free",
        meaning="how many pages may be taken: free ones, and idle ones",
        index="whole",
        owner="pages",
        clause="CONS",
        of=lambda state: pool.free_count(state.in_use),
        record=int,
        viewed=False,
    ),
    Field(
        name="cells",
        meaning="what each cell holds",
        index="cell",
        owner="pages",
        clause="CONTENT",
        of=lambda state: tuple(chain.from_iterable(state.cells)),
        paged=True,
    ),
)

BY_NAME: Final = {field.name: field for field in FIELDS}
VIEWED: Final = tuple(field for field in FIELDS if field.viewed)
RECORDED: Final = tuple(field for field in FIELDS if field.record is not None)


def entries(field: Field, value: Any) -> dict[int, Any]:
    """The entries of a field by index; a field without an index has its entry at 0."""
    return {0: value} if field.index == "whole" else dict(enumerate(value))
