"""Actions that the driver itself refuses, beside every step of a graph: which are right."""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import pytest
from explore_tools import silent, work_alone

from conformance.exploration.graph import Graph
from conformance.exploration.instances import instance
from conformance.exploration.search import Search
from conformance.refinement import contents
from conformance.refinement.run import Refinement, refine_cells
from conformance.refinement.vmapped import Tally
from spec.vocabulary import Geometry, Reason

TINY: Final = Geometry(pages=1, slots=1, page_size=2, pages_per_seq=1)
INSTANCE: Final = instance("lifecycle", TINY)


class Nobody:
    """A checker to which no transition may come."""

    def add(self, kind: str, transitions: Any) -> None:
        """Refuse them."""
        raise AssertionError((kind, transitions))

    def finish(self) -> None:
        """Take note of the end."""


def steps(*, illegal: bool) -> Iterator[tuple[int, int, frozenset[int]]]:
    """The number of the state, of the move, and the codes of its refusal, for each step."""
    search, found = Search(INSTANCE, Graph()), list[tuple[int, int]]()
    search.run(update=silent, visit=lambda number, _s, step, _a: found.append((number, step.move)))
    for number, move in found:
        action = INSTANCE.moves[move].action(search.states[number])
        assert action is not None
        refusals = INSTANCE.machine.refusals(search.states[number], action)
        if illegal or all(refusal.reason.family.name == "CAPACITY" for refusal in refusals):
            yield number, move, frozenset(refusal.reason.value for refusal in refusals)


@pytest.mark.parametrize("illegal", [False, True])
def test_a_refusal_by_the_driver_is_right_if_its_codes_are_all_listed(
    *, illegal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is wrong exactly if it names no code or one that the refusal does not have."""
    work_alone(monkeypatch)
    asked, rng, judged = list(steps(illegal=illegal)), Random(0), list[tuple[int, int]]()
    never = next(
        one.value for one in Reason if not any(one.value in codes for _, _, codes in asked)
    )
    answers = [
        frozenset(code for code in (*codes, never) if rng.random() < 0.6) for _, _, codes in asked
    ]
    fine = [bool(one) and one <= codes for one, (_, _, codes) in zip(answers, asked, strict=True)]
    given = iter(answers)
    monkeypatch.setattr(contents, "ask", lambda *_: next(given))
    monkeypatch.setattr(Tally, "wrong", lambda _tally, *place: judged.append(place))

    run = Refinement()
    refine_cells(INSTANCE, run, Nobody(), illegal=illegal)

    places = [(number, move) for number, move, _ in asked]
    assert judged == [place for place, right in zip(places, fine, strict=True) if not right]
    assert Tally(checked=len(asked), by_driver=len(asked)) == run.tally
    seen = {(len(one), right) for one, right in zip(answers, fine, strict=True)}
    assert {(0, False), (1, True), (1, False), (2, False)} <= seen
    assert illegal == ((2, True) in seen)
