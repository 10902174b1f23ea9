"""Leaks of an engine that may refuse more: what it has granted from empty it grants again."""

from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from capacity_toys import FrugalAdapter
from deep import deep_after
from leaking_toys import INVERTED, LEAKS, RULES, make_leaky

from conformance.cli.main import main
from conformance.fuzzing import campaign
from conformance.lockstep.granted import LONGEST, Granted
from conformance.lockstep.lockstep import Lockstep, Violation
from conformance.protocol import Action
from spec.machines.actions import Allocate, Free, Reserve
from spec.vocabulary import CleanupMode, Geometry, Reason, default_limits

SIZES = Geometry(pages=16, slots=4, page_size=4, pages_per_seq=4)
STEPS = 3000
"""The steps within which fuzzing finds each leak."""


def fuzzed(bug: str, *, seed: int) -> campaign.Run:
    """Fuzz a toy engine until STEPS steps are taken or a step fails."""
    report = campaign.Run()
    options = campaign.Options(geometry=SIZES, seed=seed, steps=STEPS, ceiling=False)
    campaign.run(partial(make_leaky, bug=bug), options, report=report, update=lambda *_: None)
    return report


@pytest.mark.parametrize("bug", LEAKS)
def test_a_leak_that_no_view_shows_is_found(bug: str) -> None:
    """The pages that a leak has lost were given before in the same state."""
    report = fuzzed(bug, seed=1)

    assert report.finding is not None
    assert report.finding.clause == "CONS"
    assert "given in this state before" in report.finding.message


@pytest.mark.deep
@pytest.mark.parametrize("rule", deep_after(1, reversed(["", *RULES])))
def test_a_rule_of_its_own_is_no_leak(rule: str) -> None:
    """An engine that refuses by a rule gives the same answer in the same place."""
    report = fuzzed(rule, seed=2)

    assert report.finding is None, report.finding


def taken(pages: int, *, size: int = SIZES.page_size) -> tuple[Action, ...]:
    """A slot takes this many pages, one after another."""
    batches = (tuple((0, size * page + cell) for cell in range(size)) for page in range(pages))
    return (Reserve(0), *map(Allocate, batches))


def toy(bug: str) -> FrugalAdapter:
    """A toy engine whose pool has the pages of one row."""
    sizes = evolve(SIZES, pages=4)
    return make_leaky(sizes, default_limits(sizes), CleanupMode.NONE, bug=bug)


def test_the_message_says_how_many_pages_were_given() -> None:
    """A refusal of what was given from the initial state is a finding of CONS."""
    lockstep = Lockstep(toy("never returns block 3"))
    for action in (*taken(4), Free(0), *taken(3)):
        lockstep.do(action)
    last = taken(4)[-1]

    with pytest.raises(Violation) as found:
        lockstep.do(last)

    assert found.value.clause == "CONS"
    assert found.value.message == (
        "the action is refused: OUT_OF_PAGES, should be done: 1 page was given in this state "
        "before, after the same 4 actions from the initial state"
    )


def test_a_slot_that_was_reserved_before_is_reserved_again() -> None:
    """A refusal for another reason than pages violates ATOMIC."""
    engine = toy("")
    lockstep = Lockstep(engine)
    for action in (Reserve(0), Free(0)):
        lockstep.do(action)
    engine.allocator.slots = 0

    with pytest.raises(
        Violation, match="ATOMIC: the action is refused: SLOT_RANGE, should be done: it was"
    ):
        lockstep.do(Reserve(0))


def test_another_path_from_the_initial_state_may_be_refused() -> None:
    """An action is remembered after the same actions only."""
    lockstep = Lockstep(toy("never returns block 3"))
    for action in (*taken(4), Free(0), Reserve(1), *taken(3)):
        lockstep.do(action)

    assert {Reason.OUT_OF_PAGES} == lockstep.do(taken(4)[-1])


def test_what_is_remembered_is_bounded() -> None:
    """An action far from the initial state is not remembered, and the next initial state is."""
    lockstep = Lockstep(toy(""))
    initial = lockstep.state
    after = lockstep.machine.step(initial, Reserve(0))
    granted = Granted(initial)
    for slot in range(LONGEST + 1):
        granted.add(Reserve(slot), after)
    far = Reserve(LONGEST + 1)
    granted.add(far, after)
    granted.add(Free(0), initial)

    assert Reserve(0) in granted
    for slot in range(LONGEST + 1):
        granted.add(Reserve(slot), after)
    assert far not in granted


@pytest.mark.deep
def test_an_engine_that_refuses_nearly_everything_is_undecided(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a check is not decided by is named: the actions whose legal calls were refused."""
    monkeypatch.chdir(tmp_path)

    assert 3 == main(["adapter", "check", "leaking_toys:make_inverted", "--in-process"])
    assert "what the engine does: it mostly refuses: Allocate: refused " in capsys.readouterr().out


@pytest.mark.parametrize("bug", deep_after(1, [INVERTED, RULES[0]]))
def test_the_advice_is_to_look_at_the_check(bug: str) -> None:
    """More seconds do not help an engine that refuses nearly every legal call."""
    report = fuzzed(bug, seed=3)

    engine = make_leaky(SIZES, default_limits(SIZES), CleanupMode.NONE, bug=bug)
    advice = report.advice(["Write: done"], engine, given=False)
    says = advice.startswith("the engine refuses nearly every legal call (Allocate: ")
    assert (bug == INVERTED) == says
    assert (bug != INVERTED) == ("give more seconds" in advice)
