"""Shapes that do not fit together, and functions that take them."""

from typing import Any

import pytest

from conformance.numerics.array_shapes import Shapes, differences
from impl.cache import paged
from spec.vocabulary import InvalidInput

NAMES = frozenset({"interleave", "write"})
AXES = {"kv_pages": "P S 2H D", "destinations": "T", "k": "T H D", "v": "T H D"}


def test_our_functions_refuse_what_does_not_fit() -> None:
    """And take what does."""
    assert [] == [*differences()]


def test_each_array_gets_each_wrong_shape() -> None:
    """One axis more, one less, and each size that another array has a part in, one off."""
    shapes = Shapes(paged.write, NAMES, AXES)

    wrong = [*shapes.wrong()]

    of_pool = [shape for name, shape in wrong if name == "kv_pages"]
    heads, width = [(3, 4, 3, 8), (3, 4, 5, 8)], [(3, 4, 4, 7), (3, 4, 4, 9)]
    assert [(3, 4, 4, 8, 1), (4, 4, 8), *heads, *width] == of_pool
    assert [(5, 1), (), (4,), (6,)] == [shape for name, shape in wrong if name == "destinations"]
    assert 6 + 4 + 2 * (2 + 6) == len(wrong)


@pytest.mark.parametrize("name", AXES)
def test_a_function_that_takes_a_wrong_shape_is_noticed(name: str) -> None:
    """Whichever array has it, and whether the function fails later on or not at all."""

    def careless(**arrays: Any) -> None:
        right = Shapes(paged.write, NAMES, AXES).right()
        if any(array.shape != right[one] for one, array in arrays.items() if one != name):
            raise InvalidInput("write", seen=0, allowed="those that fit", remedy="Give those.")

    told = [*differences((Shapes(careless, NAMES, AXES),))]

    assert told
    assert {True} == {text.startswith(f"{name} (") for text in told}


def test_what_is_refused_though_it_fits_is_told() -> None:
    """As is a function that raises another exception."""

    def refusing(**_: Any) -> None:
        raise InvalidInput("write", seen=0, allowed="1", remedy="Give 1.")

    def failing(**_: Any) -> None:
        raise TypeError("shapes")

    refused, failed = ([*differences((Shapes(one, NAMES, AXES),))] for one in (refusing, failing))
    assert 1 == len(refused)
    assert 1 + len([*Shapes(failing, NAMES, AXES).wrong()]) == len(failed)


def test_another_name_in_a_refusal_is_told() -> None:
    """Where the number of axes is wrong, no other array can be meant."""

    def swapped(**arrays: Any) -> None:
        try:
            paged.write(**arrays)
        except InvalidInput as error:
            wrong = arrays["k"].ndim != 3
            name = "v" if wrong else error.name
            raise InvalidInput(name, seen=0, allowed="1", remedy="Give 1.") from None

    told = [*differences((Shapes(swapped, NAMES, AXES),))]

    assert ["k (5, 2, 8, 1)", "k (2, 8)"] == [text.partition(" beside")[0] for text in told]
