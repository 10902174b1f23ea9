"""Rewritten modules: every mutant is one change, chosen by its number, and nothing else changes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.mutation import schemata
from conformance.mutation.operators import Mutant
from conformance.mutation.planting import exchanged, planted
from conformance.mutation.rewriting import Rewritten, rewrite, rewrite_text
from conformance.mutation.targets import GROUPS, eligible

LITTLE = '''
from jax import numpy as jnp

Reason = None


def little(rows: list[int], at: int) -> object:
    """Text, and its constant 7, are left alone."""
    assert at < 100, "so are assertions about what is static"
    guard = (at < 3, Reason.TOO_LONG, at + 9, 4)
    return rows[at] == -1 or guard


def arrays(held, at, there):
    """Gathers, scatters, masks and clamps of arrays."""
    held = held.at[at].set(7, mode="drop")
    kept = jnp.where(there & (held > 2), held, jnp.minimum(held, at))
    return kept._replace(a=1) if isinstance(kept, tuple) else kept.astype(jnp.int32)


def product(one, other):
    """A call whose arguments cannot trade places."""
    return jnp.dot(one, other)


def together(one, other):
    """An assertion about lengths."""
    return zip(one, other, strict=True)


def told(value, rule):
    """What an error says is left alone, unless it decides."""
    require("value", value, "positive", holds=value > 0)
    rule.require("value", value)
    return value == "word"


class Counter:
    """A class, in a function of which a statement can be left out."""

    def __init__(self):
        self.number = 0

    def more(self, step):
        self.number += step
        for _ in range(step):
            if step:
                self.number = self.number * 2
        return self.number
'''


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The little module, imported."""
    (tmp_path / "little_module.py").write_text(LITTLE)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("little_module")
    del sys.modules["little_module"]


def found(function: str) -> list[tuple[str, str]]:
    """The mutants of one function: operator, and what the place becomes."""
    every = rewrite_text("little_module", LITTLE).mutants
    return [(one.kind, one.after) for one in every if one.place == function]


def test_conditions_constants_indices_and_guards_are_changed() -> None:
    """Each place has its mutants, but not assertions, text, or what a refusal shows."""
    assert [
        ("guard", "Reason.TOO_LONG never refuses"),
        ("comparison", "at <= 3"),
        ("comparison", "at >= 3"),
        ("constant", "at < 4"),
        ("mask", "rows[at] == -1"),
        ("mask", "guard"),
        ("comparison", "rows[at] != -1"),
        ("comparison", "rows[at] >= -1"),
        ("index", "index 0 one higher"),
    ] == found("little")


def test_an_assertion_about_lengths_is_no_place() -> None:
    """What cannot change the result of a right program is left alone."""
    assert [] == found("together")


def test_the_words_of_an_error_do_not_trade_places() -> None:
    """A method of the same name decides by its arguments; and words have no order."""
    assert [
        ("statement", "(left out)"),
        ("comparison", "value >= 0"),
        ("comparison", "value <= 0"),
        ("constant", "value > 1"),
        ("statement", "(left out)"),
        ("arguments", "arguments 0 and 1 swapped"),
        ("comparison", "value != 'word'"),
    ] == found("told")


def test_gathers_masks_clamps_fields_and_dtypes_are_changed() -> None:
    """The operators for arrays find scatters, masks, clamps, fields and narrowed numbers."""
    kinds = [kind for kind, _ in found("arrays")]

    assert {"index", "mode", "mask", "clamp", "field", "dtype", "statement"} <= set(kinds)
    assert ("mask", "held > 2") in found("arrays")
    assert ("clamp", "its first argument") in found("arrays")
    assert ("field", "without a") in found("arrays")


def test_a_mutant_has_a_name_of_its_own() -> None:
    """No two mutants of a module have the same name, even if their texts are alike."""
    for module in ("impl.plan", "impl.steps.prefill", "spec.rung"):
        names = [one.id for one in rewrite(module).mutants]

        assert len(names) == len(set(names))


def test_without_a_choice_a_rewritten_module_is_the_module(little: ModuleType) -> None:
    """With all mutants in it and none chosen, a module does what it did."""
    with planted([rewrite("little_module")]):
        assert little.Counter().more(2) == 8
        out = little.arrays(jnp.arange(4), 1, jnp.array([True, True, False, True]))
        assert [0, 7, 1, 3] == out.tolist()


def chosen(little: ModuleType, mutant: Mutant, *given: Any) -> Any:
    """What the mutated function returns."""
    with planted([rewrite("little_module")]), schemata.choosing(mutant.number):
        return little.arrays(*given)


def test_each_mutant_is_chosen_by_its_number(little: ModuleType) -> None:
    """Choosing a number runs that change and no other: the statement left out, the other method."""
    given = (jnp.arange(4), 1, jnp.array([True, True, False, True]))
    every = {one.after: one for one in rewrite("little_module").mutants if one.place == "arrays"}

    assert [0, 1, 1, 3] == chosen(little, every["(left out)"], *given).tolist()
    assert [0, 8, 1, 3] == chosen(little, every["add"], *given).tolist()
    assert [0, 1, 1, 1] == chosen(little, every["always the second"], *given).tolist()


@pytest.mark.deep
def test_a_traced_number_chooses_as_an_int_does(little: ModuleType) -> None:
    """One executable holds all mutants: each gives what it gives compiled alone, or is static."""
    modules = [rewrite("little_module")]
    mutants = [one for one in modules[0].mutants if one.place == "arrays"]
    given = (jnp.arange(4), 1, jnp.array([True, True, False, True]))
    schemata.CHOICE.static.clear()

    def numbered(number: Any) -> Any:
        with schemata.choosing(number):
            return little.arrays(*given)

    with planted(modules):
        together = np.asarray(
            jax.jit(jax.vmap(numbered))(jnp.array([one.number for one in mutants]))
        )
        static = schemata.CHOICE.static & {one.number for one in mutants}
        for mutant, row in zip(mutants, together, strict=True):
            if mutant.number not in static:
                assert chosen(little, mutant, *given).tolist() == row.tolist(), mutant.id
    assert 0 < len(static) < len(mutants) / 2


def test_a_mutant_that_raises_is_set_aside(little: ModuleType) -> None:
    """What raises while the program is traced is recorded, and the right value is kept."""
    modules = [rewrite("little_module")]
    (swapped,) = (one for one in modules[0].mutants if one.place == "product")
    schemata.CHOICE.raising.clear()

    def numbered(number: Any) -> Any:
        with schemata.choosing(number):
            return little.product(jnp.ones((2, 3)), jnp.ones((3, 4)))

    with planted(modules):
        assert (2, 4) == jax.jit(numbered)(jnp.int32(swapped.number)).shape
    assert {swapped.number: "TypeError"} == schemata.CHOICE.raising
    assert swapped.number in schemata.CHOICE.static


def test_only_some_mutants_are_in_the_code(little: ModuleType) -> None:
    """A module that is rewritten with some of its mutants ignores the numbers of the others."""
    mutants = rewrite("little_module").mutants
    left_out = next(one for one in mutants if one.place == "Counter.more")
    other = next(one for one in mutants if one.place == "arrays")

    with schemata.choosing(left_out.number):
        with planted([rewrite("little_module", only={other.number})]):
            assert little.Counter().more(2) == 8
        with planted([rewrite("little_module", only={left_out.number})]):
            assert little.Counter().more(2) != 8


@pytest.mark.parametrize("module", ["impl.plan", "impl.engine", "spec.machines.pages"])
def test_every_function_with_mutants_can_be_exchanged(module: str) -> None:
    """No mutant is in a function that a decorator or a table hides from planting."""
    __import__(module)
    made: Rewritten = rewrite(module)
    reached = {function.__code__.co_qualname for function, _ in exchanged(made)}

    for one in made.mutants:
        assert any(one.place == name or one.place.startswith(f"{name}.") for name in reached)


def test_every_mutant_is_in_the_code() -> None:
    """None is numbered that cannot be chosen: it would survive everything."""
    for group in GROUPS.values():
        for module in group.modules:
            made = rewrite(module)
            assert {one.number for one in made.mutants} == set(numbers_in(made.code)), module


def numbers_in(code: CodeType) -> Iterator[int]:
    """The numbers of the mutants in compiled code: each is the first of (number, how, to)."""
    for held in code.co_consts:
        if isinstance(held, CodeType):
            yield from numbers_in(held)
        else:
            yield from numbers_of(held)


def numbers_of(held: object) -> Iterator[int]:
    """The numbers of the mutants in a constant."""
    match held:
        case (int(number), str(), _):
            yield number
        case tuple():
            for part in held:
                yield from numbers_of(part)


CHECKED = """
def checked(value, rows):
    if value > 2:
        raise InvalidInput("value", seen=value, allowed="1 or 2")
    _check_rows(rows)
    require("rows", rows, holds=rows < 7)
    if value > 1:
        rows = rows + 1
        raise InvalidInput("rows", seen=rows, allowed="any")
    elif value < 1:
        raise refused(Reason.VALUE)
    return rows * value


def _check_rows(rows):
    return len(rows) == 3


class Sizes:
    def __attrs_post_init__(self):
        self.width = self.width - 1
"""


def test_what_only_checks_arguments_is_told_by_the_syntax() -> None:
    """A check is what may raise InvalidInput and does nothing else, with all that is in it."""
    mutants = rewrite_text("checked_module", CHECKED).mutants

    checks = {(one.place, one.line) for one in mutants if one.checks}
    others = {(one.place, one.line) for one in mutants if not one.checks}
    assert {("checked", at) for at in (3, 4, 5, 6, 9)} | {
        ("_check_rows", 16),
        ("Sizes.__attrs_post_init__", 21),
    } == checks
    assert {("checked", at) for at in (7, 8, 10, 11, 12)} == others


@pytest.mark.deep
def test_a_check_of_arguments_is_in_the_group_of_the_driver_alone() -> None:
    """Whatever module of the engine it is in, it is Python, which is counted apart."""
    belonging = {group: {(one.module, one.checks) for one in eligible(group)} for group in GROUPS}

    compiled = belonging["contents"] | belonging["kernel"]
    modules = {*GROUPS["driver"].checked}
    assert {(module, False) for module in modules} == compiled
    assert {True} == {checks for module, checks in belonging["driver"] if module in modules}
