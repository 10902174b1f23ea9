"""The suites of the vectors. Each has a small geometry, and moves that are tried in every state.

The level of a suite is the highest rung that it needs. `lifecycle` needs a table and its counts,
once with pages of two cells and once with pages of one. `scheduling` needs the integer model of
`spec.model` too: every token that is drawn there depends on every cell that is read. `rollback`
adds drafts to it, at one slot; `window` a window, behind which pages are released. `admission`
needs a host: a request waits until the pages of its worst case are free. `prefix` needs an index of
pages: beside a table, beside a queue, and beside rounds and admission, which take idle pages.
`chunks` adds rounds that read prompts in parts, `preemption` requests that give their slots back,
and `flights` steps that are dispatched before earlier ones are known.
"""

from collections.abc import Iterator
from functools import cache
from itertools import combinations, permutations
from typing import Final

from attrs import evolve, frozen

from conformance.exploration import instances
from conformance.exploration.instances import Instance
from conformance.recordings.fast_table import ACTIONS
from conformance.rungs import shared_moves
from conformance.rungs.record import Move
from conformance.rungs.shared_moves import allocating, fixed, writing
from spec import ladder
from spec.machines import actions as act
from spec.machines import naive
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import CleanupMode, Geometry, Params, Request, ResetMode

TABLE: Final = (
    Geometry(pages=3, page_size=2, slots=2, pages_per_seq=3),
    Geometry(pages=3, page_size=1, slots=3, pages_per_seq=2),
)
_ROUNDS: Final = frozenset({act.Pack, act.Purge, act.Prefill, act.Round, act.Generate})
_INDEX: Final = frozenset({act.Publish, act.Hit, act.Share, act.Merge, act.Evict, act.Drop})
_SMALL: Final = Geometry(pages=3, page_size=2, slots=2, pages_per_seq=2)
_PARAMS: Final = Params(max_new=3, stops=((1, 5727), (4587,)))
"""The first stop sequence begins in the prompt and must not match; the second ends at the limit."""


@frozen(kw_only=True)
class Decode:
    """A suite of the level `scheduling`. left_out: prefixes of the names of the moves left out.

    Some moves are left out because the graph would be too large with all of them. With
    `CleanupMode.NONE` finished sequences stay until they are freed, so that actions meet them.
    """

    name: str
    geometry: Geometry
    cleanup: CleanupMode
    round_tokens: int
    prefill_tokens: int
    actions: frozenset[type]
    left_out: tuple[str, ...]


DECODE: Final = (
    Decode(
        name="decode",
        geometry=_SMALL,
        cleanup=CleanupMode.NONE,
        round_tokens=1,
        prefill_tokens=4,
        actions=(ACTIONS - {act.Reserve, act.Assign, act.Allocate, act.Write})
        | _ROUNDS
        | {act.Enqueue},
        left_out=(
            *("reserve", "assign", "allocate", "write", "enqueue(1", "purge(1", "clone(1"),
            *("prefill(three", "prefill(wide"),
        ),
    ),
    Decode(
        name="mixed",
        geometry=_SMALL,
        cleanup=CleanupMode.NONE,
        round_tokens=1,
        prefill_tokens=4,
        actions=ACTIONS | _ROUNDS,
        left_out=(
            *("enqueue", "purge(1", "clone(1", "free(1"),
            *("prefill(three", "prefill(wide"),
        ),
    ),
    Decode(
        name="batches",
        geometry=Geometry(pages=4, page_size=2, slots=3, pages_per_seq=3),
        cleanup=CleanupMode.INCREMENTAL,
        round_tokens=3,
        prefill_tokens=4,
        actions=frozenset(
            {
                act.Prefill,
                act.Round,
                act.Generate,
                act.Enqueue,
                act.Free,
                act.Reserve,
                act.TakeOutputs,
            }
        ),
        left_out=(
            *("reserve()", "assign", "allocate", "write", "clone", "purge", "Pack"),
            *("enqueue(1", "prefill(long", "FreeFinished", "Reset"),
        ),
    ),
)


@frozen(kw_only=True)
class Suite:
    """The vectors of one level at one geometry.

    name: the first part of the names of files. moves: the moves that are tried in every state.
    actions: the classes of action that belong to the level, whether or not a move takes them.
    texts: whether the next states depend on the values of tokens, and not on their number alone.
    """

    name: str
    level: str
    instance: Instance
    moves: tuple[Move, ...]
    actions: frozenset[type]
    texts: bool

    @property
    def machine(self) -> Machine:
        """The machine of the specification that is recorded."""
        return ladder.machine_for(self.actions)

    @property
    def names(self) -> list[str]:
        """The names of the actions of the level, sorted."""
        return sorted(action.__name__ for action in self.actions)

    def initial(self) -> State:
        """The initial state: no slot is used, and no request is waiting."""
        chosen = self.instance
        return self.machine.initial(chosen.geometry, chosen.limits, chosen.cleanup)


@cache
def suites() -> tuple[Suite, ...]:
    """Every suite, in the order of the files."""
    return (
        *map(_table_suite, TABLE),
        _requests_suite(),
        *map(_decode_suite, DECODE),
        _rollback_suite(),
        _window_suite(),
        _index_suite(),
        _hits_suite(),
        _idle_suite(),
        _chunks_suite(),
        _preemption_suite(),
        _ahead_suite(),
        _flights_suite(),
    )


def absent() -> tuple[str, ...]:
    """The actions that are in no suite, by name."""
    present = set[str]().union(*(one.names for one in suites()))
    return tuple(sorted({kind.__name__ for kind in ladder.whole().calls} - present))


def pairs_apart() -> dict[tuple[str, ...], tuple[str, ...]]:
    """The pairs of actions that no suite has together, by name.

    Every action of a key forms such a pair with every action of its value. A pair is listed once.
    Both actions are in some suite.
    """
    names = set[str]().union(*(one.names for one in suites()))
    apart = {
        name: names.difference(*(one.names for one in suites() if name in one.names))
        for name in names
    }
    pairs: dict[tuple[str, ...], tuple[str, ...]] = {}
    for others in sorted(map(sorted, apart.values()), key=lambda others: (-len(others), others)):
        left = set(others).difference(*pairs)
        if left:
            pairs[tuple(sorted(name for name in names if sorted(apart[name]) == others))] = tuple(
                sorted(left)
            )
    return pairs


def _requests_suite() -> Suite:
    geometry = Geometry(pages=4, page_size=2, slots=3, pages_per_seq=2)
    chosen = instances.instance("scheduling", geometry, CleanupMode.END)
    once = (act.Admit(), act.Round(), act.Generate(), act.TakeOutputs(), act.Reset())
    asked: tuple[Action, ...] = (*once, *map(act.Submit, _submitted(geometry)))
    return Suite(
        name="requests",
        level="admission",
        instance=evolve(chosen, limits=evolve(chosen.limits, round_tokens=2)),
        moves=tuple(fixed(action, str(action)) for action in asked),
        actions=frozenset(map(type, asked)),
        texts=True,
    )


def _rollback_suite() -> Suite:
    """The alphabet of the rung at one slot: a draft is truncated or committed at every length."""
    geometry = Geometry(pages=2, page_size=2, slots=1, pages_per_seq=3)
    chosen = instances.instance("rollback", geometry)
    return Suite(
        name="rollback",
        level="rollback",
        instance=chosen,
        moves=chosen.moves,
        actions=(ACTIONS - {act.Assign, act.Clone})
        | (_ROUNDS - {act.Generate})
        | {act.Enqueue, act.Propose, act.Commit, act.Truncate},
        texts=True,
    )


def _window_suite() -> Suite:
    """A sequence loses pages while it goes on: shared, in the index, below drafts."""
    geometry = Geometry(pages=3, page_size=2, slots=2, pages_per_seq=4, window=2)
    chosen = instances.instance("window", geometry)
    asked: tuple[Action, ...] = (
        act.Prefill((Request(id=1, prompt=(2, 2, 2), params=Params(max_new=4)),)),
        act.Round(),
        *(act.Release(0, before) for before in (2, 3, 4)),
        *(act.Release(slot, 2) for slot in (1, geometry.slots)),
        act.Clone(0, 1, 1),
        act.Propose(0, (4,)),
        *(act.Truncate(0, length) for length in (3, 4)),
        *(act.Publish(0, length) for length in (2, 4)),
        act.Merge(0, 0),
        act.Reserve(1),
        act.Assign(1, (2, 2, 2), Params(max_new=1), 2),
        act.Share(0, 1, 2),
        *map(act.Free, range(geometry.slots)),
    )
    return Suite(
        name="window",
        level="window",
        instance=chosen,
        moves=(
            *(fixed(action, str(action)) for action in asked),
            allocating("allocate(0)", (0, 0)),
        ),
        actions=frozenset({*map(type, asked), act.Allocate}),
        texts=True,
    )


def _index_suite() -> Suite:
    """The alphabet of the rung: one text in two slots, in chains of pages with one cell."""
    geometry = Geometry(pages=3, page_size=1, slots=2, pages_per_seq=3)
    chosen = instances.instance("prefix", geometry)
    return Suite(
        name="index",
        level="prefix",
        instance=chosen,
        moves=(
            *chosen.moves,
            fixed(act.Merge(geometry.slots, 0), "merge(none, 0)"),
            fixed(act.Share(geometry.slots, 0, 1), "share(none, 0, 1)"),
        ),
        actions=(ACTIONS - {act.FreeFinished, act.TakeOutputs}) | _INDEX | {act.Truncate},
        texts=True,
    )


def _hits_suite() -> Suite:
    """A page is found by a text whose end is queued, under the same context and another one."""
    return _prefilled(
        "hits",
        act.Prefill((_PUBLISHED,)),
        *(act.Reserve(None, context) for context in (0, 1)),
        act.Assign(1, (2,), Params(max_new=4), 3),
        act.Enqueue(1, 2),
        act.Pack(),
        act.Publish(0, 2),
        act.Hit(1, 2),
        act.Share(0, 1, 2),
        act.Free(0),
    )


def _idle_suite() -> Suite:
    """Every action that takes pages takes an idle one; and a page is shared below drafts."""
    return _prefilled(
        "idle",
        act.Prefill((_PUBLISHED,)),
        act.Round(),
        act.Submit(Request(id=2, prompt=(2, 2, 2), params=Params(max_new=1))),
        act.Admit(),
        act.Reserve(),
        act.Assign(1, (2, 2, 2), Params(max_new=2), 3),
        act.Propose(0, (4,)),
        act.Clone(0, 1, 1),
        *(act.Publish(0, length) for length in (2, 3)),
        act.Hit(1, 2),
        act.Share(0, 1, 2),
        act.Free(0),
        act.FreeFinished(),
    )


def _chunks_suite() -> Suite:
    """Two prompts are read in parts: after a hit too, beside a queued token, and to a stop."""
    geometry = Geometry(pages=2, page_size=2, slots=2, pages_per_seq=2)
    text = (1, 1, 1)
    first, _ = naive.generate(text, Params(max_new=1))
    chunks = (((0, 1),), ((0, 2),), ((1, 1),), ((2, 1),), ((1, 1), (0, 1)), ((0, 1), (0, 1)), ())
    asked: tuple[Action, ...] = (
        *map(act.Reserve, range(geometry.slots)),
        act.Assign(0, text, Params(max_new=1), 1),
        act.Assign(0, (4,), Params(max_new=3), 3),
        act.Assign(1, text, Params(max_new=1, stops=(first,)), 2),
        act.Propose(0, (1,)),
        act.Publish(0, 2),
        act.Hit(1, 2),
        *map(act.MixedRound, chunks),
        act.Free(0),
    )
    return Suite(
        name="chunks",
        level="chunks",
        instance=instances.instance("chunks", geometry, CleanupMode.NONE),
        moves=(
            *(fixed(action, str(action)) for action in asked),
            allocating("allocate(0)", (0, 0)),
        ),
        actions=frozenset({*map(type, asked), act.Allocate}),
        texts=True,
    )


def _preemption_suite() -> Suite:
    """Two choices of a request are read, preempted and replayed; one may have finished."""
    geometry = Geometry(pages=2, page_size=2, slots=2, pages_per_seq=2)
    text, rounds = (1, 1), (((0, 1),), ((0, 2),), ((1, 2),), ())
    asked: tuple[Action, ...] = (
        *map(act.Reserve, range(geometry.slots)),
        act.Assign(0, text, Params(max_new=2), 1, 0),
        act.Assign(1, text, Params(max_new=1), 1, 1),
        act.Propose(0, (1,)),
        act.Purge(0),
        *map(act.MixedRound, rounds),
        *(act.Replay(slot, (2,)) for slot in range(geometry.slots + 1)),
        *(act.Preempt(1), act.Preempt(2)),
        act.Free(0),
    )
    return Suite(
        name="preemption",
        level="preemption",
        instance=instances.instance("preemption", geometry, CleanupMode.NONE),
        moves=tuple(fixed(action, str(action)) for action in asked),
        actions=frozenset(map(type, asked)),
        texts=True,
    )


def _ahead_suite() -> Suite:
    """One slot is a step or two ahead, while every other action is asked for it."""
    geometry = Geometry(pages=2, page_size=2, slots=1, pages_per_seq=2)
    chunks = (((0, 1),), ((0, 2),), ((0, 3),), ((1, 1),), ())
    asked: tuple[Action, ...] = (
        act.Reserve(0),
        act.Assign(0, (1, 1), Params(max_new=2), 1),
        *map(act.Dispatch, chunks),
        *(act.Retire(), act.Deliver()),
        *(act.Propose(0, (1,)), act.Commit(0, 3), act.Truncate(0, 1), act.Purge(0)),
        *(act.Enqueue(0, 1), act.Replay(0, (1,)), act.Round(), act.MixedRound(((0, 1),))),
        *(act.Free(0), act.Reset(), act.TakeOutputs()),
    )
    return Suite(
        name="ahead",
        level="flights",
        instance=instances.instance("flights", geometry, CleanupMode.NONE),
        moves=(
            *(fixed(action, str(action)) for action in asked),
            *(allocating("allocate(0)", (0, 0)), writing("write(0)", (0, 0))),
        ),
        actions=frozenset({*map(type, asked), act.Allocate, act.Write}),
        texts=True,
    )


def _flights_suite() -> Suite:
    """Two sequences are dispatched; one ends meanwhile, by a stop or since it is preempted."""
    geometry = Geometry(pages=2, page_size=2, slots=2, pages_per_seq=2)
    text = (1,)
    first, _ = naive.generate(text, Params(max_new=1))
    chunks = (((0, 1),), ((1, 1),), ((2, 1),), ((0, 1), (1, 1)), ((0, 1), (0, 1)))
    asked: tuple[Action, ...] = (
        *map(act.Reserve, range(geometry.slots)),
        act.Assign(0, (1, 1), Params(max_new=2), 1),
        act.Assign(1, text, Params(max_new=3, stops=(first,)), 2),
        *map(act.Dispatch, chunks),
        *(act.Retire(), act.Deliver()),
        *(act.Preempt(1), act.FreeFinished()),
        act.Clone(0, 1, 1),
    )
    return Suite(
        name="flights",
        level="flights",
        instance=instances.instance("flights", geometry, CleanupMode.NONE),
        moves=tuple(fixed(action, str(action)) for action in asked),
        actions=frozenset(map(type, asked)),
        texts=True,
    )


_PUBLISHED: Final = Request(id=1, prompt=(2, 2), params=Params(max_new=3))
"""Its prompt is a whole page, which enters the index."""


def _prefilled(name: str, *asked: Action) -> Suite:
    """A suite of an index beside prefills; finished sequences stay, so that actions meet them."""
    geometry = Geometry(pages=3, page_size=2, slots=2, pages_per_seq=3)
    return Suite(
        name=name,
        level="prefix",
        instance=instances.instance("scheduling", geometry, CleanupMode.NONE),
        moves=tuple(fixed(action, str(action)) for action in asked),
        actions=frozenset(map(type, asked)),
        texts=True,
    )


def _submitted(geometry: Geometry) -> tuple[Request, ...]:
    """Six requests: two that do not fit together, one that fits beside either of them, and three
    that are always refused.
    """
    most, two = geometry.max_len, Params(max_new=2, temperature=1.0)
    return (
        Request(id=1, prompt=(2, 1), params=two, n_generations=2),
        Request(id=2, prompt=(3,), params=Params(max_new=most - 1)),
        Request(id=3, prompt=(1,), params=Params(max_new=1)),
        Request(id=4, prompt=(1,) * most, params=Params(max_new=1)),
        Request(id=5, prompt=(1,), params=two, n_generations=geometry.slots + 1),
        Request(id=6, prompt=(1,), params=Params(max_new=1, stops=((1, 2),))),
    )


def _table_suite(geometry: Geometry) -> Suite:
    return Suite(
        name=f"table-{geometry.page_size}",
        level="lifecycle",
        instance=instances.instance("lifecycle", geometry),
        moves=tuple(table_moves(geometry)),
        actions=ACTIONS,
        texts=False,
    )


def _decode_suite(one: Decode) -> Suite:
    chosen = instances.instance("scheduling", one.geometry, one.cleanup)
    limits = evolve(
        chosen.limits,
        round_tokens=one.round_tokens,
        prefill_tokens=one.prefill_tokens,
        stops=2,
        stop_len=2,
    )
    moves = _decode(one.geometry)
    return Suite(
        name=one.name,
        level="scheduling",
        instance=evolve(chosen, limits=limits),
        moves=tuple(move for move in moves if not move.name.startswith(one.left_out)),
        actions=one.actions,
        texts=True,
    )


def _decode(geometry: Geometry) -> Iterator[Move]:
    """Prefills of requests with one and with two choices, and the other actions on their slots."""
    for name, requests in _prefills(geometry).items():
        yield fixed(act.Prefill(requests), f"prefill({name})")
    once: tuple[Action, ...] = (
        act.Round(),
        act.Generate(),
        act.Pack(),
        act.FreeFinished(),
        act.TakeOutputs(),
    )
    for action in (*once, *map(act.Reset, ResetMode)):
        yield fixed(action, str(action))
    for slot in (0, 1, geometry.slots):
        yield fixed(act.Enqueue(slot, 1), f"enqueue({slot})")
        yield fixed(act.Purge(slot), f"purge({slot})")
        yield fixed(act.Free(slot), f"free({slot})")
    for parent, child in ((0, 1), (1, 0), (0, 0), (0, geometry.slots)):
        yield fixed(act.Clone(parent, child, 1), f"clone({parent}, {child})")
    yield fixed(act.Reserve(), "reserve()")
    yield fixed(act.Reserve(0), "reserve(0)")
    yield fixed(act.Assign(0, (3, 3), Params(max_new=2), 3), "assign(0)")
    yield allocating("allocate(0)", (0, 0), (0, 1))
    yield writing("write(0)", (0, 0))


def _prefills(geometry: Geometry) -> dict[str, tuple[Request, ...]]:
    most = geometry.max_len
    alone = Request(id=2, prompt=(1,), params=_PARAMS)
    drawn = Params(max_new=most - 2, temperature=1.0)
    several = Request(id=1, prompt=(2, 1), params=drawn, n_generations=2)
    twice = Request(id=4, prompt=(4,), params=Params(max_new=2), n_generations=2)
    return {
        "several": (several,),
        "alone": (alone,),
        "both": (several, alone),
        "three": (twice, alone),
        "wide": (Request(id=3, prompt=(3, 1, 2), params=Params(max_new=1)),),
        "long": (Request(id=3, prompt=(1,) * most, params=Params(max_new=1)),),
        "none": (),
    }


def table_moves(geometry: Geometry) -> Iterator[Move]:
    """Every action on a table. The prompt of a slot repeats the slot's number plus one."""
    slots, longest = range(geometry.slots), geometry.max_len
    yield fixed(act.Reserve(), "reserve()")
    for slot in range(geometry.slots + 1):
        yield fixed(act.Reserve(slot), f"reserve({slot})")
        prompt, params = (slot + 1,) * (longest - 1), Params(max_new=1)
        yield fixed(act.Assign(slot, prompt, params, 1, slot), f"assign({slot})")
        long = act.Assign(slot, (1,) * longest, params, 1, slot)
        yield fixed(long, f"assign_long({slot})")
        stopped = act.Assign(slot, prompt, Params(max_new=1, stops=((1, 2),)), 1, slot)
        yield fixed(stopped, f"assign_stops({slot})")
    for slot in slots:
        yield shared_moves.assign_another(slot, geometry.slots)
        yield shared_moves.clone_to_any(slot)
    for slot, other in permutations(slots, 2):
        yield shared_moves.assign_again(slot, other)
    yield from shared_moves.batches(slots, geometry.page_size)
    yield from _batches(geometry)
    yield from shared_moves.slots_of(geometry, lambda child: child, lambda parent: parent)
    yield fixed(act.FreeFinished(), "free_finished")
    yield fixed(act.TakeOutputs(), "take_outputs")


def _batches(geometry: Geometry) -> Iterator[Move]:
    """Batches other than the next cells of one slot: several slots, padding, empty, too long."""
    slots = range(geometry.slots)
    yield fixed(act.Allocate(((geometry.slots, 0),)), "allocate(none)")
    yield fixed(act.Write(((geometry.slots, 0),)), "write(none)")
    for low, high in combinations(slots, 2):
        yield _padded(allocating("", (high, 0), (low, 0)), f"allocate({high}, padding, {low})")
        yield writing(f"write({high} and {low})", (high, 0), (low, 0))
        yield _padded(writing("", (high, 0), (low, 0)), f"write({high}, padding, {low})")
    wide = tuple((0, offset) for offset in range(geometry.max_len + 2 * geometry.slots + 1))
    yield allocating("allocate(wide)", *wide)
    yield writing("write(wide)", *wide)
    yield fixed(act.Allocate(()), "allocate()")
    yield fixed(act.Write((None,)), "write(padding)")


def _padded(move: Move, name: str) -> Move:
    """A move with padding after the first entry of its batch."""

    def action(state: State) -> Action:
        asked = move.action(state)
        assert isinstance(asked, act.Allocate | act.Write)
        return evolve(asked, batch=(asked.batch[0], None, *asked.batch[1:]))

    return Move(name, action)
