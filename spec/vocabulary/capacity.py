"""The capacity policy: when a page is copied, taken before its use, or given up for another one."""

from typing import Final, Literal, get_args

from attrs import field, frozen

from spec.vocabulary.errors import InvalidInput
from spec.vocabulary.geometry import Geometry
from spec.vocabulary.rules import INT32, Rule

Copy = Literal["eager", "lazy"]
COPIES: Final[tuple[Copy, ...]] = get_args(Copy)
Reservation = Literal["none", "request"]
RESERVATIONS: Final[tuple[Reservation, ...]] = get_args(Reservation)


def _one_of(words: tuple[str, ...]) -> Rule:
    return Rule(
        lambda value: type(value) is str and value in words,
        " or ".join(map(repr, words)),
        "Correct the declared policy.",
    )


COPY: Final = _one_of(COPIES)
RESERVATION: Final = _one_of(RESERVATIONS)


@frozen(kw_only=True)
class Capacity:
    """When an engine takes pages; a profile declares it. It never changes what a sequence reads.

    copy: when a clone copies a partial last page. "eager": as a part of the clone. "lazy": the page
    is shared too, and a sequence that appends in it, while its count is above 1, first takes a
    fresh page and copies it. lookahead: how many cells past the allocated ones a row also covers;
    from `max_len` on, the first allocation takes a full row. reserve: which cells a row covers from
    the assignment of a prompt on. "none": none. "request": those of the prompt and its `max_new`
    tokens, until the sequence ends; a clone has as many. ring: how many pages a row names at most,
    for attention with a window; 0: as many as it has entries. An allocation that needs more first
    releases those at the front, which no query can see any more. (A paged ring keeps the page of a
    position in entry `position // page_size % ring`.)
    """

    copy: Copy = field(default="eager", validator=COPY)
    lookahead: int = field(default=0, validator=INT32)
    reserve: Reservation = field(default="none", validator=RESERVATION)
    ring: int = field(default=0, validator=INT32)

    def check(self, geometry: Geometry) -> None:
        """Raise InvalidInput unless a ring has room for a window and the next cell.

        Where a ring is shorter than a row, nothing is taken ahead or reserved.
        """
        if not self.ring or self.ring >= geometry.pages_per_seq:
            return
        least = geometry.pages_per_seq
        if geometry.window is not None:
            least = min(least, geometry.pages_for(geometry.window - 1) + 1)
        if self.ring < least:
            raise InvalidInput(
                "Capacity.ring",
                seen=self.ring,
                allowed=f"0, or {least} and more: what a query sees, and the page of the next cell",
                remedy="Lengthen the ring, or give the geometry a window that fits in it.",
            )
        for name, usual in (("lookahead", 0), ("reserve", "none")):
            if getattr(self, name) != usual:
                raise InvalidInput(
                    f"Capacity.{name}",
                    seen=getattr(self, name),
                    allowed=f"{usual!r} beside a ring that is shorter than a row",
                    remedy="A ring takes its pages as they are needed.",
                )

    def longest_row(self, geometry: Geometry) -> int:
        """How many pages a row names at most."""
        return min(geometry.pages_per_seq, self.ring or geometry.pages_per_seq)

    def ring_start(self, row: int) -> int:
        """The first entry that a row of this many entries still has, if it is a ring."""
        return max(0, row - self.ring) if self.ring else 0

    def reserved_cells(self, prompt_len: int, max_new: int) -> int:
        """The cells that are reserved for a prompt of this length and its `max_new` tokens."""
        return prompt_len + max_new if self.reserve == "request" else 0

    def row_pages(self, geometry: Geometry, allocated: int, reserved: int) -> int:
        """The pages of the row of a sequence with this many cells allocated, and reserved.

        A row covers the reserved cells, and the allocated ones with those taken ahead, but none
        past `max_len`. Nothing is taken ahead for a sequence without allocated cells.
        """
        ahead = self.lookahead if allocated else 0
        return geometry.pages_for(min(max(allocated + ahead, reserved), geometry.max_len))

    def shared_pages(self, geometry: Geometry, written: int) -> int:
        """The pages that a clone shares with a parent of this many written cells."""
        return geometry.pages_for(written) if self.copy == "lazy" else written // geometry.page_size


STANDARD: Final = Capacity()
"""A clone copies at once, nothing is taken ahead, and nothing is reserved."""
