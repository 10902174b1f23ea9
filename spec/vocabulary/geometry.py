"""Geometry and limits: sizes that are fixed for the life of an engine, and static inside jit."""

from typing import Final

from attrs import field, frozen

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.rules import INT32_MAX, SIZE, SIZE_OR_NONE, a

INVALID: Final = INT32_MAX
"""Stands for "no page", "no slot" and "no destination" in arrays: out of range on either side.

A negative sentinel would wrap around to the last page when used as an index.
"""


@frozen(kw_only=True)
class Geometry:
    """The sizes of the pool and of the page table, and the attention window.


    pages: pages in the pool. page_size: cells (token positions) in a page. slots: local sequence
    slots. pages_per_seq: entries in a table row. window: positions that a query sees, its own
    included; None: all up to its own. Of these numbers the window alone changes what a model draws.
    Source: docs/sources.md, "Page pool" and "Windows".
    """

    pages: int = field(validator=SIZE)
    page_size: int = field(validator=SIZE)
    slots: int = field(validator=SIZE)
    pages_per_seq: int = field(validator=SIZE)
    window: int | None = field(default=None, validator=SIZE_OR_NONE)

    def __attrs_post_init__(self) -> None:
        for name, what in (("pages", "a destination"), ("pages_per_seq", "a position")):
            count = getattr(self, name)
            if count * self.page_size > INT32_MAX:
                raise InvalidInput(
                    f"Geometry.{name}",
                    seen=f"{count} pages of {self.page_size}",
                    allowed=f"{name} * page_size below 2**31, so that {what} is an int32",
                    remedy="Use fewer or smaller pages.",
                )

    @property
    def max_len(self) -> int:
        """The most positions one sequence can have."""
        return self.page_size * self.pages_per_seq

    def pages_for(self, positions: int) -> int:
        """The number of pages that cover this many positions; the last may be partial."""
        return -(-positions // self.page_size)


LAG: Final = 2
"""How many steps may be without delivery when another one is dispatched."""


@frozen(kw_only=True)
class Limits:
    """Static widths of everything that is batched, queued or buffered.

    queue: queue entries, at least one per slot. prefill_tokens: tokens in one batch or prefill.
    prefill_seqs: prompts in one prefill. round_tokens: tokens in one decode round. rounds: rounds
    in one call of the loop. stops: stop sequences per request. stop_len: tokens in each.
    outputs: finished outputs held until they are taken.
    """

    queue: int = field(validator=SIZE)
    prefill_tokens: int = field(validator=SIZE)
    prefill_seqs: int = field(validator=SIZE)
    round_tokens: int = field(validator=SIZE)
    rounds: int = field(validator=SIZE)
    stops: int = field(validator=SIZE)
    stop_len: int = field(validator=SIZE)
    outputs: int = field(validator=SIZE)

    def check(self, geometry: Geometry) -> None:
        """Raise InvalidInput unless these limits can serve this geometry."""
        a(Geometry).require("geometry", geometry)
        for name, need, why in (
            ("queue", geometry.slots, "one entry per slot: a round never meets a full queue"),
            ("outputs", geometry.slots, "one output per slot: one round can finish all"),
        ):
            if getattr(self, name) < need:
                raise InvalidInput(
                    f"Limits.{name}",
                    seen=getattr(self, name),
                    allowed=f"at least {need}: {why}",
                    remedy="Raise the limit or use fewer slots.",
                )


def default_limits(geometry: Geometry) -> Limits:
    """Limits that let every slot decode in each round and the longest prompt prefill at once."""
    a(Geometry).require("geometry", geometry)
    return Limits(
        queue=2 * geometry.slots,
        prefill_tokens=max(geometry.max_len, 2 * geometry.slots),
        prefill_seqs=geometry.slots,
        round_tokens=geometry.slots,
        rounds=8,
        stops=2,
        stop_len=4,
        outputs=2 * geometry.slots,
    )
