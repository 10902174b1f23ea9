"""Calls with one argument of a wrong kind, which an engine refuses by the name of the argument.

What is wrong comes from the specification: a value that the rule of an action's field refuses.
"""

import copy
from functools import cache
from typing import Any, Final

import attrs
import numpy as np

from conformance.protocol import Action
from spec.vocabulary import InvalidInput

VALUES: Final[tuple[object, ...]] = (
    *(None, True, 1.0, "1", np.int32(1), ..., -1, 2**31, 10**30),
    *((), (True,), (1.0,), (-1,), (2**31,), (np.int32(1),), [1], {}),
    *(((True, 0),), ((0, 1.0),), ((0, np.int32(0)),), ((0,),), ((0, 0, 0),), ((None, 0),)),
)
"""No list of pairs: an engine takes one for a batch."""


@cache
def wrong_values(kind: type) -> tuple[tuple[str, object], ...]:
    """Each field of this class of actions, with each value that it cannot have."""
    anything: object = object.__new__(kind)
    return tuple(
        (field.name, value)
        for field in attrs.fields(kind)
        for value in VALUES
        if not _holds(anything, field, value)
    )


def replaced(action: Action, name: str, value: object) -> Action:
    """A copy of the action with this value in a field, which is not validated."""
    other = copy.copy(action)
    object.__setattr__(other, name, value)
    return other


def _holds(action: object, field: Any, value: object) -> bool:
    try:
        field.validator(action, field, value)
    except InvalidInput:
        return False
    return True
