"""The capacity policy: when a shared page is copied, and which pages are taken before their use."""

from typing import Final, Literal, get_args

from attrs import field, frozen

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
    tokens, until the sequence ends; a clone has as many.
    """

    copy: Copy = field(default="eager", validator=COPY)
    lookahead: int = field(default=0, validator=INT32)
    reserve: Reservation = field(default="none", validator=RESERVATION)

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
