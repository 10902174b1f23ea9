"""Rendering of a view: slots, pages and queue as lines of text, for reports of failures."""

from collections.abc import Iterator

from spec.view import View
from spec.vocabulary import INVALID


def before_and_after(before: View, after: View) -> str:
    """The views before and after the failing step, with `>` before each line that changed."""
    old, new = list(lines(before)), list(lines(after))
    marked = [line if line in old else f">{line[1:]}" for line in new]
    return "\n".join(["before:", *old, "after:", *marked])


def lines(view: View) -> Iterator[str]:
    """The lines of a view: one for each slot in use or with a row, one for each page that is
    counted or named, one for the free pages, and one for a queue that is not empty.
    """
    for slot, used in enumerate(view.used):
        if used or any(page != INVALID for page in view.rows[slot]):
            yield f"  slot {slot:<3} row {_row(view.rows[slot])}{_lengths(view, slot)}"
    for page in range(view.geometry.pages):
        count = view.counts[page] if view.counts is not None else None
        if count or page in view.named:
            shown = "" if count is None else f" count {count}"
            yield f"  page {page:<3}{shown} {_cells(view, page)}"
    if view.counts is not None:
        yield f"  free {view.counts.count(0)} of {view.geometry.pages} pages"
    if view.queue:
        waiting = " ".join(f"{token}@{slot}:{position}" for token, slot, position in view.queue)
        yield f"  queue {waiting}"


def _row(row: tuple[int, ...]) -> str:
    return "[" + " ".join("-" if page == INVALID else str(page) for page in row) + "]"


def _lengths(view: View, slot: int) -> str:
    text = ""
    if view.tokens is not None:
        text += f" tokens {len(view.tokens[slot])}"
    if view.allocated is not None:
        text += f" allocated {view.allocated[slot]}"
    if view.written is not None:
        text += f" written {view.written[slot]}"
    if view.finished is not None and view.finished[slot]:
        text += " finished"
    return text


def _cells(view: View, page: int) -> str:
    """The cells of a page: `slot:position` of each sequence that has written the cell, or `.`."""
    size = view.geometry.page_size
    holders = []
    for offset in range(size):
        names = [
            f"{slot}:{index * size + offset}"
            for slot, row in enumerate(view.rows)
            for index, named in enumerate(row)
            if named == page and view.written and index * size + offset < view.written[slot]
        ]
        holders.append("+".join(names) or ".")
    return "|" + " ".join(holders) + "|"
