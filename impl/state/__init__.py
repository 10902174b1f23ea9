"""The whole state of an engine as one pytree: what jit takes, donates and returns.

One component a module, and each owns how it is made, forked, released and packed: a field is added
in its component alone. Nothing here is a mirror of anything else: which pages a slot holds is in
`pages.rows` alone, whether a page is free in `pages.counts` alone.
"""

from typing import NamedTuple

from impl.models.protocol import Cache
from impl.setup import Setup
from impl.state import outputs, pages, queue, slots
from impl.state.outputs import Outputs
from impl.state.pages import Pages
from impl.state.queue import Queue
from impl.state.slots import FINISH_CODES, NO_TOKEN, Params, Slots

__all__ = (
    "FINISH_CODES",
    "NO_TOKEN",
    "Outputs",
    "Pages",
    "Params",
    "Queue",
    "Slots",
    "State",
    "blank_metadata",
    "initial",
)


class State(NamedTuple):
    """The components.

    Their axes are named alike everywhere: P pages, S slots, M pages per sequence, L = M * page_size
    positions, Q queue entries, O outputs; in a batch T tokens of B sequences, or R prompts; N where
    the caller says how many.
    """

    pages: Pages
    slots: Slots
    queue: Queue
    outputs: Outputs


def initial(setup: Setup) -> State:
    """Nothing used, every page free, the pool zeroed."""
    return blank_metadata(setup, setup.model.empty_cache(setup.geometry))


def blank_metadata(setup: Setup, cache: Cache) -> State:
    """A state that knows nothing, around a pool whose bytes are whatever they are."""
    return State(
        pages=pages.make(setup, cache),
        slots=slots.make(setup),
        queue=queue.make(setup),
        outputs=outputs.make(setup),
    )
