"""The state of a machine: one flat record, of which each rung owns some components.

A machine without a rung leaves the components of that rung at their defaults. So the state of a
lower machine is a selection of components, and nothing is nested.
"""

from typing import Final, NamedTuple

from attrs import frozen

from spec import pool
from spec.cells import Cells
from spec.index import Index
from spec.machines.actions import Name
from spec.pool import Counts
from spec.table import Sequences
from spec.vocabulary import (
    STANDARD,
    Capacity,
    CleanupMode,
    FinishReason,
    Geometry,
    Limits,
    Params,
    Request,
    Tokens,
)


@frozen
class Cached:
    """One sequence in a contiguous cache: its tokens, and the tags of its written cells."""

    tokens: Tokens = ()
    cells: tuple[Tokens, ...] = ()


@frozen
class Detail:
    """The request that a sequence belongs to. finished: why the sequence has ended, if it has."""

    request: int
    choice: int
    prompt_len: int
    params: Params
    finished: FinishReason | None = None


@frozen
class Output:
    """One finished choice, kept until it is taken. tokens: generated, a stop token included."""

    request: int
    choice: int
    prompt: Tokens
    tokens: Tokens
    reason: FinishReason


@frozen
class InFlight:
    """What a step in flight does with one slot.

    first, count: its positions. draws: whether it draws the token behind the last of them. pages:
    those that the row named when the step was dispatched. current: whether the slot still has the
    sequence of the step. If not, the step holds the slot and the pages, and does nothing else.
    """

    slot: int
    first: int = 0
    count: int = 0
    draws: bool = False
    pages: tuple[int, ...] = ()
    current: bool = True

    @property
    def end(self) -> int:
        """The position behind the last one."""
        return self.first + self.count


@frozen
class Flight:
    """A step that is dispatched and not delivered. parts: by slot.

    retired: whether the device has done it.
    """

    parts: tuple[InFlight, ...]
    retired: bool = False


@frozen
class Queued:
    """A token, known or proposed, that waits to be decoded."""

    token: int
    slot: int
    position: int


PER_SLOT: Final = (
    "sequences",
    "committed",
    "proposed",
    "first_page",
    "contexts",
    "stale",
    "details",
)
"""The components with one entry for each slot, in a machine that has their rung."""


PER_PAGE: Final = ("cells", "counts", "indexed")
"""Those with one entry for each page."""


class State(NamedTuple):
    """The configuration, which no action changes, and the components of every rung.

    texts: of naive, by name. contiguous: of cache, per slot. sequences (per slot, None if unused),
    cells and counts: of pages. committed (cells whose tokens are final) and proposed (draft tokens
    after the known ones), per slot: of rollback. first_page (how many leading pages are released),
    per slot: of window. indexed (per page, None if it is not in the index), contexts (what beside
    tokens decides contents) and stale (whether it has cells from before a Drop), per slot: of
    prefix. details (per slot, None without a prompt) and outputs: of lifecycle. queue,
    in order of arrival: of scheduling. waiting (in order of arrival) and admitted (still holding a
    slot): of admission. flights (steps that are not delivered, oldest first): of flights.

    A tuple, since searches hash and compare states by the million.
    """

    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode
    capacity: Capacity = STANDARD
    texts: frozenset[tuple[Name, Tokens]] = frozenset()
    contiguous: tuple[Cached | None, ...] = ()
    sequences: Sequences = ()
    cells: Cells = ()
    counts: Counts = ()
    committed: tuple[int, ...] = ()
    proposed: tuple[Tokens, ...] = ()
    first_page: tuple[int, ...] = ()
    indexed: Index = ()
    contexts: tuple[int, ...] = ()
    stale: tuple[bool, ...] = ()
    details: tuple[Detail | None, ...] = ()
    outputs: tuple[Output, ...] = ()
    queue: tuple[Queued, ...] = ()
    waiting: tuple[Request, ...] = ()
    admitted: tuple[Request, ...] = ()
    flights: tuple[Flight, ...] = ()

    @property
    def held(self) -> frozenset[int]:
        """The pages that steps in flight name."""
        return frozenset(
            page for flight in self.flights for part in flight.parts for page in part.pages
        )

    @property
    def in_use(self) -> Counts:
        """The counts, where a page that a step in flight names counts as one that a row names."""
        return pool.hold(self.counts, self.held) if self.flights else self.counts

    @property
    def promised(self) -> frozenset[int]:
        """The slots of which a step in flight draws a token."""
        return frozenset(
            part.slot
            for flight in self.flights
            for part in flight.parts
            if part.current and part.draws
        )

    @property
    def unused_slots(self) -> tuple[int, ...]:
        """The slots without a sequence that no step in flight holds, lowest first."""
        held = {part.slot for flight in self.flights for part in flight.parts}
        return tuple(
            slot
            for slot, sequence in enumerate(self.sequences)
            if sequence is None and slot not in held
        )

    @property
    def finished(self) -> tuple[int, ...]:
        """Slots whose sequence has finished and is not yet freed."""
        return tuple(slot for slot, detail in enumerate(self.details) if detail and detail.finished)

    @property
    def live(self) -> tuple[int, ...]:
        """Slots in use whose sequence has not finished."""
        done = self.finished
        return tuple(
            slot for slot, sequence in enumerate(self.sequences) if sequence and slot not in done
        )

    @property
    def idle(self) -> bool:
        """Whether no request is waiting and no token is queued."""
        return not self.waiting and not self.queue
