"""A state of the engine with some fields of one component replaced."""

from typing import Any

from impl.state import State


def with_pages(state: State, **changed: Any) -> State:
    """The state with these fields of its pages replaced."""
    return state._replace(pages=state.pages._replace(**changed))


def with_slots(state: State, **changed: Any) -> State:
    """The state with these fields of its slots replaced."""
    return state._replace(slots=state.slots._replace(**changed))
