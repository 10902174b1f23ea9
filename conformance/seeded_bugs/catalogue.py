"""The catalogue of plants: each is the smallest change of our engine that reproduces a real bug.

The mechanisms are rebuilt from the public threads that describe them; no code is taken.
"""

from typing import Final

from conformance.seeded_bugs import (
    Plant,
    attention,
    counts_and_clones,
    lifecycle,
    pages,
    requests,
    rollback,
)

FAMILIES: Final[dict[str, tuple[Plant, ...]]] = {
    "pages": pages.PLANTS,
    "clones": counts_and_clones.PLANTS,
    "lifecycle": lifecycle.PLANTS,
    "requests": requests.PLANTS,
    "rollback": rollback.PLANTS,
    "attention": attention.PLANTS,
}
"""Every plant, by the part of the engine that it changes."""

PLANTS: Final = {plant.id: plant for family in FAMILIES.values() for plant in family}
"""Every plant by its id."""

NOT_YET: Final[dict[str, str]] = {
    "RC3": "prefix cache: nothing is pinned",
    "RC5": "prefix cache: nothing is inserted into a tree",
    "CL5": "prefix cache: nothing is adopted by it",
    "PX1": "prefix cache: nothing is found by its hash",
    "PX2": "prefix cache: nothing is published",
    "PX3": "prefix cache: there is no key",
    "PX4": "prefix cache: nothing is published in the middle of a prefill",
    "QS2": "steps in flight: every result is back before the next action",
    "RB3": "prefix cache: no draft is published",
    "SW1": "release behind a sliding window: a sequence keeps its pages to the end",
    "SW2": "prefix cache and sliding window: no hit is cut to a window",
    "AK5": "a read out of range is clamped by XLA: seen only by an interpreter that raises",
    "KG3": "heads are padded by the TPU kernel alone: kvspec kernel tries widths that need it",
    "KG4": "blocks are planned by the TPU kernel alone: kvspec kernel --target asks the compilers",
    "QZ1": "quantised pages: there are no scales",
    "QZ2": "quantised pages: there are no scales to copy",
    "QZ4": "quantised pages: no layer reads the scales of another",
    "MH1": "several hosts: there is one",
    "MH2": "several hosts: nothing waits for another",
    "MH4": "several devices: nothing is sharded",
}
"""Rows of the catalogue of real bugs that the engine cannot have, and the missing mechanism."""
