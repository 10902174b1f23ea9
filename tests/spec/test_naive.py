"""The meaning of generation, by hand: when a text ends, and what each choice draws."""

from itertools import product

import pytest

from spec import model
from spec.machines import naive
from spec.vocabulary import FinishReason, Params, Tokens

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
