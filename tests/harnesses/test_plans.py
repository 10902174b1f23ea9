"""The harness of planned steps: a right scheduler holds, and each planted bug breaks its clause."""

from functools import partial
from itertools import count

import pytest
from deep import deep_after
from planning_toy import BUGS, Toy

from conformance.engines import drift, vllm
from conformance.harnesses import nano_vllm_scheduler, plans, search, vllm_scheduler
from conformance.harnesses.planned import Drawn, Group, Row, Worker
from conformance.harnesses.plans import Abort, Arrive, Deliver, Dispatch, Forget
from conformance.harnesses.workloads import Broken
from conformance.verdict import Verdict
from spec import model
from spec.vocabulary import INVALID, InvalidInput, Params, Tokens

SECONDS = 4.0
"""Seconds of a clock that advances by 0.01 at each reading, of which each history takes one."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock, so that results do not depend on the load of the machine."""
    monkeypatch.setattr(search, "monotonic", count(step=0.01).__next__)


@pytest.mark.parametrize("lag", deep_after(1, [1, 0, 2]))
def test_a_right_scheduler_holds(lag: int) -> None:
    """A run breaks no clause, and reaches all that it must reach."""
    verdict, histories = plans.check(partial(Toy, lag=lag), chosen=1, seconds=SECONDS)

    assert verdict is Verdict.HOLDS
    assert histories > 50


@pytest.mark.parametrize("bug", deep_after(20, BUGS))
def test_each_bug_of_a_scheduler_is_found(bug: str) -> None:
    """Each breaks its clause, on a history of few events."""
    found = plans.search(partial(Toy, bug=bug, lag=2), chosen=1)

    found.run(SECONDS)

    assert found.least is not None
    history, broken = found.least
    assert BUGS[bug] == broken.clause, (history, broken)
    assert len(history) <= 8, "\n".join(plans.told(history, broken))


@pytest.mark.parametrize("kind", deep_after(1, [plans.ABORT, plans.FORGET]))
def test_a_kind_of_event_can_be_left_out(kind: str) -> None:
    """No history has it, so that a bug that needs it is not found; nothing of it is needed."""
    bug = {plans.ABORT: "one alone is aborted", plans.FORGET: "it is said that all is forgotten"}
    make = partial(Toy, bug=bug[kind], lag=2)

    found = plans.search(make, chosen=1, without={kind})
    found.run(SECONDS)

    assert found.least is None
    needed = {*plans.needed(make())} - {*plans.needed(make(), {kind})}
    assert needed == {one for one in plans.needed(make()) if kind in one}
    assert not any(found.seen[one] for one in needed)
    assert all(found.seen[one] for one in plans.needed(make(), {kind}))


WINDOWED = (Group(2), Group(2, window=3))


def row(
    count: int,
    *tables: tuple[int, ...],
    start: int = 0,
    text: Tokens | None = None,
    drafts: Tokens = (),
) -> Row:
    """A row of request 0."""
    return Row(0, tables, start, count, text, drafts)


def test_a_worker_reads_in_each_group_what_its_window_shows() -> None:
    """A page behind the window may be gone; one that a query sees must be there."""
    text = (7, 8, 9, 9, 9)
    worker = Worker(WINDOWED)
    drawn = worker.run((row(5, (0, 1, 2), (3, 4, 5), text=text),), {})
    assert {0: Drawn((model.next_token(text, 0),))} == drawn

    seen = row(1, (0, 1, 2), (INVALID, 4, 5), start=5)
    assert {0} == worker.run((seen,), {}).keys()
    with pytest.raises(Broken, match=r"^ROW: request 0, position 4: group 1 has no page"):
        worker.run((row(1, (0, 1, 2, 6), (INVALID, INVALID, INVALID, 7), start=6),), {})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            row(2, (0, 1), start=1, drafts=(5,)),
            r"^Q: request 0: 2 positions from 1 on are planned, the last 1 for drafts, of 4 known",
        ),
        (
            row(1, (0, 2), start=3),
            r"^READ: request 0, position 2 reads \(2, 0\), which holds noth",
        ),
        (
            row(1, (1, 0), start=3),
            r"^READ: request 0, position 0 reads \(1, 0\), which holds \(",
        ),
        (row(2, (0, 1), start=3), r"^Q: request 0: 2 positions from 3 on are planned, of 4 known"),
        (row(0, (0, 1), start=3), r"^Q: request 0: 0 positions from 3 on"),
        (row(1, (0,), start=3), r"^ROW: request 0, position 3: group 0 has no page for it"),
    ],
)
def test_a_wrong_plan_is_told(wrong: Row, message: str) -> None:
    """A page that nobody wrote or another prefix did, positions without a token, a short row."""
    worker = Worker((Group(2),))
    worker.run((row(3, (0, 1), text=(1, 2, 3)),), {})

    with pytest.raises(Broken, match=message):
        worker.run((wrong,), {})


def test_a_history_is_told_line_by_line() -> None:
    """Requests by their number, with what is not usual; then the violation."""
    params = Params(max_new=2, stops=((4,),))
    others = (Abort(1, 2), Deliver(), Forget(), Forget(preempts=False))
    history = (Arrive((1, 2), params), Arrive((3,), Params(max_new=1), 2, 1), Dispatch())

    assert [
        "  request 0: (1, 2), at most 2 tokens, stops ((4,),)",
        "  request 1: (3,), at most 1 tokens, priority 2, context 1",
        "  dispatch",
        "  abort the request at place 1 and 2 after it, those that have ended last",
        "  deliver",
        "  forget",
        "  forget, if no request holds pages",
        "  then all are served: OUT: wrong",
    ] == [*plans.told((*history, *others), Broken("OUT", "wrong"))]


def test_every_shorter_history_is_smaller() -> None:
    """It has fewer events, or one of them is less."""

    def size(history: plans.History) -> int:
        return sum(
            1
            + (
                len(one.prompt)
                + one.params.max_new
                + len(one.params.stops)
                + one.priority
                + one.context
                if isinstance(one, Arrive)
                else one.which + one.more
                if isinstance(one, Abort)
                else 0
            )
            for one in history
        )

    whole = (Arrive((1, 2, 3), Params(max_new=3, stops=((4,),)), 1, 1), Dispatch(), Abort(2, 1))
    shorter = [*plans.shorter(whole)]

    assert len(shorter) > 8
    assert all(size(one) < size(whole) for one in shorter)


@pytest.mark.skipif(
    drift.installed(nano_vllm_scheduler.PACKAGE), reason="NOT CHECKED, nano-vllm is installed"
)
def test_without_nano_vllm_it_is_said_how_to_install_it() -> None:
    """Bad input, with the target that installs it."""
    with pytest.raises(InvalidInput, match=r"no module nanovllm.*make engine-nano-vllm"):
        nano_vllm_scheduler.make()


@pytest.mark.skipif(drift.installed(vllm.PACKAGE), reason="NOT CHECKED, vLLM is installed")
@pytest.mark.parametrize("make", [vllm_scheduler.make, vllm_scheduler.make_drafts_async])
def test_without_vllm_it_is_said_how_to_install_it(make: plans.Makes) -> None:
    """Bad input, with the target that installs it."""
    with pytest.raises(InvalidInput, match=r"No module named.*make engine-vllm"):
        make()
