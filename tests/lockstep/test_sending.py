"""What an engine sees: no call that the layer above rules out, and batches that it takes."""

import pytest
from attrs import evolve
from mistaken_adapters import Adapter
from spec_engine import SpecEngine, small

from conformance.lockstep.lockstep import Lockstep
from conformance.lockstep.run import replay
from conformance.lockstep.sending import batches
from conformance.protocol import Action, Batches, Result
from spec.machines.actions import Allocate, Free, Reserve
from spec.vocabulary import CleanupMode, Reason, default_limits

SIZES = small(pages=6, page_size=2, slots=3, pages_per_seq=4)
MIXED = Allocate(((1, 5), (0, 1), None, (1, 4), (0, 0)))


class Spy(Adapter):
    """An adapter that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(SIZES, default_limits(SIZES), CleanupMode.NONE)
        self.sent: list[Action] = []

    def apply(self, action: Action) -> Result:
        """Keep it, then take it."""
        self.sent.append(action)
        return super().apply(action)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("several slots", [MIXED]),
        ("one slot", [Allocate(((1, 5), None, (1, 4))), Allocate(((0, 1), None, (0, 0)))]),
        (
            "one position",
            [Allocate(((1, 4),)), Allocate(((1, 5),)), Allocate(((0, 1), None, (0, 0)))],
        ),
    ],
)
def test_a_batch_is_sent_as_the_engine_takes_it(word: Batches, expected: list[Action]) -> None:
    """A sequence that begins is one batch; one that has cells may grow by one position."""
    engine = SpecEngine(SIZES, default_limits(SIZES), CleanupMode.NONE)

    assert expected == [*batches(evolve(engine.profile, batches=word), MIXED)]


def test_a_guarded_call_is_not_sent_and_slots_are_named() -> None:
    """The engine sees the slot that the layer above chooses, and nothing that it rules out."""
    spy = Spy()
    lockstep = Lockstep(spy)
    whole = Allocate(tuple((0, at) for at in range(8)))

    assert frozenset({Reason.SLOT_UNUSED}) == lockstep.do(Free(0))
    assert frozenset() == lockstep.do(Reserve())
    assert frozenset() == lockstep.do(whole)
    assert frozenset({Reason.TOO_LONG}) == lockstep.do(Allocate(((0, 8),)))
    assert frozenset({Reason.SLOT_USED}) == lockstep.do(Reserve(0))
    assert [Reserve(0), whole] == spy.sent


def test_a_history_shows_what_was_sent() -> None:
    """A finding names the slot that the engine was given."""

    def broken() -> Spy:
        spy = Spy()
        spy.pool.release = lambda _slot: None
        return spy

    found = replay(broken, (Reserve(), Free(0)))

    assert found is not None
    assert (Reserve(0), Free(0)) == found.history
