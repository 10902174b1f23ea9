"""The meaning of generation, by hand: when a text ends, and what each choice draws."""

from itertools import product

import pytest

from spec import ladder, model
from spec.machines import naive
from spec.machines.actions import Append, Free, Reserve
from spec.vocabulary import FinishReason, Geometry, Params, Reason, Tokens, default_limits

LONG = (8, 9, 10)


@pytest.mark.parametrize(
    ("generated", "stops", "max_new", "reason"),
    [
        ((7,), ((7,), LONG), 5, FinishReason.STOP),  # shorter than the other stop
        ((1, 7), (LONG, (7,)), 5, FinishReason.STOP),
        ((6, 7), ((6, 7),), 2, FinishReason.STOP),  # a stop precedes a limit
        ((6,), (), 1, FinishReason.LIMIT),
        ((7,), ((6, 7),), 5, None),  # the end of a stop alone
        ((6, 7, 1), ((6, 7),), 5, None),  # a stop that is not at the end
        ((8, 9), (LONG,), 3, None),
    ],
)
def test_a_text_ends_with_any_of_its_stops_or_at_its_limit(
    generated: Tokens, stops: tuple[Tokens, ...], max_new: int, reason: FinishReason | None
) -> None:
    """Each stop counts by its own length."""
    assert reason is naive.finish(generated, Params(max_new=max_new, stops=stops))


def test_seed_choice_and_position_do_not_stand_in_for_each_other() -> None:
    """No two of their combinations draw alike, also where their sums are equal."""
    drawn = {
        model.draw(Params(max_new=1, temperature=1.0, seed=seed), choice=choice, position=position)
        for seed, choice, position in product(range(8), repeat=3)
    }

    assert len(drawn) == 8**3


def test_a_text_has_a_name_until_it_is_freed() -> None:
    """A name that is taken, or unknown, is refused."""
    machine = ladder.machine("naive")
    sizes = Geometry(pages=1, page_size=1, slots=1, pages_per_seq=1)
    state = machine.step(machine.initial(sizes, default_limits(sizes)), Reserve((0, 0)))

    def reasons(action: Append | Free | Reserve) -> set[Reason]:
        return {one.reason for one in machine.refusals(state, action)}

    assert {Reason.SLOT_USED} == reasons(Reserve((0, 0)))
    assert {Reason.SLOT_UNUSED} == reasons(Append((0, 1), (1,))) == reasons(Free((0, 1)))
    assert (
        set() == reasons(Reserve((0, 1))) == reasons(Append((0, 0), (1,))) == reasons(Free((0, 0)))
    )
