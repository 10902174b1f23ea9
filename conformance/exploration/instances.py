"""What is explored with the specification itself: a machine, a geometry, and an alphabet.

An alphabet is a fixed list of moves; in a state a move is an action, or there is nothing it could
mean. What is refused for want of room belongs to the legal alphabet; what a caller must not ask, to
the illegal one.
"""

from functools import cache
from typing import Final

from attrs import evolve, frozen

from conformance.rungs.record import Move
from conformance.rungs.registry import KITS
from spec import ladder
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Refusal,
    default_limits,
)
from spec.vocabulary.errors import Family

EXPLORED: Final = {kit.rung: kit for kit in KITS if kit.alphabet is not None}
"""The rungs that have an alphabet."""


def machine_of(name: str) -> Machine:
    """The machine that is explored for a rung that has an alphabet."""
    return ladder.machine(name, *EXPLORED[name].explored)


@frozen(kw_only=True)
class Instance:
    """A machine at a geometry: where it begins and what can be asked of it."""

    name: str
    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode

    @property
    def moves(self) -> tuple[Move, ...]:
        """The alphabet, legal and illegal, in a fixed order."""
        return _moves(self.name, self.geometry)

    @property
    def machine(self) -> Machine:
        """The machine that is explored."""
        return machine_of(self.name)

    def initial(self) -> State:
        """Nothing used."""
        return self.machine.initial(self.geometry, self.limits, self.cleanup)


@cache
def _moves(name: str, geometry: Geometry) -> tuple[Move, ...]:
    alphabet = EXPLORED[name].alphabet
    assert alphabet is not None
    return tuple(alphabet(geometry))


def instance(
    name: str, geometry: Geometry, cleanup: CleanupMode = CleanupMode.INCREMENTAL
) -> Instance:
    """An instance by its name. Raises InvalidInput for one that is not explored with the spec."""
    if name not in EXPLORED:
        raise InvalidInput(
            "rung", seen=name, allowed=", ".join(EXPLORED), remedy="Choose one of them."
        )
    limits = evolve(
        default_limits(geometry),
        queue=geometry.slots,
        outputs=geometry.slots,
        rounds=2,
        stops=1,
        stop_len=1,
    )
    return Instance(name=name, geometry=geometry, limits=limits, cleanup=cleanup)


def legal(refusals: frozenset[Refusal]) -> bool:
    """Whether an action may be asked: it is done, or refused for want of room alone."""
    return all(refusal.reason.family is Family.CAPACITY for refusal in refusals)
