"""refine: the contents of every written cell are compared, drafts too."""
from common import *
import os; os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
from conformance.refinement import contents
from conformance.refinement.transition import same_observed
from conformance.exploration.instances import instance
chosen = instance("rollback", geometry(pages=4, slots=1, page_size=2, pages_per_seq=4), CleanupMode.INCREMENTAL)
m, setup = chosen.machine, contents.setup_of(chosen)
s = run(m, chosen.initial(), act.Prefill((Request(id=1, prompt=(5, 6), params=Params(max_new=5)),)), act.Pack(),
        act.Allocate(((0, 2),)), act.Write(((0, 2),)), act.Propose(0, (4,)), act.Pack(), *[act.Allocate(((0, 3),)), act.Write(((0, 3),))])
# By hand: positions 0 to 2 are known and committed, 3 is a draft: written 4, committed 3. Page size 2 and lowest
# pages: position 3 is page 1, offset 1; position 2 is page 1, offset 0; page 2 is dead.
seen("written, committed", (s.sequences[0].written, s.committed[0], s.sequences[0].row), (4, 3, (0, 1)))
right = contents.encode(setup, s)
def changed(page, offset):
    cache = tuple(jax.numpy.asarray(pool).at[page, offset].add(1) for pool in right.pages.cache)
    return right._replace(pages=right.pages._replace(cache=cache))
seen("unchanged", bool(same_observed(setup, right, right)), True)
seen("dead cell", bool(same_observed(setup, changed(2, 0), right)), True)
seen("committed cell", bool(same_observed(setup, changed(1, 0), right)), False)
seen("draft cell", bool(same_observed(setup, changed(1, 1), right)), False)
