"""States up to renaming: random names, and what an engine that looks at names is caught by."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explore_tools import every_state, plan, sizes

from conformance.cli.main import main
from conformance.exploration.packed_states import Allocator
from conformance.refinement import allocator, names
from conformance.refinement.run import Refinement, refine_allocator, refine_renamed
from conformance.refinement.transition import same_observed
from conformance.refinement.vmapped import Checker, Kind, Tally, Transitions
from conformance.seeded_bugs import planted, replaced
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
    """Renaming commutes with injection, but for choices, which are no names."""
    states = every_state(plan(SIZES))[::9]

    def same(row: Any, other: Any, slots: Any, pages: Any) -> Any:
        state = names.renamed(allocator.inject(SETUP, row), slots, pages)
        right = allocator.inject(SETUP, other)
        held = right.slots._replace(choices=state.slots.choices)
        return same_observed(SETUP, state, right._replace(slots=held))

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
    """Hands on the transitions of one entry point; without it all."""

    def __init__(self, kinds: dict[str, Kind], tally: Tally, entry: str | None) -> None:
        how: dict[str, Any] = {"size": 256, "sample": 0, "seed": 0, "optimise": False}
        self._checker, self._entry = Checker(kinds, tally=tally, **how), entry

    def add(self, kind: str, transitions: Transitions) -> None:
        """Check those of the entry point."""
        if self._entry in {None, kind}:
            self._checker.add(kind, transitions)

    def finish(self) -> None:
        """Check the rest."""
        self._checker.finish()


def refined(entry: str | None = None) -> Refinement:
    """The renamed states of a small geometry, refined."""
    run = Refinement()
    checker = OfEntry(allocator.kinds(SETUP), run.tally, entry)
    blind = OfEntry(allocator.blind_kinds(SETUP), run.names, entry)
    refine_renamed(PLAN, run, checker, blind, seed=0)
    return run


def test_the_engine_refines_renamed_states_and_looks_at_no_names() -> None:
    """Legal actions are checked in 8 renamings, illegal ones in one, and all of them for names."""
    run = refined()

    assert (25, 141, 724) == (run.graph.states, run.graph.transitions, run.graph.illegal)
    assert (8 * 141 + 724, 0) == (run.tally.checked, run.tally.mismatches)
    assert (141 + 724, 0) == (run.names.checked, run.names.mismatches)
    assert (None, (), ()) == (run.broken, run.history, run.names_history)


def clearing(right: Any) -> Any:
    """The slot 0 forgets its choice when it is released; nobody reads it before the next one."""

    def wrong(state: Any, at: Any, geometry: Any) -> Any:
        after = right(state, at, geometry)
        choices = after.slots.choices
        cleared = choices.at[0].set(jnp.where(jnp.any(at == 0), 99, choices[0]))
        return after._replace(slots=after.slots._replace(choices=cleared))

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
    [
        (("impl.commit", "release"), clearing, "free", (False, False, True)),
        (("impl.state.pages", "release"), leaking, "free", (False, True, True)),
        (("impl.state.pages", "lowest_free"), highest, "allocate", (True, True, False)),
    ],
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


def test_the_command_says_that_names_are_sampled(tmp_path: Path) -> None:
    """The scope is complete up to renaming, and the counts of both halves are reported."""
    path = tmp_path / "r.json"
    words = [
        "refine",
        "--pages",
        "open",
        "--geometry",
        "pages=1,slots=1,page_size=1,pages_per_seq=1",
    ]
    assert 0 == main([*words, "--unbatched", "0", "--json", str(path), "--quiet"])
    found = json.loads(path.read_text())

    assert "complete up to renaming; names sampled" == found["scope"]
    assert 8 * found["transitions"] + found["illegal"] == found["checked"]
    assert found["transitions"] + found["illegal"] == found["names_checked"]
    assert (8, 0, None) == tuple(
        found[name] for name in ("renamings", "names_mismatches", "first_names_mismatch")
    )
    assert any(line.startswith("other names") for line in found["not_checked"])
