"""The capacity policy: when a shared page is copied, and how many cells are taken ahead."""

from typing import Final, Literal, get_args

from attrs import field, frozen

from spec.vocabulary.geometry import Geometry
from spec.vocabulary.rules import INT32, Rule

Copy = Literal["eager", "lazy"]
COPIES: Final[tuple[Copy, ...]] = get_args(Copy)
COPY: Final = Rule(
    lambda value: type(value) is str and value in COPIES,
    " or ".join(map(repr, COPIES)),
    "Correct the declared policy.",
)


@frozen(kw_only=True)
class Capacity:
    """When an engine takes pages; a profile declares it. It never changes what a sequence reads.

    copy: when a clone copies a partial last page. "eager": as a part of the clone. "lazy": the page
    is shared too, and a sequence that appends in it, while its count is above 1, first takes a
    fresh page and copies it. lookahead: how many cells past the allocated ones a row also covers;
    from `max_len` on, the first allocation takes a full row.
    """

    copy: Copy = field(default="eager", validator=COPY)
    lookahead: int = field(default=0, validator=INT32)

    def row_pages(self, geometry: Geometry, allocated: int) -> int:
        """The pages of the row of a sequence with this many allocated cells.

        A row covers the cells taken ahead too, but none past `max_len`. A sequence without
        allocated cells has no page: nothing is taken ahead for it.
        """
        ahead = self.lookahead if allocated else 0
        return geometry.pages_for(min(allocated + ahead, geometry.max_len))

    def shared_pages(self, geometry: Geometry, written: int) -> int:
        """The pages that a clone shares with a parent of this many written cells."""
        return geometry.pages_for(written) if self.copy == "lazy" else written // geometry.page_size


STANDARD: Final = Capacity()
"""A clone copies at once, and nothing is taken ahead."""
