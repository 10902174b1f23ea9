"""The whole state of an engine as one pytree: what jit takes, donates and returns.

Each component has a module, which makes, forks, releases and packs it, so that a field is added in
one module. Nothing here mirrors anything else but counts: `pages.counts` those of `pages.rows`,
which says which pages a slot has, and `pages.held` those of `flights.rows`.
"""

from typing import NamedTuple

from impl.models.protocol import Cache
from impl.setup import Setup
from impl.state import flights, index, outputs, pages, queue, slots
from impl.state.flights import Flights
from impl.state.index import Index
from impl.state.outputs import Outputs
from impl.state.pages import Pages
from impl.state.queue import Queue
from impl.state.slots import FINISH_CODES, NO_TOKEN, Params, Slots

__all__ = (
    "FINISH_CODES",
    "NO_TOKEN",
    "Flights",
    "Index",
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
    positions, Q queue entries, O outputs, H buckets of the index, F steps in flight; in a batch T
    tokens of B sequences, or R prompts; N where the caller says how many.
    """

    pages: Pages
    indexed: Index
    slots: Slots
    queue: Queue
    outputs: Outputs
    flights: Flights


def initial(setup: Setup) -> State:
    """The initial state: no slot used, every page free, the pool zeroed."""
    return blank_metadata(setup, setup.model.empty_cache(setup.geometry))


def blank_metadata(setup: Setup, cache: Cache) -> State:
    """The initial state around a given pool, whose bytes may be anything."""
    return State(
        pages=pages.make(setup, cache),
        indexed=index.make(setup),
        slots=slots.make(setup),
        queue=queue.make(setup),
        outputs=outputs.make(setup),
        flights=flights.make(setup),
    )
