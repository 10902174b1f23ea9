"""Truncate releases the pages that are left without a cell (docs/actions.md, "Truncate"). With
pages of four cells, cutting six cells to four leaves one page, and to zero leaves none.
"""
from common import check, engine

e = engine(8, 4, 2, 4)
e.reserve(0)
e.allocate([(0, position) for position in range(6)])
e.truncate(0, 5)
check(e.stats().free_pages, 6, "free pages when five cells are left")
e.truncate(0, 4)
check(e.stats().free_pages, 7, "free pages when four cells are left")
e.truncate(0, 0)
check(e.stats().free_pages, 8, "free pages when no cell is left")
