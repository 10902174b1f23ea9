"""The events of vLLM, read as a router does that knows nothing but the events."""

from collections.abc import Sequence
from typing import Any

import pytest

from conformance.engines.vllm import Told
from conformance.protocol import EngineFailed


def event(kind: str, **fields: Any) -> Any:
    """An event of this kind."""
    return type(kind, (), fields)()


def stored(
    names: Sequence[int], tokens: Sequence[int], *, parent: int | None = None, salt: str = ""
) -> Any:
    """Blocks of two tokens enter."""
    keys = [(salt,) if salt else None, *[None] * (len(names) - 1)]
    return event(
        "BlockStored",
        block_hashes=names,
        token_ids=tokens,
        parent_block_hash=parent,
        extra_keys=keys,
    )


def test_keys_are_put_together_from_what_was_told_before() -> None:
    """A block goes on where its parent ends, under the salt of the first one."""
    told = Told(2)

    first = [*told.read([stored([7, 8], [1, 2, 3, 4], salt="5")])]
    later = [*told.read([stored([9], [6, 6], parent=8), event("BlockRemoved", block_hashes=[9])])]

    assert [("stored", (5, 1, 2)), ("stored", (5, 1, 2, 3, 4))] == first
    key = (5, 1, 2, 3, 4, 6, 6)
    assert [("stored", key), ("removed", key)] == later


def test_clearing_removes_each_block_that_is_left() -> None:
    """The longest key goes first, and a key of two blocks goes twice."""
    told = Told(2)
    twice = [stored([7], [1, 2]), stored([7], [1, 2]), stored([8], [3, 4], parent=7)]
    gone = [*told.read([*twice, event("AllBlocksCleared")])][3:]

    assert [("removed", (0, 1, 2, 3, 4)), *[("removed", (0, 1, 2))] * 2] == gone
    assert [] == [*told.read([event("AllBlocksCleared")])]


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (stored([8], [3, 4], parent=7), "names the block 7, of which none told before"),
        (event("BlockRemoved", block_hashes=[7]), "names the block 7, of which none told before"),
        (event("BlockMoved"), "an event of an unknown kind: BlockMoved"),
    ],
)
def test_an_event_that_cannot_be_read_violates_evt(one: Any, says: str) -> None:
    """A router could not follow it either."""
    with pytest.raises(EngineFailed, match=says) as found:
        [*Told(2).read([one])]
    assert "EVT" == found.value.clause
