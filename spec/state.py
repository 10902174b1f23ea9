"""The state of a machine: one flat record, of which each rung owns some components.

A machine without a rung leaves the components of that rung at their defaults. So the state of a
lower machine is a selection of components, and nothing is nested.
"""

from typing import Final, NamedTuple

from attrs import frozen

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
    slot): of admission.

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
