"""Requests and their sampling parameters; modes of cleanup and reset; finish reasons."""

from enum import Enum

from attrs import field, frozen

from spec.vocabulary.capacity import STANDARD, Capacity
from spec.vocabulary.geometry import Geometry
from spec.vocabulary.rules import INT32, PROMPT, SIZE, STOPS, TEMPERATURE, a

Tokens = tuple[int, ...]


class CleanupMode(Enum):
    """When finished sequences are freed by themselves.

    INCREMENTAL: at the end of each prefill and round. END: at the end of the prefill or round after
    which no sequence is unfinished. NONE: never.

    Source: docs/sources.md, "Cleanup modes".
    """

    NONE = "none"
    END = "end"
    INCREMENTAL = "incremental"


class ResetMode(Enum):
    """Whether a reset also zeroes the pool.

    Source: docs/sources.md, "Logical and physical reset".
    """

    LOGICAL = "logical"
    PHYSICAL = "physical"


class FinishReason(Enum):
    """Why a sequence ended. If both hold, the reason is STOP."""

    LIMIT = "limit"
    STOP = "stop"


@frozen(kw_only=True)
class Params:
    """How one request is sampled and when it stops.

    max_new: the number of generated tokens at which it ends. stops: it ends as soon as the
    generated tokens end with one of these, which stays in the output. temperature: 0 is greedy.
    seed: for this request's draws.
    """

    max_new: int = field(validator=SIZE)
    stops: tuple[Tokens, ...] = field(default=(), validator=STOPS)
    temperature: float = field(default=0.0, validator=TEMPERATURE)
    seed: int = field(default=0, validator=INT32)


@frozen(kw_only=True)
class Request:
    """One prompt to be continued `n_generations` times.

    id: its name in the outputs. prompt: its tokens. params: when it stops and how it draws.
    n_generations: its choices, each of which becomes a sequence.
    """

    id: int = field(validator=INT32)
    prompt: Tokens = field(validator=PROMPT)
    params: Params = field(validator=a(Params))
    n_generations: int = field(default=1, validator=SIZE)

    def pages_needed(self, geometry: Geometry, capacity: Capacity = STANDARD) -> int:
        """Pages this request holds in the worst case: shared full pages once, the rest per choice.

        Whether copies are eager or lazy makes no difference: in the end each choice has its own.

        Source: docs/sources.md, "Page budget" and "Worst-case admission".
        """
        a(Geometry).require("geometry", geometry)
        a(Capacity).require("capacity", capacity)
        shared = len(self.prompt) // geometry.page_size
        length = len(self.prompt) + self.params.max_new
        # A row ends at `max_len`; a request that is longer still needs what it would need. What is
        # reserved for it is no more than `length` cells.
        whole = max(geometry.pages_for(length), capacity.row_pages(geometry, length, 0))
        longest, own = capacity.ring or whole, whole - shared
        # In a ring the choice that lags behind keeps the shared pages that the others give up.
        return min(longest, whole) + (self.n_generations - 1) * min(longest, own)
