"""What the oracle refuses: exactly the arrays of which a query that is asked for sees nothing."""

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import numpy as np
import pytest

from conformance.numerics import oracle, probabilistic_bound
from spec.vocabulary.errors import InvalidInput

ROWS, PAGES, PAGE_SIZE = 4, 3, 2
ANSWERS: Final[tuple[Callable[..., Any], ...]] = (
    oracle.ragged_paged_attention,
    oracle.error_bound,
    probabilistic_bound.probable_bound,
)


def asked(answer: Callable[..., Any], table: list[int], starts: list[int], length: int = 3) -> Any:
    """The answer for one sequence, or None where it is refused."""
    q, pool = np.ones((ROWS, 1, 2)), np.ones((PAGES, PAGE_SIZE, 2, 2))
    try:
        return answer(q, pool, [length], [table], starts, 1)
    except InvalidInput:
        return None


@pytest.mark.parametrize("answer", ANSWERS)
def test_rows_of_q_are_refused_unless_they_rise_within_it(answer: Callable[..., Any]) -> None:
    """The bounds of a sequence rise from 0 to the rows of q, which themselves are allowed."""
    bounds = list(product(range(-2, ROWS + 3), repeat=2))

    taken = [pair for pair in bounds if asked(answer, [0, 1], [*pair]) is not None]

    assert [(first, last) for first, last in bounds if 0 <= first <= last <= ROWS] == taken


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_a_page_is_refused_only_where_it_is_seen(answer: Callable[..., Any], entry: int) -> None:
    """An entry that no query sees may be anything, and one that a query sees is a page."""
    cases = list(product(range(-2, PAGES + 2), range(1, 7)))

    for page, length in cases:
        table = [page if at == entry else at for at in range(3)]
        found = asked(answer, table, [0, 1], length)

        seen = entry * PAGE_SIZE < length
        assert (not seen or 0 <= page < PAGES) == (found is not None)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("window", [1, 2, 3, None])
@pytest.mark.parametrize("behind", [True, False])
def test_a_page_behind_the_window_is_not_seen(
    answer: Callable[..., Any], *, window: int | None, behind: bool
) -> None:
    """With a window the first page may be gone once the oldest visible position is past it."""
    q, pool = np.ones((1, 1, 2)), np.ones((PAGES, PAGE_SIZE, 2, 2))
    length = 4 if behind else 3
    needed = window is None or length - window < PAGE_SIZE

    try:
        answer(q, pool, [length], [[-1, 1]], [0, 1], 1, sliding_window=window)
        refused = False
    except InvalidInput:
        refused = True

    assert needed == refused
