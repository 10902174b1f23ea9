"""Events of the index of our engine, by hand; lockstep compares them with the specification."""

from impl.events import between

ONE, TWO, OTHER = (0, 1, 2), (0, 1, 2, 3, 4), (7, 1, 2)


def test_events_by_hand() -> None:
    """What extends a key is removed before it and stored after it; others are left alone."""
    assert (("stored", ONE), ("stored", OTHER), ("stored", TWO)) == between(
        frozenset(), {TWO, ONE, OTHER}
    )
    assert (("removed", TWO), ("removed", ONE)) == between({TWO, ONE, OTHER}, {OTHER})
    assert (("removed", OTHER), ("stored", TWO)) == between({ONE, OTHER}, {ONE, TWO})
    assert () == between({ONE}, {ONE})
