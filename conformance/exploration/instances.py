"""Instances that are explored with the specification: a machine, a geometry and an alphabet.

An alphabet is a fixed list of moves. In a given state a move is an action, or has no meaning. The
action is in the legal alphabet if it is done, or refused for lack of capacity alone; it is in the
illegal alphabet if it is refused for another reason.
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
PACKED: Final = "sharing"
"""The rung that is searched in packed states instead, with an alphabet of its own."""
SYMMETRIC: Final = ("lifecycle", "prefix")
"""The rungs in which slots and tokens, too, are names that nothing depends on.

In the others slots decide the order of queue and outputs, and tokens what the model draws.
"""
RUNGS: Final = tuple(kit.rung for kit in KITS if kit.rung == PACKED or kit.rung in EXPLORED)
"""The rungs that can be searched, in the order of the ladder."""


@frozen(kw_only=True)
class Instance:
    """A machine at a geometry, with its initial state and its alphabet.

    left_out: the kinds of moves that are not taken. open_pages: states that differ in the names of
    pages alone count as one, in SYMMETRIC those that differ in names of slots and tokens too; the
    first that is reached stands for the others.
    """

    name: str
    geometry: Geometry
    limits: Limits
    cleanup: CleanupMode
    left_out: tuple[str, ...] = ()
    open_pages: bool = False

    @property
    def open_names(self) -> bool:
        """Whether states count as one that differ in the names of pages, slots and tokens."""
        return self.open_pages and self.name in SYMMETRIC

    @property
    def moves(self) -> tuple[Move, ...]:
        """The alphabet, legal and illegal, in a fixed order."""
        return _moves(self.name, self.geometry, self.limits, self.left_out)

    @property
    def machine(self) -> Machine:
        """The explored machine."""
        return machine(self.name)

    def initial(self) -> State:
        """The initial state: no slot and no page is in use."""
        return self.machine.initial(self.geometry, self.limits, self.cleanup)


def machine(name: str) -> Machine:
    """The machine that is explored for a rung."""
    return ladder.machine(name, *(EXPLORED[name].explored if name in EXPLORED else ()))


def kind_of(move: Move) -> str:
    """The name of a move without its arguments."""
    return move.name.partition("(")[0]


@cache
def _moves(
    name: str, geometry: Geometry, limits: Limits, left_out: tuple[str, ...]
) -> tuple[Move, ...]:
    alphabet = EXPLORED[name].alphabet
    assert alphabet is not None
    return tuple(move for move in alphabet(geometry, limits) if kind_of(move) not in left_out)


def instance(
    name: str,
    geometry: Geometry,
    cleanup: CleanupMode = CleanupMode.INCREMENTAL,
    *,
    stop_len: int = 1,
    left_out: tuple[str, ...] = (),
    open_pages: bool = False,
) -> Instance:
    """An instance by its name, a rung of EXPLORED. stop_len: tokens of a stop sequence, 1 or 2.

    Raises InvalidInput for any other name, or if a kind of move that is left out has no moves.
    """
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
        stop_len=stop_len,
    )
    kinds = sorted(set(map(kind_of, _moves(name, geometry, limits, ()))))
    if not set(left_out) <= set(kinds):
        raise InvalidInput(
            "leave-out",
            seen=", ".join(left_out),
            allowed=", ".join(kinds),
            remedy="Name kinds of moves of this rung.",
        )
    return Instance(
        name=name,
        geometry=geometry,
        limits=limits,
        cleanup=cleanup,
        left_out=left_out,
        open_pages=open_pages,
    )


def legal(refusals: frozenset[Refusal]) -> bool:
    """Whether an action with these refusals is legal: there are none but for lack of capacity."""
    return all(refusal.reason.family is Family.CAPACITY for refusal in refusals)
