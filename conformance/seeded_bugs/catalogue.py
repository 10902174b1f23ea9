"""The catalogue of plants: each is the smallest change of our engine that reproduces a real bug.

The mechanisms are rebuilt from the public threads that describe them; no code is taken.
"""

from typing import Final

from conformance.seeded_bugs import (
    Plant,
    attention,
    chunks,
    counts_and_clones,
    flights,
    lifecycle,
    pages,
    preemption,
    prefix,
    requests,
    rollback,
    window,
)

FAMILIES: Final[dict[str, tuple[Plant, ...]]] = {
    "pages": pages.PLANTS,
    "clones": counts_and_clones.PLANTS,
    "lifecycle": lifecycle.PLANTS,
    "requests": requests.PLANTS,
    "rollback": rollback.PLANTS,
    "attention": attention.PLANTS,
    "prefix": prefix.PLANTS,
    "chunks": chunks.PLANTS,
    "window": window.PLANTS,
    "preemption": preemption.PLANTS,
    "flights": flights.PLANTS,
}
"""Every plant, by the part of the engine that it changes."""

PLANTS: Final = {plant.id: plant for family in FAMILIES.values() for plant in family}
"""Every plant by its id."""

NOT_YET: Final[dict[str, str]] = {
    "IF1": "a preemption that gains nothing: it is in spec.scheduler, whose tests plant it",
    "IF6": "page deltas of rows that leave a batch: a step has whole rows, and no stash",
    "SW2": "hits of a window: a hit has the pages of its whole prefix, and none is cut to a window",
    "AK5": "a read out of range is clamped by XLA: seen only by an interpreter that raises",
    "KG3": "heads are padded by the TPU kernel alone: kvspec kernel tries widths that need it",
    "KG4": "blocks are planned by the TPU kernel alone: kvspec kernel --target asks the compilers",
    "QZ1": "quantised pages: there are no scales",
    "QZ2": "quantised pages: there are no scales to copy",
    "QZ4": "quantised pages: no layer reads the scales of another",
    "MH1": "several hosts: there is one",
    "MH2": "several hosts: nothing waits for another",
    "MH4": "several devices: nothing is sharded",
    "PX6": "keys of partial pages and events: the index has whole pages, and reports nothing",
    "EV1": "transfers between tiers: there is one tier, and no write-back that can fail",
    "EV2": "transfers between tiers: no store takes or releases a lock; the counts are of rows",
    "EV4": "transfers between tiers: nothing is loaded under a page of another tier",
    "HG9": "groups of layers with states: a hit is of one kind of page",
    "CP4": "a pass over the running requests: it is in spec.scheduler, whose tests plant it",
    "CP5": "a skip past what does not fit: it is in spec.scheduler, whose tests plant it",
    "MH5": "several hosts: none can find another length of a hit",
}
"""Rows of the catalogue of real bugs that the engine cannot have, and the missing mechanism."""
