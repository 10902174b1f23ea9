"""A graph of 185 states, and the description that its checkpoint keeps."""

from explore_tools import explored, plan

from conformance.exploration.graph import Graph

ABOUT: dict[str, object] = {"rung": "sharing", "geometry": {"pages": 3}}


SMALL = (3, 2, 2, 2)


def small() -> Graph:
    """A graph of 185 states."""
    graph, broken = explored(plan(SMALL))
    assert broken is None
    return graph
