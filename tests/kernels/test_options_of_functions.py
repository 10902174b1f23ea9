"""The options of a function, read from any signature that it may have."""

import sys
from itertools import product
from types import ModuleType
from typing import Any

import pytest

from conformance.kernels import jobs
from conformance.kernels.batches import SIZES, Options
from conformance.kernels.kernel_under_test import NEW_CELLS, OPTIONS, find, find_appending

ARRAYS = "q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs"
EVERY: Options = {
    "scale": 0.5,
    "soft_cap": 2.0,
    "sliding_window": 3,
    "k_scale": 4.0,
    "v_scale": 5.0,
}
OPTIONAL = ("sinks", "scales")
"""Options that are arrays."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that can be imported, for functions."""
    made = ModuleType("somebody_elses")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def put(module: ModuleType, parameters: str) -> None:
    """Give the module a function of these parameters, which returns what it was given."""
    exec(f"def kernel({ARRAYS}{parameters}): return dict(locals())", vars(module))


@pytest.mark.parametrize("anything", [True, False])
@pytest.mark.parametrize("chip", [True, False])
def test_an_option_has_the_name_that_the_function_has_for_it(
    module: ModuleType, *, chip: bool, anything: bool
) -> None:
    """Each option reaches its own parameter, or by our name one that takes anything, or none."""
    for chosen in product(*((None, *names) for names in OPTIONS.values())):
        has = {ours: name for ours, name in zip(OPTIONS, chosen, strict=True) if name}
        parameters = [f"{name}=None" for name in has.values()] + ["chip=None"] * chip
        more = ["**more"] * anything
        put(module, "".join(f", {one}" for one in ["*", *parameters, *more]) if parameters else
            "".join(f", {one}" for one in more))  # fmt: skip

        found = find("somebody_elses:kernel")

        lacked = [] if anything else [ours for ours in OPTIONS if ours not in has]
        assert lacked == found.lacks([*EVERY, *OPTIONAL])
        asked: Any = {name: value for name, value in EVERY.items() if name not in lacked}
        optional = {name: name for name in OPTIONAL if name not in lacked}
        given: Any = found.call(*range(6), options=asked, optional=optional, chip="v9")
        for ours, value in {**asked, **optional}.items():
            assert value == (given if ours in has else given["more"])[has.get(ours, ours)]
        assert ("v9" if chip else None) == given.get("chip")
        assert chip == ("chip" in found.told)
        others = {*asked, *OPTIONAL} - set(has) if anything else set()
        assert others == set(given.get("more", {}))
        static = [name for ours, name in has.items() if ours not in OPTIONAL]
        assert [*static, *["chip"] * chip] == list(found.settings)


@pytest.mark.parametrize(("ours", "theirs"), [("sinks", "attention_sink"), ("scales", "scales")])
def test_who_lacks_an_array_is_not_asked_for_it(module: ModuleType, ours: str, theirs: str) -> None:
    """Shapes with it are left out and reported, and a function that has it is given it."""
    put(module, ", *, scale=1.0, soft_cap=None, sliding_window=None, k_scale=1.0, v_scale=1.0")
    without = jobs.plan(find("somebody_elses:kernel"), cases=4, seed=0)
    having = [sizes.name for sizes in SIZES if ours in sizes.asked]

    assert having
    assert all(ours in without.left_out[name] for name in having)
    assert not {job.sizes for job in without.jobs}.intersection(having)
    put(module, f", *, {theirs}=None")
    named = find("somebody_elses:kernel")
    given: Any = named.call(*range(6), options={}, optional={ours: 7})
    assert 7 == given[theirs]
    assert ours not in jobs.plan(named, cases=4, seed=0).left_out[having[1]]


@pytest.mark.parametrize("taken", [(), NEW_CELLS[:1], NEW_CELLS[1:], NEW_CELLS, NEW_CELLS[::-1]])
def test_new_cells_need_both_of_their_names(module: ModuleType, taken: tuple[str, ...]) -> None:
    """A function writes new cells if it takes K and V, and none of them is a setting."""
    put(module, "".join(f", {one}" for one in ("*", *taken, "other=1")))

    found = find_appending("somebody_elses:kernel")

    assert (set(taken) == set(NEW_CELLS)) == (found is not None)
    assert ("other",) == find("somebody_elses:kernel").settings
