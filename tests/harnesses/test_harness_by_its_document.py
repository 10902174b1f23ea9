"""What the harnesses say of an engine beside their documents: hits, refusals, and what is least."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from attrs import evolve

from conformance.harnesses import prefix_caching, requests
from conformance.harnesses.prefix_caching import Broken, Grow, Ledger, Live, Start
from conformance.harnesses.workloads import Call, History
from spec.vocabulary import Geometry, Params, Request, Tokens

SIZE = 4
GEOMETRY = Geometry(pages=8, slots=2, page_size=SIZE, pages_per_seq=4)


class Told:
    """An engine that says what it is told to say. rows: of slots. free: how many are spare."""

    drops = False
    geometry = GEOMETRY

    def __init__(self, answer: tuple[int, int] | None = None) -> None:
        self.answer, self.rows = answer, dict[int, tuple[int, ...]]()

    def start(self, slot: int, tokens: Tokens, count: int) -> tuple[int, int] | None:
        """The answer."""
        del tokens, count
        if self.answer is not None:
            self.rows[slot] = tuple(range(GEOMETRY.pages_for(self.answer[1])))
        return self.answer

    def grow(self, slot: int, tokens: Tokens, count: int) -> int | None:
        """There is no room."""
        del slot, tokens, count
        return None

    def computed(self, slot: int, tokens: Tokens) -> None:
        """Nothing is noted."""

    def end(self, slot: int, tokens: Tokens) -> None:
        """Nothing ends."""

    def row(self, slot: int) -> tuple[int, ...]:
        """The row of a slot."""
        return self.rows.get(slot, ())

    def spare(self) -> Sequence[int]:
        """The pages that no row has."""
        named = {page for row in self.rows.values() for page in row}
        return [page for page in range(GEOMETRY.pages) if page not in named]

    def counts(self) -> None:
        """It keeps none."""


def clause_of(judged: Callable[[], object]) -> str | None:
    """The clause that is broken; None if none is."""
    try:
        judged()
    except Broken as broken:
        return broken.clause
    return None


def of_refusal(ledger: Ledger, op: prefix_caching.Op, room: int) -> str | None:
    """The clause that a refusal breaks, though nothing changed."""
    return clause_of(partial(ledger._judge_refusal, op, ledger._shown(), room))


@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 2 * SIZE + 1])
def test_a_hit_is_of_whole_pages_and_leaves_a_token(length: int) -> None:
    """Of all numbers of tokens, those that are whole pages and fewer than the prompt can be hit."""
    text = tuple(range(length))

    for hit in range(-SIZE, length + SIZE + 1):
        ledger = Ledger(Told((hit, length)), Counter())
        found = clause_of(partial(ledger._start, 0, text, length))

        assert (None if hit in range(0, length, SIZE) else "SHARE") == found


@pytest.mark.parametrize("length", range(1, 17))
def test_a_start_may_be_refused_only_for_lack_of_pages(length: int) -> None:
    """A prompt whose pages are all spare must be served, also if no other page is."""
    for spare in range(GEOMETRY.pages + 1):
        engine = Told()
        ledger = Ledger(engine, Counter())
        engine.rows[1] = tuple(range(spare, GEOMETRY.pages))
        refused = Start(0, tuple(range(length)), length)

        fits = GEOMETRY.pages_for(length) <= spare
        assert ("ATOMIC" if fits else None) == of_refusal(ledger, refused, spare)


@pytest.mark.parametrize("known", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("given", [1, 3, 4, 5, 8])
def test_more_of_a_sequence_may_be_refused_only_for_lack_of_pages(known: int, given: int) -> None:
    """The whole prompt, or one token more than has cells, must be served if its pages are spare."""
    for spare in range(5):
        engine = Told()
        ledger = Ledger(engine, Counter())
        held = GEOMETRY.pages_for(given)
        engine.rows = {0: tuple(range(held)), 1: tuple(range(held, GEOMETRY.pages - spare))}
        ledger.live[0] = Live(tuple(range(known)), given, given)
        needed = GEOMETRY.pages_for(max(known, given + 1)) - held

        fits = needed <= spare
        assert ("ATOMIC" if fits else None) == of_refusal(ledger, Grow(0, 1), spare)


@pytest.mark.parametrize("changed", ["nothing", "rows", "counts", "spare"])
def test_a_refusal_changes_nothing_of_what_is_shown(changed: str) -> None:
    """A refusal is broken by other rows, other counts or another number of spare pages alone."""
    ledger = Ledger(Told(), Counter())
    before = evolve(ledger._shown(), counts=None)
    room = GEOMETRY.pages - (changed == "spare")
    if changed == "rows":
        before = evolve(before, rows=((0, -1, -1, -1), before.rows[1]))
    if changed == "counts":
        before = evolve(before, counts=(0,) * GEOMETRY.pages)
    too_long = Start(0, tuple(range(GEOMETRY.pages * SIZE + 1)), 1)

    found = clause_of(partial(ledger._judge_refusal, too_long, before, room))

    assert {"nothing": None, "spare": "CONS"}.get(changed, "ATOMIC") == found


def one(number: int, *, prompt: int = 1) -> Request:
    """A request of a prompt of this length."""
    return Request(id=number, prompt=(1,) * prompt, params=Params(max_new=1))


@pytest.mark.parametrize("clause", ["CONS", "OUT", "ATOMIC"])
def test_what_is_least_breaks_the_clause_of_the_first(
    monkeypatch: pytest.MonkeyPatch, clause: str
) -> None:
    """A shorter history that breaks another clause is another finding, and is not taken."""
    first: History = (Call((one(0), one(1), one(2))), Call((one(0, prompt=3),)))
    fewest = {"CONS": 3, "OUT": 2, "ATOMIC": 1}

    def broken(_make: Any, history: History, *_: Any, **__: Any) -> Broken:
        count = sum(len(call.requests) for call in history)
        return Broken(clause if count >= fewest[clause] else "RC", "wrong")

    monkeypatch.setattr(requests, "replay", broken)
    never: Any = None  # an engine is never made
    search = requests.Search(never, 0)
    search.least = first, Broken(clause, "wrong")

    while search._smaller():
        pass

    history, last = search.least
    assert clause == last.clause
    assert fewest[clause] == sum(len(call.requests) for call in history)


@pytest.mark.parametrize("clause", ["CONS", "SHARE", "ATOMIC"])
@pytest.mark.parametrize("seed", range(4))
def test_operations_that_are_left_break_the_clause_of_the_first(
    monkeypatch: pytest.MonkeyPatch, clause: str, seed: int
) -> None:
    """The operations that are left break the same clause, and no part of them could be left out."""
    ops = tuple(prefix_caching.draw(random.Random(seed), GEOMETRY))
    needed = {"CONS": ops[3:20:4], "SHARE": ops[-1:], "ATOMIC": (ops[0], ops[-1])}

    def broken(_make: Any, _geometry: Any, fewer: Any, _seen: Any) -> Broken | None:
        there = {id(op) for op in fewer}
        kept = [name for name, some in needed.items() if {id(op) for op in some} <= there]
        found = clause if clause in kept else next(iter(kept), None)
        return None if found is None else Broken(found, "wrong")

    monkeypatch.setattr(prefix_caching, "replay", broken)

    assert needed[clause] == prefix_caching.shrink(lambda _: Told(), GEOMETRY, ops, clause)
