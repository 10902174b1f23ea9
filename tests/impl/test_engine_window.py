"""The engine with a window: what a release gives back, and what other actions make of its rows."""

import pytest
from engine_tools import (
    WINDOWED,
    assert_holds,
    assert_identical,
    do,
    params,
    request,
    specification,
)
from spec_tools import INDEXING as MACHINE

from impl import events as impl_events
from impl.engine import Engine
from spec import events
from spec.machines import naive
from spec.machines.actions import (
    Action,
    Allocate,
    Assign,
    Clone,
    Commit,
    Drop,
    Free,
    Hit,
    Merge,
    Prefill,
    Propose,
    Publish,
    Release,
    Reserve,
    Reset,
    Round,
    Share,
    Truncate,
    Write,
)
from spec.state import State
from spec.vocabulary import Reason, Refused

TEXT = (1, 2, 3, 4, 5)


def written(slot: int, text: tuple[int, ...], number: int) -> tuple[Action, ...]:
    """A sequence whose prompt is written, in a slot."""
    cells = tuple((slot, position) for position in range(len(text)))
    begun = (Reserve(slot), Assign(slot, text, params(8 - len(text)), request=number))
    return (*begun, Allocate(cells), Write(cells))


RELEASED: tuple[Action, ...] = (
    *written(0, TEXT, 1),
    *(Release(0, 4), Release(4, 0), Release(1, 0), Release(0, 1)),
    Publish(0, 2),
    Release(0, 3),
    *(Release(0, 2), Release(0, 0), Merge(0, 0)),
    Publish(0, 5),
    Clone(0, 1, 1),
    *(Reserve(2), Assign(2, (1, 2, 3, 4, 9), params(2), request=2)),
    *(Share(0, 2, 2), Hit(2, 4), Free(2)),
    *written(3, (4, 4, 4, 4, 4), 3),
    *(Release(3, 3), Publish(3, 5), Publish(3, 2), Merge(3, 1), Free(3)),
    *(Propose(0, (6, 7)), Allocate(((0, 5), (0, 6))), Write(((0, 5),)), Release(0, 4)),
    *(Commit(0, 6), Release(0, 4), Truncate(0, 5), Truncate(0, 6), Release(0, 5)),
    *(Allocate(((1, 5),)), Truncate(1, 5), Drop(), Free(1), Reset()),
)
"""Pages that are shared, in the index, and neither are released; drafts do not move the window.

What is behind a hole enters the index if the page of the hole is known, and not otherwise.
"""


def taken(engine: Engine, state: State, action: Action) -> State:
    """Take an action, which is done or refused as the specification says."""
    refusals = MACHINE.refusals(state, action)
    if refusals:
        before = engine.extract()
        with pytest.raises(Refused) as caught:
            do(engine, action)
        assert caught.value.reasons <= {refusal.reason for refusal in refusals}
        assert_identical(before, engine.extract())
        return state
    do(engine, action)
    state = MACHINE.step(state, action)
    assert_holds(engine, state)
    assert events.keys(state.indexed) == impl_events.keys(engine.setup, engine.packed)
    return state


def test_releases_and_all_that_meets_them_are_those_of_the_specification() -> None:
    """Rows, counts, cells and index are equal after each action; so are reasons to refuse it."""
    engine, state, reasons = Engine(WINDOWED), specification(WINDOWED), list[Reason]()
    for action in RELEASED:
        reasons += {refusal.reason for refusal in MACHINE.refusals(state, action)}
        state = taken(engine, state, action)

    assert {Reason.WINDOW, Reason.NOT_INDEXED, Reason.NOT_COMMON} <= {*reasons}
    assert_identical(Engine(WINDOWED).extract(), engine.extract(), cache=False)


def test_rounds_after_releases_draw_what_naive_decoding_with_the_window_draws() -> None:
    """Two choices lose each page as soon as they can, and the tokens stay the same."""
    asked = request(1, TEXT[:3], 5, 2, temperature=1.0, seed=4)
    engine, state = Engine(WINDOWED), specification(WINDOWED)
    state = taken(engine, state, Prefill((asked,)))
    for _ in range(4):
        state = taken(engine, state, Round())
        for slot in state.live:
            state = taken(engine, state, Release(slot, max(0, state.committed[slot] - 2)))
    seen = {output.choice: output.tokens for output in engine.take_outputs()}

    assert {
        choice: naive.generate(TEXT[:3], asked.params, choice, window=3)[0] for choice in (0, 1)
    } == seen
    assert seen[0] != naive.generate(TEXT[:3], asked.params, 0)[0]
