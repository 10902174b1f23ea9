"""The layers that are explored with the specification itself, and the moves of each.

`contents` is the lifecycle with cells, `decode` is scheduling with the integer model. A layer has a
fixed list of moves; in a state a move becomes an action, or there is nothing it could mean. What is
refused for want of room belongs to the alphabet; what a caller must not ask, to the illegal one.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, permutations, product
from typing import Final

from attrs import evolve, frozen

from spec import ladder
from spec.machines import actions as act
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import State
from spec.table import Sequence
from spec.vocabulary import (
    CleanupMode,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Refusal,
    Request,
    ResetMode,
    default_limits,
)
from spec.vocabulary.errors import Family

ToAction = Callable[[State], Action | None]


@frozen
class Move:
    """One entry of an alphabet. action: what it is in a state, None where it means nothing."""

    name: str
    action: ToAction

    def __str__(self) -> str:
        return self.name


@frozen(kw_only=True)
class Layer:
    """A layer at a geometry: where it begins and what can be asked of it."""

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
        return ladder.machine("scheduling")

    def initial(self) -> State:
        """Nothing used."""
        return self.machine.initial(self.geometry, self.limits, self.cleanup)


@cache
def _moves(name: str, geometry: Geometry) -> tuple[Move, ...]:
    return tuple(ALPHABETS[name](geometry))


def layer(name: str, geometry: Geometry, cleanup: CleanupMode = CleanupMode.INCREMENTAL) -> Layer:
    """A layer by its name. Raises InvalidInput for one that is not explored with the spec."""
    if name not in ALPHABETS:
        raise InvalidInput(
            "layer", seen=name, allowed=", ".join(ALPHABETS), remedy="Choose one of them."
        )
    limits = evolve(
        default_limits(geometry),
        queue=geometry.slots,
        outputs=geometry.slots,
        rounds=2,
        stops=1,
        stop_len=1,
    )
    return Layer(name=name, geometry=geometry, limits=limits, cleanup=cleanup)


def legal(refusals: frozenset[Refusal]) -> bool:
    """Whether an action may be asked: it is done, or refused for want of room alone."""
    return all(refusal.reason.family is Family.CAPACITY for refusal in refusals)


def fixed(action: Action, name: str) -> Move:
    """The same action in every state."""
    return Move(name, lambda _state: action)


def allocating(name: str, *places: tuple[int, int]) -> Move:
    """Allocate cells of slots: (slot, how far past what it has allocated)."""
    return Move(name, lambda state: act.Allocate(_batch(state, places, write=False)))


def writing(name: str, *places: tuple[int, int]) -> Move:
    """Write cells of slots: (slot, how far past what it has written)."""
    return Move(name, lambda state: act.Write(_batch(state, places, write=True)))


def _batch(
    state: State, places: tuple[tuple[int, int], ...], *, write: bool
) -> tuple[tuple[int, int], ...]:
    """Positions after what each slot has; from 0 if it is unused."""

    def start(slot: int) -> int:
        sequence = state.sequences[slot] or Sequence()
        return sequence.written if write else sequence.allocated

    return tuple((slot, start(slot) + offset) for slot, offset in places)


def batches(slots: range, page_size: int) -> Iterator[Move]:
    """The next cells of one slot or two, and batches that a caller must not ask for."""
    for slot, count in product(slots, range(1, page_size + 1)):
        places = tuple((slot, offset) for offset in range(count))
        yield allocating(f"allocate({slot}, {count})", *places)
        yield writing(f"write({slot}, {count})", *places)
    for low, high in combinations(slots, 2):
        yield allocating(f"allocate({high} and {low})", (high, 0), (low, 0))
    for slot in slots:
        yield allocating(f"gap({slot})", (slot, 1))
        yield allocating(f"twice({slot})", (slot, 0), (slot, 0))
        yield allocating(f"rewrite({slot})", (slot, -1))


def slots_of(
    geometry: Geometry, free: Callable[[int], int], taken: Callable[[int], int]
) -> Iterator[Move]:
    """What both layers do with slots; a slot past the last one is never legal.

    free: the choice that a child's number gives; taken: one that the parent's may have already.
    """
    ids = range(geometry.slots + 1)
    for slot in ids:
        yield fixed(act.Free(slot), f"free({slot})")
    for parent, child in product(ids, ids):
        yield fixed(act.Clone(parent, child, free(child)), f"clone({parent}, {child})")
    for parent, child in permutations(range(geometry.slots), 2):
        again = act.Clone(parent, child, taken(parent))
        yield fixed(again, f"clone_again({parent}, {child})")
    for mode in ResetMode:
        yield fixed(act.Reset(mode), f"reset({mode.value})")


def _contents(geometry: Geometry) -> Iterator[Move]:
    """Prompts of two kinds, as long as they can be; a sequence's choice is its slot."""
    ids = range(geometry.slots + 1)
    for slot in ids:
        yield fixed(act.Reserve(slot), f"reserve({slot})")
    for slot, first in product(ids, (1, 2)):
        prompt = (first,) * max(1, geometry.max_len - 1)
        assign = act.Assign(slot, prompt, Params(max_new=1), 1, slot)
        yield fixed(assign, f"assign({slot}, {first})")
    for slot in range(geometry.slots):
        yield assign_another(slot, geometry.slots)
    for slot, other in permutations(range(geometry.slots), 2):
        yield assign_again(slot, other)
    yield from batches(range(geometry.slots), geometry.page_size)
    yield from slots_of(geometry, lambda child: child, lambda parent: parent)


def assign_another(slot: int, choice: int) -> Move:
    """Give a slot that has a prompt another one, as a choice that nobody has."""

    def action(state: State) -> act.Assign | None:
        there = state.details[slot] is not None
        return act.Assign(slot, (1,), Params(max_new=1), 1, choice) if there else None

    return Move(f"assign_another({slot})", action)


def assign_again(slot: int, other: int) -> Move:
    """Give a slot the choice that another one has; only where that one has it."""

    def action(state: State) -> act.Assign | None:
        there = state.details[other] is not None
        return act.Assign(slot, (1,), Params(max_new=1), 1, other) if there else None

    return Move(f"assign_again({slot}, {other})", action)


PROMPTS: Final = ((1,), (2, 1))


def _decode(geometry: Geometry) -> Iterator[Move]:
    """Two requests, each of one choice or two, that end by their limit or by a stop sequence.

    A clone is the second choice of its request. The twins live for a round, so that one of them can
    end before the other: its output then waits while the request goes on.
    """
    for number, prompt, choices, new in product((1, 2), PROMPTS, (1, 2), (1, 3)):
        request = Request(
            id=number,
            prompt=prompt,
            params=Params(
                max_new=new,
                stops=((3,),)[: len(prompt) - 1],
                temperature=float(len(prompt) - 1),
                seed=number,
            ),
            n_generations=choices,
        )
        yield fixed(act.Prefill((request,)), f"prefill({number}: {prompt} x {choices}, {new})")
    pair = tuple(
        Request(id=number, prompt=prompt, params=Params(max_new=2))
        for number, prompt in zip((1, 2), PROMPTS, strict=True)
    )
    yield fixed(act.Prefill(pair), "prefill(both)")
    twins = Request(id=1, prompt=(1,), params=Params(max_new=2), n_generations=2)
    yield fixed(act.Prefill((twins,)), "prefill(twins)")
    yield fixed(act.Round(), "round")
    yield fixed(act.Generate(), "generate")
    yield fixed(act.FreeFinished(), "free_finished")
    yield fixed(act.TakeOutputs(), "take_outputs")
    yield fixed(act.Pack(), "pack")
    for slot in range(geometry.slots + 1):
        yield fixed(act.Enqueue(slot, 1), f"enqueue({slot})")
        yield fixed(act.Purge(slot), f"purge({slot})")
    for slot in range(geometry.slots):
        yield allocating(f"allocate({slot}, 1)", (slot, 0))
        yield writing(f"write({slot}, 1)", (slot, 0))
    yield from slots_of(geometry, lambda _child: 1, lambda _parent: 0)


ALPHABETS: Final[dict[str, Callable[[Geometry], Iterator[Move]]]] = {
    "contents": _contents,
    "decode": _decode,
}
"""The moves of each layer at a geometry."""
