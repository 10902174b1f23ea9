"""The ladder: bugs planted in the specification are caught by the edge that they break.

Each test plants one bug, runs a few actions that meet it, and expects the edge, or the clause, that
is the first to see it.
"""

from typing import cast

import pytest
from attrs import evolve, has
from spec_tools import (
    MACHINE,
    climb,
    counts,
    everything_freed,
    geometry,
    machine,
    planted,
    span,
)

from spec import cells, clauses, ladder, model, pool, view
from spec.machines import actions, lifecycle, naive, pages, scheduling, sharing
from spec.machines.actions import (
    Allocate,
    Append,
    Clone,
    Commit,
    Enqueue,
    Free,
    FreeFinished,
    Generate,
    Prefill,
    Propose,
    Reserve,
    Reset,
    Round,
    Sample,
    Write,
)
from spec.rung import LadderBroken, Machine, Pages, Part, Rung
from spec.state import Output, State
from spec.vocabulary import Geometry, InvalidInput, Params, Request, default_limits

PAGES = ladder.machine("pages")
SIZES = geometry(pages=8, page_size=4, slots=3, pages_per_seq=4)
SIX = (10, 11, 12, 13, 14, 15)
DRAWN = Params(max_new=5, temperature=1.0, seed=3)


def table() -> State:
    """A machine of the rung pages with six tokens written in slot 0."""
    state = PAGES.initial(SIZES, default_limits(SIZES))
    batch = span(0, 0, 6)
    for action in (Reserve(0), Append(0, SIX), Allocate(batch), Write(batch)):
        state = PAGES.climb(state, action)
    return state


def prefilled(n: int = 1) -> State:
    """A machine that has prefilled one request of n choices."""
    asked = Request(id=0, prompt=SIX, params=DRAWN, n_generations=n)
    return climb(machine(SIZES), Prefill((asked,)))


def test_an_honest_ladder_holds() -> None:
    """Without a plant the histories below pass every edge."""
    PAGES.climb(table(), Sample(0))
    state = climb(prefilled(2), Clone(0, choice=2), Round(), Enqueue(1, 7), Free(1), Generate())

    assert SIZES == climb(state, FreeFinished(), Reset()).geometry


def test_a_sample_that_skips_a_cell_breaks_cache_to_naive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not read the first cell draws another token than recomputing does."""
    state, honest = table(), model.attend
    monkeypatch.setattr(
        model, "attend", lambda token, read, draw, **_: honest(token, read[1:], draw)
    )

    with pytest.raises(LadderBroken, match=r"^cache to naive on Sample"):
        PAGES.climb(state, Sample(0))


def test_a_wrong_mapping_breaks_pages_to_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing from the end of a page towards its beginning is read back in another order."""
    monkeypatch.setattr(
        pages, "destination", lambda row, at, size: (row[at // size] + 1) * size - 1 - at % size
    )

    with pytest.raises(LadderBroken, match=r"^pages to cache on Write"):
        table()


def test_a_free_that_kills_a_neighbour_breaks_pages_to_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Freeing a sequence must leave the cells of the others alone."""
    state = table()
    for action in (Reserve(1), Append(1, (1,)), Allocate(((1, 0),)), Write(((1, 0),))):
        state = PAGES.climb(state, action)
    monkeypatch.setattr(pages, "kill", lambda found, _: cells.kill(found, range(len(found))))

    with pytest.raises(LadderBroken, match=r"^pages to cache on Free"):
        PAGES.climb(state, Free(1))


def test_a_clone_that_does_not_copy_breaks_sharing_to_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clone's own last page must hold what the parent's holds."""
    state = prefilled()
    monkeypatch.setattr(sharing, "copy_page", lambda found, *_: found)

    with pytest.raises(LadderBroken, match=r"^sharing to pages on Clone"):
        MACHINE.climb(state, Clone(0, choice=1))


def shares_the_partial_page(
    _machine: Machine, state: State, action: Clone, _pages: Pages | None
) -> State:
    """Every page is shared, the partial one too."""
    found = pages.used(state, action.parent)
    after = pages.with_sequence(state, pages.reserved_slot(state, action.child), found)
    return after._replace(counts=pool.hold(state.counts, found.row))


def test_a_clone_that_shares_the_partial_page_breaks_share() -> None:
    """SHARE sees it at once, and two edges when parent and clone write different tokens there."""
    machine = planted(MACHINE, Clone, effect=shares_the_partial_page)
    after = machine.climb(prefilled(), Clone(0, choice=1))
    same = machine.climb(after, Round())

    shared = "page 1 has 2 names, should have 1: slot 0 can write it"
    assert ("SHARE", shared) in list(clauses.violations(view.of(machine, after)))
    with pytest.raises(LadderBroken, match=r"^sharing to pages on Write"):
        machine.climb(same, Round())
    with pytest.raises(LadderBroken, match=r"^scheduling to naive on Round"):
        without_edges_below(machine).climb(same, Round())


def without_edges_below(machine: Machine) -> Machine:
    """The machine whose last rung has only the edge to naive."""
    *below, top = machine.rungs
    alone = evolve(top, edges=tuple(edge for edge in top.edges if edge.to == "naive"))
    return Machine((*below, alone), machine.registry)


def test_a_free_that_kills_shared_pages_breaks_sharing_to_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page dies with its last owner, not with the first that leaves."""
    state, honest = prefilled(2), pool.release

    def forgets_others(held: pool.Counts, row: Pages) -> pool.Counts:
        return honest(tuple(min(count, 1) for count in held), row)

    monkeypatch.setattr(pool, "release", forgets_others)

    with pytest.raises(LadderBroken, match=r"^sharing to pages on Free"):
        MACHINE.climb(state, Free(0))


def test_a_free_that_keeps_its_counts_breaks_cons(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONS sees a leak, which no edge does, since pages are private below."""
    monkeypatch.setattr(pool, "release", lambda held, _: held)

    with pytest.raises(AssertionError, match=r"'CONS', 'counts\[0\] is 1, should be 0"):
        climb(prefilled(), Free(0))


def test_a_page_given_twice_is_refused_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator that hands out a page in use is stopped by the rung that owns the rows."""
    monkeypatch.setattr(pool, "lowest_free", lambda _, wanted: (0,) * wanted)

    with pytest.raises(InvalidInput, match=r"pages: saw \(0, 0\), allowed: 2 different free"):
        prefilled()


def test_a_skipped_reset_breaks_lifecycle_to_sharing() -> None:
    """A reset without effect breaks the edge to sharing."""
    machine = planted(
        ladder.machine("lifecycle"), Reset, effect=lambda _machine, state, _action, _pages: state
    )

    with pytest.raises(LadderBroken, match=r"^lifecycle to sharing on Reset"):
        machine.climb(machine.project(prefilled()), Reset())


def test_one_draw_for_all_choices_breaks_scheduling_to_naive() -> None:
    """Every choice draws its first token with its own number."""
    honest = MACHINE.rules[Prefill].parts
    assert honest is not None

    def same_draw(machine: Machine, state: State, action: Prefill) -> tuple[Part, ...]:
        return tuple(
            (evolve(part, draw=model.draw(DRAWN, choice=0, position=6)), taken)
            if isinstance(part, Sample)
            else (part, taken)
            for part, taken in honest(machine, state, action)
        )

    lazy = planted(MACHINE, Prefill, parts=same_draw)
    asked = Prefill((Request(id=0, prompt=SIX, params=DRAWN, n_generations=2),))
    with pytest.raises(LadderBroken, match=r"^scheduling to naive on Prefill"):
        lazy.climb(machine(SIZES), asked)


def test_an_output_without_its_last_token_breaks_scheduling_to_naive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The finishing token is part of the output."""
    honest = Output
    monkeypatch.setattr(
        lifecycle,
        "Output",
        lambda request, choice, prompt, tokens, reason: honest(
            request, choice, prompt, tokens[:-1], reason
        ),
    )

    with pytest.raises(LadderBroken, match=r"^scheduling to naive on Round"):
        climb(prefilled(), *[Round()] * 4)


def test_a_finished_slot_that_is_queued_breaks_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished sequence is not decoded any further."""
    monkeypatch.setattr(State, "finished", property(lambda _: ()))

    with pytest.raises(AssertionError, match=r"'Q', 'token \d+ is queued for slot 0 position 10"):
        climb(prefilled(), *[Round()] * 4)


def test_a_wrong_draw_in_a_round_is_seen_by_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The edge takes a round's draws as they are; naive decode of the request alone does not."""
    honest = scheduling._sample
    monkeypatch.setattr(
        scheduling, "_sample", lambda state, slot, length: honest(state, slot, length + 1)
    )
    state = climb(prefilled(), *[Round()] * 4)

    assert naive.generate(SIX, DRAWN)[0] != state.outputs[0].tokens


def test_a_free_that_kills_nothing_breaks_sharing_to_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page that is taken again holds nothing of its old sequence, even past the written cells."""
    monkeypatch.setattr(pages, "kill", lambda found, _: found)
    used = everything_freed(prefilled())

    assert (0,) * 8 == counts(used)
    assert machine(SIZES) != used
    with pytest.raises(LadderBroken, match=r"^sharing to pages on Allocate"):
        climb(used, Prefill((Request(id=1, prompt=(1,), params=DRAWN),)))


def test_reading_poison_is_an_error() -> None:
    """A read set that names a dead cell raises an error."""
    with pytest.raises(ValueError, match="POISON"):
        model.attend(1, ((1,), cells.POISON), 0)


def test_what_a_lower_rung_refuses_breaks_the_edge() -> None:
    """A guard that an upper rung forgets breaks the edge to the rung that has it."""
    lax = planted(MACHINE, Clone, stages=())
    state = climb(prefilled(), Reserve(1))

    with pytest.raises(LadderBroken, match=r"^sharing to pages on Clone") as caught:
        lax.climb(state, Clone(0, 1, choice=1))
    assert "above, abstracted: done" in str(caught.value)
    assert "below: Reserve(slot=1): SLOT_USED: saw 1" in str(caught.value)


def test_what_a_lower_rung_does_otherwise_breaks_the_edge() -> None:
    """A length that an upper rung does not check is another one below."""
    lax = planted(MACHINE, Commit, stages=())
    state = prefilled()
    state = lax.fold(state, [(Propose(0, (1,)), None)])

    with pytest.raises(LadderBroken, match=r"^rollback to sharing on Commit"):
        lax.climb(state, Commit(0, 8))


def test_with_append_the_caller_has_the_queue() -> None:
    """An engine that offers Append is held to the rungs below the queue, and to its drafts."""
    assert "scheduling" in ladder.machine_for(frozenset({Reserve})).names
    appending = ladder.machine_for(frozenset({Reserve, Append}))
    assert ladder.machine("lifecycle").names == appending.names
    drafting = ladder.machine_for(frozenset({Append, Propose}))
    assert ladder.machine("lifecycle", "rollback").names == drafting.names
    whole = ladder.machine("lifecycle", "window", "rollback", "prefix")
    assert whole.names == ladder.whole_appending().names


def below(rung: Rung) -> set[str]:
    """The rungs that a rung stands on, itself among them."""
    return {rung.name}.union(*(below(one) for one in ladder.RUNGS if one.name in rung.requires))


@pytest.mark.parametrize(
    ("kind", "queued"),
    sorted(
        {(kind, "scheduling" in below(rung)) for rung in ladder.RUNGS for kind in rung.rules}
        - {(Append, False)},
        key=str,
    ),
)
def test_append_does_not_go_with_a_queue(kind: type, *, queued: bool) -> None:
    """No engine offers Append and an action of a rung that stands on the queue; both are named."""
    assert queued == (kind in ladder.not_beside(frozenset({Append})))
    beside = frozenset({Append} if queued else ())
    assert beside == ladder.not_beside(frozenset({kind, Reserve, Propose}))
    if queued:
        with pytest.raises(InvalidInput, match=f"Append beside {kind.__name__}"):
            ladder.machine_for(frozenset({Append, kind}))
    else:
        assert "scheduling" not in ladder.machine_for(frozenset({Append, kind})).names


def test_a_round_may_be_wider_than_a_prefill() -> None:
    """The width of a batch does not limit a round, on its rung or seen from lifecycle."""
    state = machine(SIZES, prefill_tokens=2, round_tokens=3)
    for slot in range(3):
        one = Request(id=slot, prompt=(1, 2), params=DRAWN)
        state = MACHINE.step(state, Prefill((one,)))

    after = MACHINE.climb(state, Round())

    assert [3, 3, 3] == [one.written for one in after.sequences if one]


def test_some_engine_may_offer_every_action() -> None:
    """No action of the vocabulary is left out, and nothing else is in it."""
    named = (one for one in vars(actions).values() if isinstance(one, type) and has(one))
    declared = {one for one in named if one.__module__ == actions.__name__}

    assert declared - {Sample} == ladder.calls()


def test_a_slot_without_a_sequence_has_none() -> None:
    """Whoever asks for it without a guard has made a mistake."""
    with pytest.raises(KeyError):
        pages.used(table(), 1)


def test_a_machine_is_not_made_for_limits_that_are_too_small() -> None:
    """The queue has an entry for each slot."""
    with pytest.raises(InvalidInput, match=r"Limits\.queue: saw 2, allowed: at least 3"):
        MACHINE.initial(SIZES, evolve(default_limits(SIZES), queue=2))


def test_a_machine_is_made_for_a_geometry() -> None:
    """Numbers alone do not say which is which."""
    with pytest.raises(InvalidInput, match=r"^geometry: saw 5"):
        MACHINE.initial(cast(Geometry, 5), default_limits(SIZES))


def test_a_sequence_without_tokens_is_not_sampled() -> None:
    """There is no last token to attend from, although none is unwritten."""
    empty = PAGES.step(PAGES.initial(SIZES, default_limits(SIZES)), Reserve(0))
    assert {"SLOT_EMPTY"} == {one.reason.name for one in PAGES.refusals(empty, Sample(0))}


def test_a_sample_needs_every_token_written() -> None:
    """The next token depends on all tokens before it."""
    state = PAGES.step(table(), Append(0, (16,)))
    assert {"SLOT_EMPTY"} == {one.reason.name for one in PAGES.refusals(state, Sample(0))}
    state = PAGES.step(PAGES.step(state, Allocate(((0, 6),))), Write(((0, 6),)))
    assert set() == PAGES.refusals(state, Sample(0))
