"""What an adapter keeps for an engine with a prefix cache that has no model: texts and cells.

Such an engine manages pages alone. The adapter stands in for its scheduler, which knows the tokens
and the lengths of the sequences, and for the model, which writes the cells of the pages that the
engine names.
"""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from spec.cells import POISON
from spec.table import Batch, by_slot
from spec.vocabulary import Geometry, Tokens


@define
class Text:
    """A sequence. allocated, written: how many of its cells are."""

    context: int
    tokens: list[int] = field(factory=list)
    allocated: int = 0
    written: int = 0


@define
class Texts:
    """The sequences by slot, and the content of each cell: the tokens up to its position."""

    geometry: Geometry
    held: dict[int, Text] = field(factory=dict)
    cells: list[object] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Nothing is written yet."""
        self.reset()

    def reset(self) -> None:
        """Without sequences, and with dead cells alone."""
        self.held.clear()
        self.cells = [POISON] * (self.geometry.pages * self.geometry.page_size)

    def tokens(self, slot: int) -> Tokens:
        """The tokens of a sequence."""
        return tuple(self.held[slot].tokens)

    def key(self, slot: int, pages: int) -> tuple[int, ...]:
        """The key of the last of the first `pages` pages of a sequence, as in `View.indexed`."""
        text = self.held[slot]
        return (text.context, *text.tokens[: pages * self.geometry.page_size])

    def hit(self, slot: int, length: int) -> None:
        """The first cells are those of pages that hold them already."""
        self.held[slot].allocated = self.held[slot].written = length

    def write(self, batch: Batch, row: Callable[[int], Sequence[int]]) -> None:
        """Write the next cells of some sequences, in the pages of their rows."""
        size = self.geometry.page_size
        for slot, positions in by_slot(batch).items():
            text, pages = self.held[slot], row(slot)
            for position in positions:
                cell = pages[position // size] * size + position % size
                self.cells[cell] = tuple(text.tokens[: position + 1])
            text.written = positions[-1] + 1

    def shown(self) -> dict[str, Any]:
        """The fields of the view that the texts decide."""
        texts = [self.held.get(slot) for slot in range(self.geometry.slots)]
        return {
            "used": [text is not None for text in texts],
            "tokens": [tuple(text.tokens) if text else () for text in texts],
            "contexts": [text.context if text else 0 for text in texts],
            "allocated": [text.allocated if text else 0 for text in texts],
            "written": [text.written if text else 0 for text in texts],
            "cells": tuple(self.cells),
        }
