"""The rendering of a view is read back: it shows what the view does, and marks what changed."""

import re
from collections import Counter
from random import Random
from typing import Any, Final

import pytest
from spec_engine import SpecEngine, small
from view_changes import HIDDEN, changed, hiding

from conformance.lockstep.rendering import before_and_after, lines
from spec.machines import actions as act
from spec.view import View
from spec.vocabulary import INVALID, CleanupMode, Params, Request, default_limits

SIZES: Final = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
PARAMS: Final = Params(max_new=3)
HISTORY: Final = (
    act.Prefill((Request(id=1, prompt=(1, 2, 3), params=PARAMS, n_generations=2),)),
    act.Enqueue(0, 5),
    act.Round(),
    act.Free(0),
    act.Reserve(0),
)
SLOT: Final = re.compile(
    r"  slot (?P<slot>\d+) +row \[(?P<row>[^]]*)\](?: tokens (?P<tokens>\d+))?"
    r"(?: allocated (?P<allocated>-?\d+))?(?: written (?P<written>-?\d+))?(?P<finished> finished)?"
)
PAGE: Final = re.compile(
    r"  page (?P<page>\d+) +(?:count (?P<count>-?\d+) )?\|(?P<cells>[^|]*)\|(?: key (?P<key>\S*))?"
)


def seen_views(seed: int) -> list[View]:
    """Views of the specification, some with wrong entries and hidden fields."""
    engine, rng = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.NONE), Random(seed)
    views = [engine.observe()]
    for action in HISTORY:
        engine.apply(action)
        view = engine.observe()
        for _ in range(rng.randrange(4)):
            view = changed(view, rng)
        hidden = [name for name in HIDDEN if rng.randrange(5) == 0]
        views.append(hiding(view, *hidden))
    return views


def entry(view: View, name: str, slot: int) -> Any:
    """An entry of a field, or None if it is hidden."""
    values = getattr(view, name)
    return None if values is None else values[slot]


def holders(view: View, page: int) -> list[str]:
    """The written cells of a page, by the positions of all slots that name it."""
    size, names = view.geometry.page_size, dict[int, list[str]]()
    for slot, row in enumerate(view.rows):
        for position in range(min(entry(view, "written", slot) or 0, len(row) * size)):
            if row[position // size] == page:
                names.setdefault(position % size, []).append(f"{slot}:{position}")
    return ["+".join(names.get(offset, ["."])) for offset in range(size)]


def of_slots(view: View) -> dict[int, dict[str, Any]]:
    """What must be told of each slot that is in use or has a row."""
    return {
        slot: {
            "row": " ".join("-" if page == INVALID else str(page) for page in row),
            "tokens": None if view.tokens is None else str(len(view.tokens[slot])),
            "allocated": None if view.allocated is None else str(view.allocated[slot]),
            "written": None if view.written is None else str(view.written[slot]),
            "finished": " finished" if entry(view, "finished", slot) else None,
        }
        for slot, row in enumerate(view.rows)
        if view.used[slot] or {*row} - {INVALID}
    }


def of_pages(view: View) -> dict[int, dict[str, Any]]:
    """What must be told of each page that is counted, in the index, or that a row names."""
    in_rows = Counter(page for row in view.rows for page in row)
    return {
        page: {
            "count": None if view.counts is None else str(view.counts[page]),
            "cells": " ".join(holders(view, page)),
            "key": key(view, page),
        }
        for page in range(view.geometry.pages)
        if in_rows[page] or entry(view, "counts", page) or key(view, page) is not None
    }


def key(view: View, page: int) -> str | None:
    """What must be told of the key of a page in the index."""
    held = entry(view, "indexed", page)
    if not held:
        return None
    context, *tokens = held
    return ",".join(map(str, tokens)) if context == 0 else f"{context}:{','.join(map(str, tokens))}"


def pages_free(view: View, counts: tuple[int, ...]) -> str:
    """What must be told of the pages that no row names."""
    idle = sum(count == 0 and key(view, page) is not None for page, count in enumerate(counts))
    return f"{counts.count(0) - idle} of 6 pages" + (f", {idle} idle" if idle else "")


def read(found: list[re.Match[str]], name: str) -> dict[int, dict[str, Any]]:
    """What was told, by slot or page."""
    told = [one.groupdict() for one in found]
    assert len({one[name] for one in told}) == len(told)
    return {int(one.pop(name)): one for one in told}


@pytest.mark.parametrize("seed", range(40))
def test_a_view_is_told_whole_and_once(seed: int) -> None:
    """Every slot, page, free page and queue entry that the view shows stands in its lines."""
    for view in seen_views(seed):
        told = list(lines(view))

        slots = [found for line in told if (found := SLOT.fullmatch(line))]
        pages = [found for line in told if (found := PAGE.fullmatch(line))]
        assert of_slots(view) == read(slots, "slot")
        assert of_pages(view) == read(pages, "page")
        rest = [line for line in told if not SLOT.fullmatch(line) and not PAGE.fullmatch(line)]
        free = [] if view.counts is None else [f"  free {pages_free(view, view.counts)}"]
        waiting = [f"{token}@{slot}:{position}" for token, slot, position in view.queue or ()]
        assert free + [" ".join(["  queue", *waiting])] * bool(waiting) == rest


@pytest.mark.parametrize("seed", range(10))
def test_what_is_marked_was_not_told_before(seed: int) -> None:
    """Both views are told, and of the later one the lines that the earlier one lacks are marked."""
    views = seen_views(seed)
    for before, after in zip(views, [*views[1:], views[0]], strict=True):
        head, *told = before_and_after(before, after).splitlines()
        old, new = told[: told.index("after:")], told[told.index("after:") + 1 :]

        assert ("before:", [*lines(before)]) == (head, old)
        assert [*lines(after)] == [line.replace(">", " ", 1) for line in new]
        assert [line not in old for line in lines(after)] == [line[0] == ">" for line in new]


def test_the_views_have_what_is_rare() -> None:
    """Among the views are named pages that nobody counts, shared cells and holes in rows."""
    views = [view for seed in range(40) for view in seen_views(seed)]

    assert any(of["count"] == "0" for view in views for of in of_pages(view).values())
    assert any("+" in of["cells"] for view in views for of in of_pages(view).values())
    assert any("- " in of["row"] for view in views for of in of_slots(view).values())
    assert any(view.finished and any(view.finished) for view in views)
    assert any(view.queue for view in views)
