"""States up to renaming: random names, and what an engine that looks at names is caught by."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deep import deep_after
from explore_tools import every_state, plan, silent, sizes, work_alone

from conformance.cli.main import main
from conformance.exploration import renaming
from conformance.exploration.graph import Graph
from conformance.exploration.instances import instance
from conformance.exploration.packed_states import Allocator
from conformance.exploration.search import Search
from conformance.refinement import allocator, cells, contents, names
from conformance.refinement.run import (
    Refinement,
    refine_allocator,
    refine_cells,
    refine_renamed,
)
from conformance.refinement.transition import same_observed
from conformance.refinement.vmapped import Checker, Kind, Tally, Transitions
from conformance.seeded_bugs import planted, replaced
from impl import entries
from spec.vocabulary import INVALID

SIZES: Final = (3, 2, 2, 2)
PLAN: Final = plan(SIZES, open_pages=True, illegal=True)
SETUP: Final = allocator.setup_of(sizes(SIZES))


@pytest.mark.parametrize("numbers", [SIZES, (5, 3, 1, 2), (12, 9, 1, 1)])
def test_over_its_renamings_every_slot_takes_every_name(numbers: Any) -> None:
    """Each is a bijection, and any run of as many as there are slots has all names of each."""
    geometry = sizes(numbers)
    drawn = [*names.drawn(5, 100, 40, geometry)]
    slots = np.stack([one.slots for one in drawn])
    pages = np.stack([one.pages for one in drawn])

    assert len(drawn) == max(8, geometry.slots)
    assert (np.sort(slots) == range(geometry.slots)).all()
    assert (np.sort(pages) == range(geometry.pages)).all()
    first = np.sort(slots[: geometry.slots], axis=0)
    assert (first == np.arange(geometry.slots)[:, None, None]).all()
    assert len(np.unique(pages.reshape(-1, geometry.pages), axis=0)) > geometry.pages


def test_the_names_of_a_state_depend_on_the_seed_and_its_number_alone() -> None:
    """A resumed run, which has other pieces, draws the same ones."""
    geometry = sizes((16, 4, 4, 4))

    def turn(seed: int, first: int, size: int) -> Any:
        return [*names.drawn(seed, first, size, geometry)][3]

    whole, piece = turn(1, 50, 20), turn(1, 63, 7)
    assert np.array_equal(whole.slots[13:], piece.slots)
    assert np.array_equal(whole.pages[13:], piece.pages)
    assert not np.array_equal(whole.pages, turn(2, 50, 20).pages)


def test_states_with_other_names_are_the_same_up_to_renaming() -> None:
    """Each renamed state has its canonical form, and names as drawn."""
    chosen = plan((4, 3, 2, 2), open_pages=True)
    instance, states = chosen.instance, every_state(chosen)
    for one in names.drawn(0, 0, len(states), instance.geometry):
        other = instance.named(states, one.slots, one.pages)
        assert (instance.canonical(other) == states).all()
        for at, (slots, pages) in enumerate(zip(one.slots, one.pages, strict=True)):
            lengths, rows, counts = (part[at] for part in instance.parts(states))
            new_lengths, new_rows, new_counts = (part[at] for part in instance.parts(other))
            assert (new_lengths[slots] == lengths).all()
            assert (new_counts[pages] == counts).all()
            known = {page: int(name) for page, name in enumerate(pages)}
            wanted = [[known.get(int(page), 255) for page in row] for row in rows]
            assert new_rows[slots].tolist() == wanted


def test_an_injected_state_is_renamed_as_its_packed_form() -> None:
    """Renaming commutes with injection."""
    states = every_state(plan(SIZES))[::9]

    def same(row: Any, other: Any, slots: Any, pages: Any) -> Any:
        state = names.renamed(allocator.inject(SETUP, row), slots, pages)
        return same_observed(SETUP, state, allocator.inject(SETUP, other))

    judge = jax.jit(jax.vmap(same))
    for one in names.drawn(0, 0, len(states), SETUP.geometry):
        others = Allocator(SETUP.geometry).named(states, one.slots, one.pages)
        assert judge(states, others, one.slots, one.pages).all()
        assert not judge(states, states, one.slots, one.pages).all()


def test_what_is_no_id_has_no_other_name() -> None:
    """INVALID and numbers outside stay."""
    ids = jnp.array([INVALID, -1, 3, 0, 2])

    assert [INVALID, -1, 3, 2, 1] == names.name_of(ids, jnp.array([2, 0, 1])).tolist()


class OfEntry:
    """Hands on the transitions of some entry points; of all if none is named."""

    def __init__(self, kinds: dict[str, Kind], tally: Tally, *entries: str) -> None:
        how: dict[str, Any] = {"size": 256, "sample": 0, "seed": 0, "optimise": False}
        self._checker, self._entries = Checker(kinds, tally=tally, **how), entries

    def add(self, kind: str, transitions: Transitions) -> None:
        """Check those of the entry points."""
        if not self._entries or kind in self._entries:
            self._checker.add(kind, transitions)

    def finish(self) -> None:
        """Check the rest."""
        self._checker.finish()


def refined(*entries: str) -> Refinement:
    """The renamed states of a small geometry, refined."""
    run = Refinement()
    checker = OfEntry(allocator.kinds(SETUP), run.tally, *entries)
    blind = OfEntry(allocator.blind_kinds(SETUP), run.names, *entries)
    refine_renamed(PLAN, run, checker, blind, seed=0)
    return run


def refined_cells(rung: str, sizes_: Any, *entries: str) -> Refinement:
    """The renamed states of an instance with contents, refined by legal actions."""
    run, chosen = Refinement(), instance(rung, sizes(sizes_), open_pages=True)
    setup = contents.setup_of(chosen)
    checker = OfEntry(contents.kinds(setup), run.tally, *entries)
    blind = OfEntry(contents.blind_kinds(setup), run.names, *entries)
    refine_cells(chosen, run, checker, illegal=False, blind=blind)
    return run


def test_the_engine_refines_renamed_states_and_looks_at_no_names() -> None:
    """Legal actions are checked in 8 renamings, illegal ones in one, and all of them for names."""
    run = refined()

    assert (25, 141, 724) == (run.graph.states, run.graph.transitions, run.graph.illegal)
    assert (8 * 141 + 724, 0) == (run.tally.checked, run.tally.mismatches)
    assert (141 + 724, 0) == (run.names.checked, run.names.mismatches)
    assert (None, (), ()) == (run.broken, run.history, run.names_history)


def clearing(right: Any) -> Any:
    """The slot 0 changes its seed when it is released; nobody reads it before the next prompt."""

    def wrong(state: Any, at: Any, geometry: Any) -> Any:
        after = right(state, at, geometry)
        seeds = after.slots.seeds
        cleared = seeds.at[0].set(jnp.where(jnp.any(at == 0), 99, seeds[0]))
        return after._replace(slots=after.slots._replace(seeds=cleared))

    return wrong


def leaking(right: Any) -> Any:
    """A release keeps page 0, unless it is the first page of the row."""

    def wrong(pages: Any, slots: Any, geometry: Any) -> Any:
        rows = pages.rows.at[slots].get(mode="fill", fill_value=INVALID)
        kept = jnp.any(rows[:, 1:] == 0)
        after = right(pages, slots, geometry)
        return after._replace(counts=after.counts.at[0].add(kept))

    return wrong


def highest(right: Any) -> Any:
    """The highest free pages are taken."""

    def wrong(counts: Any, size: int) -> Any:
        last = counts.shape[0] - 1
        found = right(counts[::-1], size)
        return jnp.where(found <= last, last - found, found)

    return wrong


def own_names(entry: str) -> int:
    """The mismatches of states up to renaming, each with its own names alone."""
    run = Refinement()
    refine_allocator(PLAN, run, OfEntry(allocator.kinds(SETUP), run.tally, entry))
    return run.tally.mismatches


@pytest.mark.parametrize(
    ("where", "change", "entry", "caught"),
    deep_after(
        2,
        [
            (("impl.commit", "release"), clearing, "free", (False, False, True)),
            (("impl.state.pages", "release"), leaking, "free", (False, True, True)),
            (("impl.state.pages", "lowest_free"), highest, "allocate", (True, True, False)),
        ],
    ),
    ids=["slot 0", "page 0", "an order of ids"],
)
def test_a_plant_that_looks_at_names_is_caught_by_one_half_or_the_other(
    where: tuple[str, str],
    change: Callable[[Any], Any],
    entry: str,
    caught: tuple[bool, bool, bool],  # in canonical states, in renamed ones, since names are used
) -> None:
    """Names of canonical states alone miss one plant, random ones one, and their use one."""
    with replaced(*where, change):
        run = refined(entry)
        alone = own_names(entry)

    found = (alone, run.tally.mismatches, run.names.mismatches)
    assert caught == tuple(number > 0 for number in found), found


@pytest.mark.deep
def test_a_bug_that_looks_at_no_name_is_caught_by_the_specification_alone() -> None:
    """A clone that does not count is as wrong under every name, and its history leads to it."""
    with planted("RC2"):
        run = refined("clone")

    assert (True, 0) == (run.tally.mismatches > 0, run.names.mismatches)
    *taken, rows, last = run.history
    assert rows.startswith("rows [[")
    instance, state = PLAN.instance, PLAN.instance.initial()
    moves = {str(move): move for move in instance.moves}
    for word in (*taken, last):
        found = instance.expand(state, moves[word])
        assert (found.applies[0], found.reasons[0]) == (True, 0)
        state = found.after
    held = [[int(page) for page in row if page < 255] for row in instance.parts(state)[1][0]]
    parent, child = moves[last].slot, moves[last].other
    told = json.loads(rows.removeprefix("rows "))
    assert len(told[parent]) == len(held[parent]) > 0
    assert [] == told[child]


@pytest.mark.parametrize(
    ("rung", "entries", "plant", "caught"),
    deep_after(
        1,
        [
            ("lifecycle", ("free",), None, (False, True)),
            ("lifecycle", ("clone",), "RC2", (True, False)),
            ("prefix", ("publish", "hit"), None, (False, False)),
        ],
    ),
)
def test_renamed_states_with_contents_are_refined(
    rung: str,
    entries: tuple[str, ...],
    plant: str | None,
    caught: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages, slots and tokens are renamed: one half finds one plant, the other half another."""
    work_alone(monkeypatch)
    wrong: AbstractContextManager[object] = planted(plant) if plant else nullcontext()
    if entries == ("free",):
        wrong = replaced("impl.commit", "release", clearing)
    with wrong:
        run = refined_cells(rung, (2, 2, 1, 2), *entries)

    found = run.tally.mismatches, run.names.mismatches
    assert caught == tuple(number > 0 for number in found), found
    assert (True, None) == (run.graph.complete, run.broken)
    assert run.tally.checked == 8 * run.names.checked > 0
    for told, wrong_one in zip((run.history, run.names_history), caught, strict=True):
        assert wrong_one == any(word.startswith("new names of slots [") for word in told)


@pytest.mark.parametrize(("rung", "most"), deep_after(1, [("prefix", 1_000), ("lifecycle", 1_000)]))
def test_a_renamed_state_is_encoded_as_it_is_renamed_in_the_engine(rung: str, most: int) -> None:
    """Encoding and renaming commute, where tokens keep their names."""
    chosen = instance(rung, sizes((2, 2, 1, 2)))
    setup, search = contents.setup_of(chosen), Search(chosen, Graph())
    assert search.run(update=silent, most_states=most) is None

    def same(state: Any, other: Any, slots: Any, pages: Any) -> Any:
        return same_observed(setup, names.renamed(state, slots, pages), other)

    judge, judged = jax.jit(same), 0
    for number, state in enumerate(search.states[::29]):
        naming = next(cells.namings(0, number, chosen))
        new = np.array(naming.slots), np.array(naming.pages)
        other = contents.encode(setup, renaming.renamed(state, naming))
        right = judge(contents.encode(setup, state), other, *new)
        assert right
        judged += not judge(contents.encode(setup, state), other, *(np.sort(one) for one in new))
    assert judged


def test_the_names_of_tokens_are_drawn_but_for_the_first_renaming() -> None:
    """The check of names renames no token, since what a cell holds depends on them."""
    chosen = instance("lifecycle", sizes((2, 2, 1, 2)))
    drawn = [*cells.namings(3, 7, chosen)]

    assert 8 == len(drawn) == len({one.tokens for one in drawn})
    assert tuple(range(cells.TOKENS)) == drawn[0].tokens
    assert all(sorted(one.tokens) == [*drawn[0].tokens] for one in drawn)
    assert drawn == [*cells.namings(3, 7, chosen)]


def test_the_command_says_that_names_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scope is complete up to renaming, and the counts of both halves are reported."""
    right = {
        name: Kind(name, lambda *_: jnp.ones((), bool), lambda *_: True) for name in entries.NAMES
    }
    for made in ("kinds", "blind_kinds"):
        monkeypatch.setattr(allocator, made, lambda _setup: right)
    path = tmp_path / "r.json"
    sizes_ = "pages=3,slots=2,page_size=2,pages_per_seq=2"
    words = ["refine", "--pages", "open", "--geometry", sizes_, "--json", str(path), "--quiet"]
    assert 0 == main(words)
    found = json.loads(path.read_text())

    assert "complete up to renaming; names sampled" == found["scope"]
    assert (141, 724) == (found["transitions"], found["illegal"])
    assert (8 * 141 + 724, 141 + 724) == (found["checked"], found["names_checked"])
    assert (8, 0, None) == tuple(
        found[name] for name in ("renamings", "names_mismatches", "first_names_mismatch")
    )
    assert any(line.startswith("other names") for line in found["not_checked"])
    with monkeypatch.context() as patch:
        patch.setattr(names, "drawn", lambda *given: iter([*drawn(*given)][:7]))
        assert 1 == main(words)
    assert "should be 1852" in json.loads(path.read_text())["failures"][0]


drawn: Final = names.drawn


def test_a_step_that_looks_at_names_makes_the_command_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure has its number and a shortest history, and stays if the other half holds."""
    right, wrong = (
        {name: Kind(name, partial(answer, fine), lambda *_: True) for name in entries.NAMES}
        for fine in (True, False)
    )
    monkeypatch.setattr(allocator, "kinds", lambda _setup: right)
    monkeypatch.setattr(allocator, "blind_kinds", lambda _setup: wrong)
    path = tmp_path / "r.json"
    sizes_ = "pages=1,slots=1,page_size=1,pages_per_seq=1"
    words = ["refine", "--pages", "open", "--geometry", sizes_, "--json", str(path), "--quiet"]

    assert 1 == main([*words, "--alphabet", "legal"])
    found = json.loads(path.read_text())
    steps = found["transitions"]
    told = f"{steps} steps look at names; first after rows [[]], reserve(0)"
    assert ([told], steps, 0) == (
        found["failures"],
        found["names_mismatches"],
        found["mismatches"],
    )
    assert f"FAILS: {told}" in capsys.readouterr().out


def answer(fine: bool, *_: object) -> Any:  # noqa: FBT001 - bound by position
    """A check that always has this answer."""
    return jnp.asarray(fine)
