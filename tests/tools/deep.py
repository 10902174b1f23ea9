"""Cases of a test that `make test` leaves to `make deep`."""

from collections.abc import Iterable

import pytest


def deep_after(often: int, cases: Iterable[object]) -> list[object]:
    """The cases, of which those after the first `often` are deep.

    cases: a tuple has one value for each parameter, and any other case is one value.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if at < often else pytest.mark.deep,
        )
        for at, case in enumerate(cases)
    ]
