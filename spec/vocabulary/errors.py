"""Errors: invalid input, and refused actions.

`InvalidInput` is raised before any state is touched: a geometry of zero pages, an empty prompt, a
malformed trace row. `Refused` is the answer of a machine to an action whose precondition fails:
the state is unchanged, and the exception carries every reason that held. Inside jit a refusal is
the integer code of one of them.
"""

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Final

from attrs import field, frozen


class KvspecError(Exception):
    """Base class of every exception that kvspec raises deliberately."""


SHOWN: Final = 360
"""The most characters of a value that a message shows."""


def shown(value: object, *, most: int = SHOWN) -> str:
    """The repr of a value for a message: at most `most` characters, or its type if repr fails."""
    try:
        text = repr(value)
    except Exception as error:  # nested deeply, thousands of digits, a __repr__ of a caller
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= most else f"{text[: most - 3]}..."


class InvalidInput(KvspecError, ValueError):
    """A value that no state could accept. Carries `name`, `seen`, `allowed` and `remedy`."""

    def __init__(self, name: str, *, seen: object, allowed: str, remedy: str) -> None:
        super().__init__(f"{name}: saw {shown(seen)}, allowed: {allowed}. {remedy}")
        self.name, self.seen, self.allowed, self.remedy = name, seen, allowed, remedy


class Family(Enum):
    """The subject of a refusal; each family has one exception class."""

    SLOT = "slot"
    BATCH = "batch"
    CAPACITY = "capacity"
    REQUEST = "request"
    FLIGHT = "flight"


class Reason(IntEnum):
    """Why an action is refused. The value is the status code inside jit; 0 there means done."""

    SLOT_RANGE = 1
    SLOT_UNUSED = 2
    SLOT_USED = 3
    SLOT_FINISHED = 4
    SLOT_ASSIGNED = 5
    SLOT_EMPTY = 6
    NO_FREE_SLOT = 7
    SLOT_BEGUN = 8
    STALE = 9
    BATCH_WIDTH = 10
    BATCH_POSITIONS = 11
    BATCH_UNKNOWN = 12
    UNWRITTEN = 13
    BATCH_QUEUED = 14
    PROPOSED = 15
    COMMITTED = 16
    WINDOW = 17
    UNCOMMITTED = 18
    NOT_INDEXED = 19
    OUT_OF_PAGES = 20
    TOO_LONG = 21
    QUEUE_FULL = 22
    QUEUE_EMPTY = 23
    OUTPUTS_FULL = 24
    PREFILL_WIDTH = 25
    NOT_IDLE = 26
    NOT_COMMON = 27
    NOT_LIVE = 29
    STOPS = 30
    CHOICE_TAKEN = 31
    NEVER_FITS = 32
    IN_FLIGHT = 33
    FLIGHTS_FULL = 34
    NO_FLIGHT = 35

    @property
    def family(self) -> Family:
        """The family: that of the last one of `_FIRST` that is not above the code."""
        return [family for first, family in _FIRST.items() if first <= self.value][-1]

    @property
    def meaning(self) -> str:
        """What was wrong, and what to do about it."""
        return _MEANINGS[self]


_FIRST: Final = {
    1: Family.SLOT,
    10: Family.BATCH,
    20: Family.CAPACITY,
    28: Family.REQUEST,
    33: Family.FLIGHT,
}
"""The first code of each family. A code is below 32 where it stands in a mask of the device."""

_MEANINGS = {
    Reason.SLOT_RANGE: "the slot id is out of range; use 0 to slots - 1",
    Reason.SLOT_UNUSED: "the slot is not in use; reserve it first",
    Reason.SLOT_USED: "the slot is in use; free it first or take another",
    Reason.SLOT_FINISHED: "the sequence has finished; free its slot",
    Reason.SLOT_ASSIGNED: "the slot already has a prompt; free it first",
    Reason.SLOT_EMPTY: "the slot has no prompt, or a token that is not written; assign and write",
    Reason.NO_FREE_SLOT: "every slot is in use; free one or wait",
    Reason.SLOT_BEGUN: "the slot has cells already; hit before the first allocation",
    Reason.STALE: "the slot has cells from before the index was dropped; free it first",
    Reason.BATCH_WIDTH: "the batch has too many entries; split it or raise the limit",
    Reason.BATCH_POSITIONS: "a slot's positions are not its next ones; send those, each once",
    Reason.BATCH_UNKNOWN: "a cell to be written has no known token; append the token first",
    Reason.BATCH_QUEUED: "a token still waits in the queue; pack or purge it first",
    Reason.PROPOSED: "the slot has proposed tokens; commit or truncate them first",
    Reason.COMMITTED: "the length is not past the committed cells; commit further or cut less",
    Reason.WINDOW: "a later query can see these cells; release fewer, commit more, or use a window",
    Reason.UNCOMMITTED: "the length is past the committed cells; write or commit them first",
    Reason.NOT_INDEXED: "the index has no such page; publish it first, or name fewer cells",
    Reason.UNWRITTEN: "allocated cells are not written yet; write them first",
    Reason.OUT_OF_PAGES: "not enough free pages; free a sequence or enlarge the pool",
    Reason.TOO_LONG: "the length is past what the sequence may have; shorten it or raise the limit",
    Reason.QUEUE_FULL: "the queue has no room; pack or purge first",
    Reason.QUEUE_EMPTY: "nothing is queued; prefill or enqueue first",
    Reason.OUTPUTS_FULL: "finished outputs were not taken; take them first",
    Reason.PREFILL_WIDTH: "the prompts exceed one prefill; split them or raise the limit",
    Reason.NOT_COMMON: "the slots have fewer whole pages in common; share fewer cells",
    Reason.NOT_IDLE: "a slot has this page in its row; free the slot first",
    Reason.STOPS: "too many stop sequences or one too long; use fewer or raise the limit",
    Reason.CHOICE_TAKEN: "this choice is live, or its output is not taken yet; use another id",
    Reason.NEVER_FITS: "the request can never fit; shorten it, ask for fewer choices or enlarge",
    Reason.NOT_LIVE: "no choice of the request is unfinished in a slot; preempt another one",
    Reason.IN_FLIGHT: "a step in flight is not delivered yet; deliver it first",
    Reason.FLIGHTS_FULL: "too many steps are in flight; deliver one first",
    Reason.NO_FLIGHT: "no step in flight is at this point; dispatch or retire one first",
}


SLOT_REASONS: Final = frozenset(reason for reason in Reason if reason.family is Family.SLOT)
"""The reasons that concern the slot itself."""


@frozen
class Refusal:
    """One reason, with the value seen and the values allowed; None where they are not known."""

    reason: Reason
    seen: object = field(default=None, eq=False)
    allowed: object = field(default=None, eq=False)

    def __attrs_post_init__(self) -> None:
        if type(self.reason) is not Reason:
            raise InvalidInput(
                "Refusal.reason",
                seen=self.reason,
                allowed="a Reason",
                remedy="Pass a Reason; Reason(code) converts a status code.",
            )

    def __str__(self) -> str:
        if self.seen is self.allowed is None:
            return f"{self.reason.name}: {self.reason.meaning}"
        seen = self.seen if isinstance(self.seen, str) else shown(self.seen)
        return f"{self.reason.name}: saw {seen}, allowed {self.allowed}: {self.reason.meaning}"


class Refused(KvspecError):
    """An action was refused and nothing changed. `refusals` lists every reason that held."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(sorted(refusals, key=lambda refusal: refusal.reason))
        super().__init__("; ".join(str(refusal) for refusal in self.refusals))

    @property
    def reasons(self) -> frozenset[Reason]:
        """The reasons alone, for comparison."""
        return frozenset(refusal.reason for refusal in self.refusals)


class SlotRefused(Refused):
    """A slot is out of range, in the wrong state, or none is free."""


class BatchRefused(Refused):
    """A batch names the wrong cells: gaps, duplicates, rewrites, unknown or unwritten tokens."""


class CapacityRefused(Refused):
    """Pages, a row, the queue, the outputs or one prefill have no room."""


class RequestRefused(Refused):
    """A request that this geometry and these limits cannot serve, or whose id is taken."""


class FlightRefused(Refused):
    """Steps in flight stand in the way, are too many, or none is at the point that is asked for."""


_CLASSES = {
    Family.SLOT: SlotRefused,
    Family.BATCH: BatchRefused,
    Family.CAPACITY: CapacityRefused,
    Family.REQUEST: RequestRefused,
    Family.FLIGHT: FlightRefused,
}


def refused(refusals: Iterable[Refusal] | Reason) -> Refused:
    """The exception for one or more refusals; the lowest code decides its class.

    A reason alone is a refusal that names no values.
    """
    given = [Refusal(refusals)] if isinstance(refusals, Reason) else refusals
    found = sorted(given, key=lambda refusal: refusal.reason)
    if not found:
        raise InvalidInput(
            "refusals", seen=found, allowed="1 or more", remedy="Raise only if something is wrong."
        )
    return _CLASSES[found[0].reason.family](found)
