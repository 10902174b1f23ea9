"""Contents of the pool: each cell holds the tag of what was written there, or POISON.

A tag is the chain of tokens up to and including the one written. So it determines the position, and
it never names the sequence that wrote it: two sequences with one prefix may share a page. A cell
that dies becomes POISON. Source: docs/sources.md, "Contents as state".
"""

from collections.abc import Iterable
from typing import Final

from spec.vocabulary import Geometry, Tokens

Page = tuple[Tokens, ...]
Cells = tuple[Page, ...]
"""`cells[page][offset]` is a tag, or POISON."""

POISON: Final[Tokens] = ()
"""The content of a dead cell; no prefix has this tag."""


def blank(geometry: Geometry) -> Cells:
    """The initial pool: nothing in it may be read."""
    return (_dead_page(geometry.page_size),) * geometry.pages


def store(cells: Cells, page_size: int, writes: Iterable[tuple[int, Tokens]]) -> Cells:
    """Write tags at destinations (`page * page_size + offset`)."""
    changed: dict[int, list[Tokens]] = {}
    for destination, tag in writes:
        page, offset = divmod(destination, page_size)
        changed.setdefault(page, list(cells[page]))[offset] = tag
    return _replace(cells, {page: tuple(content) for page, content in changed.items()})


def copy_page(cells: Cells, source: int, destination: int) -> Cells:
    """Copy one page whole; dead cells stay dead."""
    return _replace(cells, {destination: cells[source]})


def kill(cells: Cells, pages: Iterable[int]) -> Cells:
    """Replace every cell of these pages by POISON."""
    return _replace(cells, {page: _dead_page(len(cells[page])) for page in pages})


def _dead_page(page_size: int) -> Page:
    return (POISON,) * page_size


def _replace(cells: Cells, changed: dict[int, Page]) -> Cells:
    if not changed:
        return cells
    pages = list(cells)
    for page, content in changed.items():
        pages[page] = content
    return tuple(pages)
