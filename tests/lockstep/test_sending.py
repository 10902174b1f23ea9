"""What an engine sees: no call that the layer above rules out, and batches that it takes."""

from typing import get_args

import pytest
from attrs import evolve
from mistaken_adapters import Adapter
from spec_engine import SpecEngine, small

from conformance.lockstep.lockstep import Lockstep
from conformance.lockstep.run import replay
from conformance.lockstep.sending import batches
from conformance.protocol import Action, Batches, Result
from spec.machines.actions import Allocate, Free, Reserve
from spec.vocabulary import CleanupMode, Reason, Refused, default_limits

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


class Exact(SpecEngine):
    """The specification as an engine that keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(SIZES, default_limits(SIZES), CleanupMode.NONE)
        self.sent: list[Action] = []

    def apply(self, action: Action) -> Result:
        """Keep it, then take it."""
        self.sent.append(action)
        return super().apply(action)


GROWS = ((0, 1), (0, 2), (1, 1), (1, 2), (2, 0))
"""Tokens of three slots, of which the last begins here."""


def parts_until_refused(word: Batches, action: Action) -> tuple[list[Action], frozenset[Reason]]:
    """The parts that an engine which is called by hand takes, and why it refuses the last."""
    engine, sent = Exact(), list[Action]()
    for grown in grow():
        engine.apply(grown)
    for part in batches(evolve(engine.profile, batches=word), action):
        sent.append(part)
        try:
            engine.apply(part)
        except Refused as refused:
            return sent, refused.reasons
    return sent, frozenset()


def grow() -> tuple[Action, ...]:
    """Three slots, of which two have a cell."""
    return (*map(Reserve, range(3)), Allocate(((0, 0),)), Allocate(((1, 0),)))


@pytest.mark.parametrize("word", get_args(Batches))
@pytest.mark.parametrize("wrong", [None, *range(len(GROWS))])
@pytest.mark.parametrize("guarded", [False, True])
def test_no_part_follows_one_that_is_refused(
    word: Batches, wrong: int | None, *, guarded: bool
) -> None:
    """Wherever a batch goes wrong, its parts end there, with the reasons of the last."""
    batch = tuple((slot, at + 3 * (entry == wrong)) for entry, (slot, at) in enumerate(GROWS))
    parts, reasons = parts_until_refused(word, Allocate(batch))
    engine = Exact()
    ruled_out = {Reason.BATCH_POSITIONS} if guarded else set()
    engine.profile = evolve(engine.profile, batches=word, guarded=ruled_out)
    lockstep = Lockstep(engine)
    for grown in grow():
        lockstep.do(grown)
    del engine.sent[:]

    assert reasons == lockstep.do(Allocate(batch))

    assert (wrong is not None) == bool(reasons)
    assert parts[: len(parts) - (guarded and wrong is not None)] == engine.sent


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
