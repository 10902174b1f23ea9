"""Histories made smaller in several steps at once."""

from conformance.fuzzing.shrinking import smaller_together
from conformance.history import Attend, History
from spec.machines import actions as act
from spec.vocabulary import INVALID, Params

ONE = Params(max_new=1)


def test_a_slot_is_taken_out_of_the_whole_history() -> None:
    """Without a reservation, the slots after it are one less wherever they stand."""
    history: History = (
        act.Reserve(),
        act.Reserve(),
        act.Assign(1, (5,), ONE, 3),
        act.Allocate(((1, 0), None, (0, 0))),
        act.Clone(1, 2, 1),
        act.Free(INVALID),
        Attend(),
    )

    assert (
        act.Reserve(),
        act.Assign(0, (5,), ONE, 3),
        act.Allocate(((0, 0), None, (0, 0))),
        act.Clone(0, 1, 1),
        act.Free(INVALID),
        Attend(),
    ) in list(smaller_together(history))


def test_slots_that_nobody_names_are_closed_up() -> None:
    """A gap in the slots goes without a step going."""
    assert (act.Reserve(1), act.Free(1)) in list(smaller_together((act.Reserve(2), act.Free(2))))


def test_a_prompt_is_cut_with_what_was_written_of_it() -> None:
    """Positions past the shorter prompt leave the batches of this slot, and of no other."""
    batch = ((0, 0), (0, 1), (1, 1))
    history: History = (act.Assign(0, (1, 2), ONE, 3), act.Allocate(batch), act.Write(batch))
    shorter = ((0, 0), (1, 1))

    assert (act.Assign(0, (1,), ONE, 3), act.Allocate(shorter), act.Write(shorter)) in list(
        smaller_together(history)
    )


def test_two_batches_become_one() -> None:
    """In the place of the later, what stands between stays."""
    history: History = (act.Write(((0, 0),)), act.Pack(), act.Write(((1, 0),)), act.Round())

    assert (act.Pack(), act.Write(((0, 0), (1, 0))), act.Round()) in list(smaller_together(history))
    assert [] == list(smaller_together((act.Write(((0, 0),)), act.Allocate(((0, 0),)))))
