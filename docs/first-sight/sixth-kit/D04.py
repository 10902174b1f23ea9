"""What a checkpoint of refine says is checked: all transitions of the levels that are expanded.

After each level the checkpoint is saved; transitions that wait for a full batch are handed on
before (else a resumed run never checks them, and ends with "N transitions were checked, should be
M"). docs/explore.md: an interrupted run is resumed. Rung lifecycle, pages=2, slots=2, page_size=2,
pages_per_seq=1, both alphabets. When a level is done, the transitions handed to the checker and
those that the driver refused (tally.checked, since this checker counts none) are together exactly
the legal and illegal transitions of the graph so far, as no level here fills batches exactly.
"""

import sys

from conformance.exploration.instances import instance
from conformance.refinement.run import Refinement, refine_cells
from spec.vocabulary import CleanupMode, Geometry


class Counts:
    handed = 0

    def add(self, kind, transitions):
        self.handed += len(transitions.mask)

    def finish(self):
        pass


def main():
    chosen = instance("lifecycle", Geometry(pages=2, slots=2, page_size=2, pages_per_seq=1),
                      CleanupMode.INCREMENTAL)
    run, taker, seen = Refinement(), Counts(), []

    def level_done():
        seen.append((taker.handed + run.tally.checked, run.graph.transitions + run.graph.illegal))

    refine_cells(chosen, run, taker, illegal=True, level_done=level_done, most_states=20)
    print(seen)
    sys.exit(0 if seen and all(one == other for one, other in seen) else 1)


if __name__ == "__main__":
    main()
