"""Defaults that are documented, and others."""

from functools import partial
from typing import Any

import pytest
from deep import deep_after

from conformance.numerics import documented_defaults
from impl.attention import reference


def test_the_defaults_are_those_that_are_documented() -> None:
    """Of the rows of q and of the pages in a block, and of the blocks in a step."""
    assert [] == [*documented_defaults.differences()]


@pytest.mark.parametrize(
    ("name", "wrong"),
    deep_after(
        1,
        [
            ("_block_pages", lambda pool, _: max(2, 256 // pool.page_size)),
            ("_block_pages", lambda pool, dim: max(1, (512, 256)[dim > 128] // pool.page_size)),
            ("_step_elements", lambda: 1 << 20),
            ("ragged_paged_attention", partial(reference.ragged_paged_attention, q_block=16)),
        ],
    ),
    ids=["two pages", "of one head", "several blocks", "sixteen rows"],
)
def test_other_defaults_are_noticed(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever number is another one."""
    monkeypatch.setattr(reference, name, wrong)

    assert [*documented_defaults.differences()]
