"""The share of the mapped areas of memory that a process has in use."""

import mmap
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.runtime import compiled_code, mappings

MORE = 400


@pytest.mark.skipif(sys.platform != "linux", reason="the other systems do not say")
def test_each_area_counts() -> None:
    """Areas of other rights than their neighbours are counted one by one."""
    before, most = mappings.share(), int(mappings.LIMIT.read_text())
    rights = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)
    held = [mmap.mmap(-1, mmap.PAGESIZE, prot=rights[at % 2]) for at in range(MORE)]
    grown = (mappings.share() - before) * most
    for one in held:
        one.close()

    assert 0 < before < 1
    assert MORE / 2 < grown < 2 * MORE


@pytest.mark.parametrize("limit", ["", "many", None])
def test_a_system_that_does_not_say_has_no_limit(tmp_path: Path, limit: str | None) -> None:
    """Nothing is let go of there."""
    areas, most = tmp_path / "maps", tmp_path / "limit"
    areas.write_text("one\ntwo\n")
    if limit is not None:
        most.write_text(limit)
    shares = [mappings.share(areas, most), mappings.share(tmp_path / "none", areas)]

    most.write_text("8\n")
    assert [0.0, 0.0, 0.25] == [*shares, mappings.share(areas, most)]


def test_a_released_program_is_compiled_again_once() -> None:
    """The areas of compiled programs are given back, and a call has one of them again."""
    import jax
    import jax.numpy as jnp

    twice: Any = jax.jit(lambda number: number * 2)
    three = jnp.full((), 3)
    assert 6 == int(twice(three))
    counts = [twice._cache_size()]
    compiled_code.release()
    counts.append(twice._cache_size())
    assert 6 == int(twice(three))

    assert [1, 0, 1] == [*counts, twice._cache_size()]
