"""Refinement meets two mismatches: one far from the initial state first, a nearer one afterwards.

docs/explore.md: "A mismatch is reported with the number of mismatches, and a shortest history to the
first". States are numbered breadth first, so the first mismatch is that with the lowest number.
Transitions wait until a batch of their entry point is full: those of `allocate` from states 8 and 9
fill one and are judged, those of `clone` from state 3 wait until the end. All are wrong, so the first
is (3, 5).
"""

import numpy as np

from common_d import conclude
from conformance.refinement.vmapped import Checker, Kind, Tally, Transitions


def transitions(*states: int, move: int) -> Transitions:
    size = len(states)
    blank = np.zeros(size, np.int32)
    numbers = np.array(states)
    return Transitions(numbers, np.full(size, move), blank, blank, blank, blank.astype(np.uint32))


def wrong(before, arguments, after, mask):
    return before != before


tally = Tally()
kinds = {name: Kind(name, wrong, lambda *_: False) for name in ("allocate", "clone")}
checker = Checker(kinds, size=2, sample=0, seed=0, tally=tally)
checker.add("clone", transitions(3, move=5))
checker.add("allocate", transitions(8, 9, move=2))
checker.finish()
conclude((3, (3, 5)), (tally.mismatches, tally.first))
