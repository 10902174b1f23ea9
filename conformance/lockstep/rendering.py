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
    counted, named or in the index, one for the free pages, and one for a queue that is not empty.
    """
    named = {page for row in view.rows for page in row}
    for slot, used in enumerate(view.used):
        if used or any(page != INVALID for page in view.rows[slot]):
            yield f"  slot {slot:<3} row {_row(view.rows[slot])}{_lengths(view, slot)}"
    for page in range(view.geometry.pages):
        count = view.counts[page] if view.counts is not None else None
        if count or page in named or _key(view, page):
            shown = "" if count is None else f" count {count}"
            yield f"  page {page:<3}{shown} {_cells(view, page)}{_key(view, page)}"
    if view.counts is not None:
        idle = sum(not count and _key(view, page) != "" for page, count in enumerate(view.counts))
        beside = f", {idle} idle" if idle else ""
        yield f"  free {view.counts.count(0) - idle} of {view.geometry.pages} pages{beside}"
    if view.queue:
        waiting = " ".join(f"{token}@{slot}:{position}" for token, slot, position in view.queue)
        yield f"  queue {waiting}"


def _key(view: View, page: int) -> str:
    """The key of a page of the index: its tokens, behind the context if that is not 0."""
    entry = view.indexed[page] if view.indexed else ()
    context, tokens = "".join(f"{one}:" for one in entry[:1] if one), entry[1:]
    return f" key {context}{','.join(map(str, tokens))}" if entry else ""


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
