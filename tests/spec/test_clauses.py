"""The clauses: each has views that violate it and no earlier one, and a message that says how."""

from typing import Any

import pytest
from attrs import evolve
from spec_tools import geometry

from spec import clauses, model, pool
from spec.cells import POISON
from spec.clauses import CLAUSES, OTHER_CLAUSES, STATE_CLAUSES, STEP_CLAUSES
from spec.fields import VIEWED
from spec.view import View
from spec.vocabulary import INVALID, Capacity, FinishReason

NONE = (INVALID, INVALID)
TOKENS = (5, 6, 7)
GOOD = View(
    geometry=geometry(pages=4, page_size=2, slots=2, pages_per_seq=2),
    counts=(1, 1, 0, 0),
    used=(True, False),
    rows=((0, 1), NONE),
    allocated=(3, 0),
    written=(3, 0),
    first_page=(0, 0),
    tokens=((*TOKENS, 8), ()),
    finished=(False, False),
    queue=((8, 0, 3),),
    outputs=((4, 0, (1, 2), FinishReason.LIMIT),),
    cells=((5,), (5, 6), TOKENS, *[POISON] * 5),
)
"""Slot 0 has written three of its four tokens in pages 0 and 1, and the fourth is queued."""
ALONE = evolve(GOOD, queue=())
TWINS = evolve(
    ALONE,
    used=(True, True),
    rows=((0, 1), (0, 2)),
    counts=(2, 1, 1, 0),
    allocated=(3, 3),
    written=(3, 3),
    tokens=(TOKENS, TOKENS),
    cells=((5,), (5, 6), TOKENS, POISON, TOKENS, *[POISON] * 3),
)
"""Two slots with the same three tokens share page 0, which is full."""
LAZY_TWINS = evolve(
    ALONE,
    used=(True, True),
    rows=((0, INVALID), (0, INVALID)),
    counts=(2, 0, 0, 0),
    allocated=(2, 1),
    written=(2, 1),
    tokens=((5, 6), (5,)),
    cells=((5,), (5, 6), *[POISON] * 6),
    capacity=Capacity(copy="lazy"),
)
"""Two slots share the page in which one of them has written on from its middle."""
WINDOW = evolve(
    GOOD,
    geometry=evolve(GOOD.geometry, window=2),
    rows=((INVALID, 1), NONE),
    counts=(0, 1, 0, 0),
    first_page=(1, 0),
    cells=(POISON, POISON, TOKENS, *[POISON] * 5),
)
"""The query at position 3 sees positions 2 and 3, and page 0 is released."""

PENDING = evolve(TWINS, tokens=((*TOKENS, 8),) * 2, queue=((8, 0, 3), (8, 1, 3)))
"""The same with a fourth token each, which is queued."""
WAITS = evolve(GOOD, tokens=(TOKENS, ()), written=(2, 0), queue=((7, 0, 2),))
TWO_QUEUED = evolve(GOOD, written=(2, 0), queue=((7, 0, 2), (8, 0, 3)))
SLIDING = evolve(TWINS, geometry=evolve(TWINS.geometry, window=1), first_page=(0, 0))
"""The same as TWINS, where a query sees itself alone."""
INDEXED = evolve(
    GOOD,
    indexed=((3, 5, 6), (), (3, 5, 6, 1, 2), ()),
    contexts=(3, 0),
    cells=((5,), (5, 6), TOKENS, POISON, (5, 6, 1), (5, 6, 1, 2), POISON, POISON),
)
"""Page 0 is in the index, under the context of slot 0; page 2 extends it, and is idle."""
DRAFTED = evolve(
    ALONE,
    allocated=(4, 0),
    tokens=((5, 6), ()),
    committed=(2, 0),
    proposed=((7, 8), ()),
    queue=((8, 0, 3),),
)
"""Slot 0 has two committed cells, one written draft and one that is queued."""
CUT = evolve(
    DRAFTED,
    allocated=(2, 0),
    written=(2, 0),
    rows=((0, INVALID), NONE),
    counts=(1, 0, 0, 0),
    proposed=((), ()),
    queue=(),
)
"""The same after a truncation to what is committed."""

BOTH_QUEUED = evolve(PENDING, written=(2, 3), queue=((8, 1, 3), (7, 0, 2), (8, 0, 3)))
"""Slot 0 has two queued tokens, behind one of slot 1."""
HALF_CUT = evolve(
    DRAFTED, allocated=(3, 0), written=(2, 0), proposed=((7,), ()), queue=((7, 0, 2),)
)
"""DRAFTED, with no written draft, after a truncation to the first of two that are queued."""
NOTHING = evolve(
    GOOD,
    geometry=SLIDING.geometry,
    counts=(0,) * 4,
    used=(False, False),
    rows=(NONE, NONE),
    allocated=(0, 0),
    written=(0, 0),
    tokens=((), ()),
    queue=(),
    cells=(POISON,) * 8,
)
"""No slot is used."""
BARE = evolve(NOTHING, used=(True, False), rows=((0, INVALID), NONE), counts=(1, 0, 0, 0),
              allocated=(2, 0))  # fmt: skip
"""Slot 0 has two cells and no prompt."""
BARE_BESIDE = evolve(
    PENDING,
    rows=((0, 1), (2, INVALID)),
    counts=(1, 1, 1, 0),
    allocated=(3, 2),
    written=(3, 0),
    tokens=((*TOKENS, 8), ()),
    queue=((8, 0, 3),),
)
"""Slot 1 has two cells and no prompt, beside a slot with a queued token."""
SLID = evolve(SLIDING, first_page=(1, 1), rows=((INVALID, 1), (INVALID, 2)), counts=(0, 1, 1, 0))
"""SLIDING after both slots have released their first page."""
ANOTHER = evolve(ALONE, tokens=((9, 9, 9), ()), cells=((9,), (9, 9), (9, 9, 9), *[POISON] * 5))
"""ALONE with another text, of the same length."""

FLYING = evolve(
    GOOD,
    allocated=(4, 0),
    committed=(2, 0),
    proposed=((), ()),
    queue=(),
    flights=((True, ((0, 2, 1, False),), (1,)), (False, ((0, 3, 1, True),), ())),
    held=(2, 2, 0, 1),
)
"""Two steps in flight have a position of slot 0 each; the older one keeps slot 1 and page 3."""
PAGE_KEPT = evolve(FLYING, flights=((True, ((0, 2, 1, False),), ()), *(FLYING.flights or ())[1:]))
"""The same where no step keeps slot 1, but one still names page 3."""
OLDEST_DELIVERED = evolve(
    FLYING, committed=(3, 0), flights=(FLYING.flights or ())[1:], held=(1, 1, 0, 0)
)
DRAWN = evolve(
    ALONE,
    tokens=(TOKENS, ()),
    committed=(2, 0),
    proposed=((8,), ()),
    flights=((True, ((0, 2, 1, True),), ()),),
    held=(1, 1, 0, 0),
)
"""A step that has retired has drawn a token after the three of slot 0."""
DELIVERED = evolve(GOOD, committed=(3, 0), proposed=((), ()), flights=(), held=(0,) * 4)
"""DRAWN after its delivery: the token is known and queued."""
NEXT_OPEN = evolve(
    DRAWN,
    allocated=(4, 0),
    flights=(*(DRAWN.flights or ()), (False, ((0, 3, 1, True),), ())),
    held=(2, 2, 0, 0),
)
"""DRAWN, with a step in flight that has the position of the token."""
NEXT_ALONE = evolve(
    DELIVERED,
    allocated=(4, 0),
    queue=(),
    flights=(NEXT_OPEN.flights or ())[1:],
    held=(1, 1, 0, 0),
)
"""NEXT_OPEN after the delivery of the first step; DELIVERED after a dispatch."""
DRAWN_TWICE = evolve(
    NEXT_OPEN,
    written=(4, 0),
    proposed=((8, 9), ()),
    flights=tuple((True, parts, kept) for _, parts, kept in NEXT_OPEN.flights or ()),
    cells=((5,), (5, 6), TOKENS, (*TOKENS, 8), *[POISON] * 4),
)
"""NEXT_OPEN after its second step has retired too."""
STOPPED = evolve(
    DELIVERED,
    queue=(),
    finished=(True, False),
    flights=((True, (), (0,)),),
    held=(1, 1, 0, 0),
)
"""DRAWN_TWICE after a delivery at which its sequence turns out to have ended."""
HELD_IDLE = evolve(
    INDEXED,
    used=(True, True),
    committed=(3, 0),
    tokens=((*TOKENS, 8), (5, 6, 1, 2, 9)),
    proposed=((), ()),
    contexts=(3, 3),
    flights=((False, (), ()),),
    held=(0, 0, 1, 0),
)
"""INDEXED, where a step in flight names page 2, which is idle; slot 1 can begin with it."""

BAD_STATES = (
    ("CONS", evolve(GOOD, counts=(1, 1, 1, 0)), "counts[2] is 1, should be 0: no row names it"),
    ("CONS", evolve(GOOD, counts=(1, 1, 0, -1)), "counts[3] is -1, should be 0: no row names it"),
    ("UAF", evolve(GOOD, counts=(1, 0, 0, 0)), "page 1, whose count is 0 and should be 1 or more"),
    (
        "UAF",
        evolve(GOOD, rows=((0, 9), NONE), counts=(1, 0, 0, 0)),
        "a row names page 9, should be 0 to 3",
    ),
    ("RC", evolve(GOOD, counts=(2, 1, 0, 0)), "counts[0] is 2, should be 1: that many row entries"),
    ("RC", evolve(GOOD, counts=(1, -1, 0, 0)), "counts[1] is -1, should be 1"),
    (
        "ROW",
        evolve(GOOD, rows=((0, INVALID), NONE), counts=(1, 0, 0, 0)),
        "row 0 is [0, -], should have 2 pages",
    ),
    (
        "ROW",
        evolve(ALONE, allocated=(2, 0), written=(2, 0), tokens=((5, 6), ())),
        "row 0 is [0, 1], should name nothing after entry 1",
    ),
    (
        "ROW",
        evolve(GOOD, rows=((0, 1), (2, INVALID))),
        "row 1 is [2, -], should name nothing after entry 0",
    ),
    (
        "ROW",
        evolve(GOOD, rows=((0, 0), NONE), counts=(2, 0, 0, 0)),
        "row 0 is [0, 0], should name no page twice",
    ),
    (
        "LEN",
        evolve(ALONE, allocated=(4, 0), written=(4, 0), tokens=(TOKENS, ())),
        "slot 0: written 4, allocated 4, tokens 3; should be 0 <= written <= allocated <= 4",
    ),
    ("LEN", evolve(GOOD, allocated=(4, 0), written=(5, 0)), "slot 0: written 5, allocated 4"),
    ("LEN", evolve(GOOD, tokens=((*TOKENS, 8), (1,))), "tokens 1; should be 0, 0, 0"),
    (
        "LEN",
        evolve(DRAFTED, committed=(3, 0)),
        "committed 3, written 3, tokens 2; should be 0 <= committed <= written and committed <= ",
    ),
    ("LEN", evolve(DRAFTED, written=(1, 0)), "committed 2, written 1, tokens 2; should be"),
    (
        "SHARE",
        evolve(TWINS, rows=((0, 1), (0, 1)), counts=(2, 2, 0, 0)),
        "page 1 has 2 names, should have 1: slot 0 can write it",
    ),
    (
        "SHARE",
        evolve(
            TWINS,
            rows=((0, INVALID),) * 2,
            counts=(2, 0, 0, 0),
            allocated=(2, 2),
            written=(2, 2),
            tokens=((5,), (5,)),
            committed=(1, 1),
            proposed=((6,), (6,)),
            cells=None,
        ),
        "page 0 has 2 names, should have 1: slot 0 can write it",
    ),
    (
        "ROW",
        evolve(WINDOW, first_page=(0, 0)),
        "row 0 is [-, 1], should have 2 pages",
    ),
    (
        "ROW",
        evolve(WINDOW, rows=((0, 1), NONE), counts=(1, 1, 0, 0)),
        "row 0 is [0, 1], should name nothing before entry 1",
    ),
    (
        "WIN",
        evolve(WINDOW, geometry=evolve(WINDOW.geometry, window=3)),
        "slot 0 has released 1 pages, should be 0 at most: a query at position 3 sees position 1",
    ),
    ("WIN", evolve(WINDOW, geometry=GOOD.geometry), "a query at position 3 sees position 0"),
    (
        "PC",
        evolve(INDEXED, cells=((5,), (5, 6), TOKENS, POISON, (5, 6, 1), *[POISON] * 3)),
        "page 2 offset 1 holds (), should hold (5, 6, 1, 2): its key",
    ),
    (
        "PC",
        evolve(INDEXED, indexed=((3, 5, 6), (), (3, 5, 6), ())),
        "the key of page 2 is (3, 5, 6), should not be: page 0 has it",
    ),
    (
        "PC",
        evolve(INDEXED, indexed=((3, 5, 6), (), (3, 5, 6, 1), ())),
        "page 2 has 3 tokens in the index, should have whole pages",
    ),
    ("PC", evolve(INDEXED, contexts=(4, 0)), "page 0 of key (3, 5, 6), should be (4, 5, 6)"),
    (
        "CHAIN",
        evolve(INDEXED, indexed=((), (), (3, 5, 6, 1, 2), ())),
        "the index has page 2 of key (3, 5, 6, 1, 2), should have (3, 5, 6) too",
    ),
    (
        "CONTENT",
        evolve(WINDOW, cells=(*[POISON] * 3, TOKENS, *[POISON] * 4)),
        "slot 0 position 2 holds (), should hold (5, 6, 7)",
    ),
    (
        "CONTENT",
        evolve(GOOD, cells=((5,), (5, 9), TOKENS, *[POISON] * 5)),
        "slot 0 position 1 holds (5, 9), should hold (5, 6)",
    ),
    (
        "READ",
        evolve(GOOD, tokens=None, cells=((5,), POISON, TOKENS, *[POISON] * 5)),
        "slot 0 position 1 is POISON, should be what was written there",
    ),
    (
        "Q",
        evolve(GOOD, queue=((9, 1, 0),)),
        "token 9 is queued for slot 1 position 0, should not be: the slot is not decoding",
    ),
    ("Q", evolve(GOOD, queue=((9, 7, 0),)), "slot 7 position 0, should not be"),
    ("Q", evolve(GOOD, finished=(True, False)), "slot 0 position 3, should not be"),
    ("Q", evolve(GOOD, queue=((9, 0, 3),)), "should be one of its tokens (5, 6, 7, 8)"),
    ("Q", evolve(GOOD, queue=((8, 0, 4),)), "should be one of its tokens (5, 6, 7, 8)"),
    ("Q", evolve(GOOD, queue=((7, 0, 2),)), "position 2, should be 3 or later: it is written"),
    ("Q", evolve(DRAFTED, queue=((7, 0, 2),)), "position 2, should be 3 or later: it is written"),
    ("Q", evolve(GOOD, queue=((8, 0, 3),) * 2), "position 3, should be 4: out of order or again"),
    (
        "OUT",
        evolve(GOOD, outputs=((4, 0, (1,), FinishReason.STOP),) * 2),
        "request 4 choice 0 has 2 outputs, should be 1",
    ),
    (
        "OUT",
        evolve(GOOD, outputs=((4, 0, (), FinishReason.STOP),)),
        "request 4 choice 0 finished with no token, should have 1 or more",
    ),
    (
        "SNAP",
        evolve(
            FLYING, flights=((False, ((0, 2, 1, False),), (1,)), (True, ((0, 3, 1, True),), ()))
        ),
        "the steps in flight have retired: [False, True], should be in order of dispatch",
    ),
    (
        "SNAP",
        evolve(FLYING, flights=((True, ((0, 2, 1, False), (0, 2, 1, False)), (1,)),)),
        "a step in flight has slot 0 from position 2, should be 3",
    ),
    (
        "SNAP",
        evolve(FLYING, flights=(*(FLYING.flights or ())[:1], (False, ((0, 4, 1, True),), ()))),
        "a step in flight has slot 0 from position 4, should be 3",
    ),
    ("SNAP", evolve(FLYING, committed=(1, 0)), "slot 0 from position 2, should be 1"),
    ("SNAP", evolve(FLYING, flights=(FLYING.flights or ())[:1]), "allocated[0] is 4, should be 3"),
    (
        "SNAP",
        evolve(FLYING, flights=tuple((False, *step[1:]) for step in FLYING.flights or ())),
        "written[0] is 3, should be 2: that of its steps in flight",
    ),
    ("HELD", evolve(FLYING, held=(1, 0, 0, 1)), "held[1] is 0, should be 1 or more: a step in"),
    (
        "Q",
        evolve(NEXT_ALONE, queue=((8, 0, 3),)),
        "token 8 is queued for slot 0 position 3, should not be: a step in flight has it",
    ),
    (
        "SETTLED",
        evolve(FLYING, committed=(3, 0)),
        "slot 0 has 3 committed cells, should have 2: the step that writes the next one is not del",
    ),
    (
        "SETTLED",
        evolve(
            FLYING,
            contexts=(0, 0),
            indexed=((0, 5, 6), (0, *TOKENS, 8), (), ()),
            cells=((5,), (5, 6), TOKENS, (*TOKENS, 8), *[POISON] * 4),
        ),
        "page 1 is in the index, should not be: slot 0 names it, and has 2 committed cells",
    ),
    (
        "FENCE",
        evolve(FLYING, used=(True, True)),
        "slot 1 is in use, should be held for a sequence that has ended: step 0 in flight was disp",
    ),
    ("FENCE", evolve(STOPPED, finished=(False, False)), "slot 0 is in use, should be held for a"),
)

BAD_STEPS = (
    (
        "WX",
        evolve(TWINS, written=(2, 3)),
        evolve(TWINS, rows=((0, 1), (0, 1)), counts=(2, 2, 0, 0)),
        "page 1, written by slot 0, has 2 names, should have 1",
    ),
    (
        "WX",
        evolve(LAZY_TWINS, written=(1, 1), allocated=(1, 1)),
        LAZY_TWINS,
        "page 0, written by slot 0, has 2 names, should have 1",
    ),
    (
        "WX",
        evolve(INDEXED, written=(1, 0)),
        evolve(INDEXED, cells=((5,), (5, 7), *(INDEXED.cells or ())[2:])),
        "page 0, in the index, holds ((5,), (5, 7)), should hold ((5,), (5, 6)): slot 0 wrote it",
    ),
    (
        "EVICT",
        INDEXED,
        evolve(INDEXED, indexed=((), (), (3, 5, 6, 1, 2), ())),
        "page 0 of key (3, 5, 6) has left the index, should be in it: a row names it",
    ),
    (
        "FRAME",
        TWINS,
        evolve(TWINS, cells=((5,), (5, 6), TOKENS, POISON, (1, 2, 3), *[POISON] * 3)),
        "slot 1 position 2 holds (1, 2, 3), should hold (5, 6, 7): the slot was not acted on",
    ),
    (
        "Q",
        PENDING,
        evolve(PENDING, queue=((8, 1, 3), (8, 0, 3))),
        "should begin with ((8, 0, 3), (8, 1, 3)): that was queued before",
    ),
    ("Q", GOOD, evolve(PENDING, queue=GOOD.queue), "should have (8, 1, 3): the token is new"),
    ("Q", WAITS, evolve(WAITS, tokens=GOOD.tokens), "should have (8, 0, 3): the token is new"),
    ("Q", PENDING, ALONE, "should have (8, 0, 3): the token is not written"),
    ("Q", TWO_QUEUED, evolve(TWO_QUEUED, queue=((7, 0, 2),)), "should have (8, 0, 3)"),
    ("Q", BOTH_QUEUED, evolve(BOTH_QUEUED, queue=((8, 1, 3), (8, 0, 3))), "should have (7, 0, 2)"),
    (
        "OUT",
        evolve(GOOD, outputs=((4, 0, (1,), FinishReason.STOP), (5, 0, (1,), FinishReason.STOP))),
        evolve(GOOD, outputs=((5, 0, (1,), FinishReason.STOP),)),
        "should begin with ((4, 0, (1,)",
    ),
    (
        "OUT",
        evolve(GOOD, outputs=((4, 0, (1,), FinishReason.STOP), (5, 0, (1,), FinishReason.STOP))),
        evolve(GOOD, outputs=((4, 0, (2,), FinishReason.STOP), (5, 0, (1,), FinishReason.STOP))),
        "should begin with ((4, 0, (1,)",
    ),
    (
        "OUT",
        evolve(GOOD, outputs=((4, 0, (1,), FinishReason.STOP),)),
        evolve(GOOD, outputs=((4, 0, (2,), FinishReason.STOP),)),
        "should begin with ((4, 0, (1,)",
    ),
    (
        "WIN",
        SLIDING,
        evolve(SLIDING, first_page=(1, 1), rows=((INVALID, 1), (INVALID, 2)), counts=(0, 1, 1, 0)),
        "slot 1 has released 1 pages, should be 0: slot 0 released in this step",
    ),
    (
        "RB",
        DRAFTED,
        evolve(CUT, proposed=((8, 9), ())),
        "slot 0, cut to 2 cells, has proposed tokens (8, 9), should have ()",
    ),
    ("RB", evolve(DRAFTED, proposed=((8, 9), ())), evolve(DRAFTED, proposed=((8,), ())), "(8, 9)"),
    ("RB", DRAFTED, evolve(CUT, written=(1, 0)), "has 1 written cells, should have 2"),
    ("RB", DRAFTED, evolve(CUT, committed=(1, 0)), "has 1 committed cells, should have 2"),
    ("RB", DRAFTED, evolve(CUT, queue=((9, 0, 3),)), "has the queue ((9, 0, 3),) beside it"),
    ("RB", evolve(DRAFTED, queue=((9, 1, 3),)), CUT, "should have ((9, 1, 3),)"),
    (
        "RB",
        DRAFTED,
        evolve(DRAFTED, tokens=(TOKENS, ()), committed=(3, 0), proposed=((), ()), queue=()),
        "slot 0 has (5, 6, 7), known or proposed, should have (5, 6, 7, 8)",
    ),
    ("Q", DRAWN, evolve(DELIVERED, queue=()), "should have (8, 0, 3): the token is new"),
    (
        "Q",
        DELIVERED,
        evolve(NEXT_ALONE, flights=((False, ((0, 4, 1, True),), ()),)),
        "should have (8, 0, 3): the token is not written",
    ),
    (
        "RB",
        DRAWN,
        evolve(DELIVERED, tokens=((*TOKENS, 9), ()), queue=((9, 0, 3),)),
        "slot 0 has (5, 6, 7, 9), known or proposed, should have (5, 6, 7, 8)",
    ),
    (
        "RB",
        DRAWN_TWICE,
        evolve(STOPPED, finished=(False, False), queue=((8, 0, 3),)),
        "slot 0 has (5, 6, 7, 8), known or proposed, should have (5, 6, 7, 8, 9)",
    ),
    (
        "SNAP",
        FLYING,
        evolve(FLYING, flights=(*(FLYING.flights or ())[:1], (False, ((0, 3, 1, False),), ()))),
        "a step in flight has (0, 3, 1, False), should have that of its dispatch: ((0, 3, 1, True)",
    ),
    (
        "SNAP",
        FLYING,
        PAGE_KEPT,
        "a step in flight has slots [0], should have [0, 1]",
    ),
    (
        "SNAP",
        FLYING,
        evolve(OLDEST_DELIVERED, flights=((False, ((0, 2, 1, False),), ()),)),
        "a step in flight has (0, 2, 1, False), should have that of its dispatch",
    ),
    (
        "SNAP",
        NEXT_OPEN,
        evolve(DELIVERED, tokens=((*TOKENS, 8), ())),
        "2 steps are no longer in flight, should be 1 at most, which has retired",
    ),
    (
        "SNAP",
        NEXT_ALONE,
        evolve(NEXT_ALONE, committed=(4, 0), flights=(), held=(0,) * 4),
        "1 steps are no longer in flight, should be 1 at most, which has retired",
    ),
    (
        "SNAP",
        STOPPED,
        evolve(STOPPED, flights=((False, (), (0,)),)),
        "a step in flight has not retired, should have: it had before",
    ),
    (
        "RB",
        DRAWN,
        evolve(DRAWN, proposed=((), ())),
        "slot 0 has lost cells or drawn tokens, should not: it is in flight",
    ),
    (
        "HELD",
        PAGE_KEPT,
        evolve(
            PAGE_KEPT,
            used=(True, True),
            rows=((0, 1), (3, INVALID)),
            counts=(1, 1, 0, 1),
            allocated=(4, 1),
        ),
        "a row names page 3, should not: 1 steps in flight name it",
    ),
    (
        "HELD",
        FLYING,
        evolve(FLYING, held=(2, 2, 0, 0)),
        "0 steps in flight name page 3, should be 1",
    ),
    (
        "HELD",
        HELD_IDLE,
        evolve(
            HELD_IDLE,
            indexed=((3, 5, 6), (), (), ()),
            rows=((0, 1), (2, INVALID)),
            counts=(1, 1, 1, 0),
            allocated=(3, 2),
        ),
        "a row names page 2, should not: 1 steps in flight name it",
    ),
)


@pytest.mark.parametrize(
    ("before", "view"),
    [
        *((view, view) for view in (GOOD, ALONE, TWINS, PENDING, TWO_QUEUED, DRAFTED, WINDOW)),
        pytest.param(INDEXED, INDEXED, id="an index"),
        pytest.param(INDEXED, evolve(INDEXED, indexed=((),) * 4), id="drop the index"),
        pytest.param(
            INDEXED, evolve(INDEXED, indexed=((3, 5, 6), (), (), ())), id="evict an idle page"
        ),
        pytest.param(DRAFTED, CUT, id="truncate"),
        pytest.param(
            evolve(DRAFTED, written=(2, 0), queue=((7, 0, 2), (8, 0, 3))),
            HALF_CUT,
            id="truncate one of two drafts",
        ),
        pytest.param(
            evolve(BARE, tokens=((5,), ()), queue=((5, 0, 0),)),
            evolve(BARE, tokens=((5,), ())),
            id="pack the first token",
        ),
        pytest.param(GOOD, WINDOW, id="release"),
        pytest.param(GOOD, ALONE, id="pack or purge"),
        pytest.param(PENDING, evolve(PENDING, queue=((8, 1, 3),)), id="pack one"),
        pytest.param(PENDING, evolve(PENDING, queue=((8, 0, 3),)), id="purge slot 1"),
        pytest.param(GOOD, PENDING, id="clone with a queued token"),
        pytest.param(ALONE, evolve(PENDING, queue=()), id="clone without a queued token"),
        pytest.param(PENDING, GOOD, id="free"),
        pytest.param(SLID, NOTHING, id="free two slots after a release"),
        pytest.param(ALONE, ANOTHER, id="free a slot and fill it again as far"),
        pytest.param(BARE, NOTHING, id="free a slot without a prompt"),
        pytest.param(
            evolve(BARE_BESIDE, committed=(3, 0), proposed=((), ())),
            evolve(NOTHING, committed=(0, 0), proposed=((), ())),
            id="reset a slot without a prompt and a queue",
        ),
        pytest.param(
            evolve(ALONE, tokens=(TOKENS, ())),
            ALONE,
            id="a token that was drawn before is replayed",
        ),
        pytest.param(FLYING, OLDEST_DELIVERED, id="deliver"),
        pytest.param(DRAWN, DELIVERED, id="deliver a token"),
        pytest.param(DELIVERED, NEXT_ALONE, id="dispatch a queued token"),
        pytest.param(DRAWN, NEXT_OPEN, id="dispatch a token that is drawn and not known"),
        pytest.param(NEXT_OPEN, NEXT_ALONE, id="deliver a token that has its position in a step"),
        pytest.param(NEXT_OPEN, DRAWN_TWICE, id="retire"),
        pytest.param(DRAWN_TWICE, STOPPED, id="deliver the end of a sequence before a later step"),
        pytest.param(
            HELD_IDLE,
            evolve(
                HELD_IDLE,
                rows=((0, 1), (0, 2)),
                counts=(2, 1, 1, 0),
                allocated=(3, 4),
                written=(3, 4),
                committed=(3, 4),
            ),
            id="hit an idle page that a step in flight names",
        ),
    ],
)
def test_good_views_violate_nothing(before: View, view: View) -> None:
    """The views from which the bad ones are made violate nothing, nor do these steps."""
    assert [] == list(clauses.violations(view))
    assert [] == list(clauses.step_violations(before, view))


@pytest.mark.parametrize(("clause", "view", "message"), BAD_STATES)
def test_a_bad_state_violates_its_clause_and_nothing_earlier(
    clause: str, view: View, message: str
) -> None:
    """The first violation is that of the clause, and has the value seen and the expected one."""
    found, wrong = next(clauses.violations(view))

    assert clause == found
    assert message in wrong


@pytest.mark.parametrize(("clause", "before", "after", "message"), BAD_STEPS)
def test_a_bad_step_violates_its_clause(
    clause: str, before: View, after: View, message: str
) -> None:
    """The only clause that is violated across the step is this one."""
    found = list(clauses.step_violations(before, after))

    assert {clause} == {name for name, _ in found}
    assert message in found[0][1]


def test_every_predicate_has_a_bad_view() -> None:
    """The tables leave out no clause that has a predicate, and every clause is of its kind."""
    assert {clause.id for clause in STATE_CLAUSES} == {case[0] for case in BAD_STATES}
    across = {clause.id for clause in CLAUSES.values() if clause.holds_across is not None}
    assert {clause.id for clause in STEP_CLAUSES} < across == {case[0] for case in BAD_STEPS}
    assert [] == [clause.id for clause in STATE_CLAUSES if clause.holds_in is None]
    assert [] == [clause.id for clause in STEP_CLAUSES if clause.holds_across is None]
    assert {"run", "engine"} == {clause.kind for clause in OTHER_CLAUSES}
    assert len(clauses.CLAUSES) == len(STATE_CLAUSES) + len(STEP_CLAUSES) + len(OTHER_CLAUSES)


@pytest.mark.parametrize(
    "view",
    [
        evolve(GOOD, allocated=(9, 0), written=(9, 0), tokens=((1,) * 9, ())),
        evolve(GOOD, rows=((9, INVALID), (-1, 7))),
        evolve(GOOD, first_page=(-1, 99)),
        evolve(GOOD, indexed=((9,), (-1, 7), (3,) * 99, ()), contexts=(-1, 99)),
        evolve(GOOD, queue=((1, -1, -1), (1, 0, -1), (1, 0, 99))),
        evolve(
            GOOD,
            flights=((False, (), ()), (True, ((9, -1, -5, True), (-1, 0, 9, False)), (9, -1))),
            held=(-1, 9, 0, 0),
            committed=(-1, 9),
        ),
    ],
)
def test_no_view_is_too_bad_to_be_judged(view: View) -> None:
    """Lengths, pages and positions out of all bounds are reported, and raise no exception."""
    for judged in (view, evolve(view, expected=model.contents)):
        assert [*clauses.violations(judged), *clauses.step_violations(GOOD, judged)]


def test_cells_beyond_the_tokens_are_told() -> None:
    """A written cell past the tokens is a violation, whatever it holds."""
    view = evolve(ALONE, tokens=((), ()), expected=model.contents)

    assert ("CONTENT", "slot 0 has 3 written cells, should have 0 or fewer") in [
        *clauses.violations(view)
    ]


@pytest.mark.parametrize("name", [one.name for one in VIEWED if one.name not in ("used", "rows")])
def test_any_one_field_can_be_hidden(name: str) -> None:
    """No predicate reads a field that its clause does not name."""
    changed: Any = {name: None}
    hidden = evolve(GOOD, **changed)

    assert [] == [*clauses.violations(hidden), *clauses.step_violations(hidden, hidden)]
    for before, after in ((hidden, GOOD), (GOOD, hidden)):
        assert [] == [*clauses.step_violations(before, after)]


def test_what_is_not_shown_is_not_checked() -> None:
    """A view without counts and cells is judged by the clauses that need neither, and says so."""
    shown = evolve(GOOD, counts=None, cells=None, outputs=None)
    wrong = evolve(shown, rows=((0, 0), NONE), tokens=((1,), ()))
    of_states = (
        "CONS",
        "UAF",
        "RC",
        "PC",
        "CHAIN",
        "CONTENT",
        "READ",
        "OUT",
        "SNAP",
        "SETTLED",
        "FENCE",
        "HELD",
    )
    hidden = (*of_states, "FRAME", "EVICT", "RB")

    assert () == clauses.not_checked(HELD_IDLE)
    assert hidden == clauses.not_checked(shown)
    assert [] == list(clauses.violations(shown))
    assert {"ROW", "LEN", "Q", "SHARE"} == {clause for clause, _ in clauses.violations(wrong)}


def test_counts_are_never_clamped() -> None:
    """A page released once too often is seen at -1; a clamp would hide the bug."""
    assert (-1, 1) == pool.release((0, 2), (0, 1))
    assert (1, 3) == pool.hold((0, 2), (0, 1))
    assert (1, 3) == pool.free_pages((1, 0, 2, 0))
    assert ((1,), (1, 3), (1, 3)) == tuple(pool.lowest_free((1, 0, 2, 0), n) for n in (1, 2, 3))
