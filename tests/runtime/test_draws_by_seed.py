"""What a seed draws does not depend on the modules that are loaded."""

import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from conformance.fuzzing.state_machine import DRAWS
from conformance.runtime.draws_by_seed import by_seed_alone


@pytest.mark.parametrize("within", [by_seed_alone, nullcontext])
def test_a_module_that_is_loaded_changes_no_draw(
    within: Callable[[], AbstractContextManager[None]], tmp_path: Path
) -> None:
    """Without the guard it does change them: Hypothesis draws from its constants."""
    name = f"constants_{within.__name__}"
    source = tmp_path / f"{name}.py"
    source.write_text(f"NUMBERS = {[number * 1000 + 7 for number in range(200)]}\n")

    with within():
        before = drawn()
        load(name, source)
        try:
            after = drawn()
        finally:
            del sys.modules[name]

    assert (before == after) is (within is by_seed_alone)


def drawn() -> list[list[int]]:
    """The lists of a hundred examples of one seed."""
    found = list[list[int]]()

    @seed(1)
    @settings(max_examples=100, phases=[Phase.generate], database=None)
    @given(st.lists(DRAWS, min_size=10))
    def collect(numbers: list[int]) -> None:
        found.append(numbers)

    collect()
    return found


def load(name: str, source: Path) -> None:
    """Load a module that stays loaded."""
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
