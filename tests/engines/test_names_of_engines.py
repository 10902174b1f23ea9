"""Names of engines and their calls: which engine is meant, and which calls have drifted."""

import sys
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from conformance.engines import drift, registry
from spec.vocabulary import InvalidInput

NAMES = ("self", "slot", "page")


@pytest.mark.parametrize("count", range(4))
def test_only_the_same_parameters_in_the_same_order_are_no_drift(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Parameters that are renamed, added, left out or in another order are all drift."""
    module = ModuleType("somebody_elses")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    has = NAMES[:count]
    exec(f"def call({', '.join(has)}): pass", vars(module))
    every = [names for size in range(4) for names in product(NAMES, repeat=size)]

    same = [names for names in every if not is_drift({"somebody_elses:call": names})]

    assert [has] == same


def is_drift(calls: drift.Calls) -> bool:
    """Whether an engine that has other calls is refused."""
    try:
        drift.require("somebody", calls, remedy="Install another.")
    except InvalidInput:
        return True
    return False


@pytest.mark.parametrize(
    "offered", [one for size in range(4) for one in product("ab", repeat=size)]
)
def test_a_name_is_that_of_one_engine(
    monkeypatch: pytest.MonkeyPatch, offered: tuple[str, ...]
) -> None:
    """An installed name may be offered more than once if it is of one engine, and not of two."""
    module: Any = ModuleType("somebody_elses")
    module.a, module.b = lambda: "a", lambda: "b"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    every = [SimpleNamespace(name="theirs", value=f"somebody_elses:{one}") for one in offered]
    other = SimpleNamespace(name="other", value="somebody_elses:b")
    monkeypatch.setattr(registry, "entry_points", lambda **_: [other, *every])

    if len(set(offered)) == 1:
        assert offered[0] == registry.load_engine("theirs")()
    else:
        with pytest.raises(InvalidInput, match="--engine theirs") as refused:
            registry.load_engine("theirs")
        assert bool(offered) == ("is offered as" in str(refused.value))
    assert "b" == registry.load_engine("other")()
