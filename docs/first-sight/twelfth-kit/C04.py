"""RB judges every truncation: committed cells stay, whether or not the slot had drafts."""
from attrs import evolve as changed

from common import *
from spec import clauses
from spec.vocabulary import INVALID

g = geometry(page_size=4, pages_per_seq=2)
m, s = start(g, ladder.machine("rollback", "lifecycle"))
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2, 3, 4, 5), Params(max_new=3), 1))
s = run(m, s, *written(0, 5), act.Allocate(((0, 5), (0, 6))))  # two cells are taken ahead
before = view.of(m, s)
right = view.of(m, m.step(s, act.Truncate(0, 5)))
seen("a right engine", [*clauses.step_violations(before, right)], [])
# An engine that cuts whole pages: cell 4, which is committed and final, is lost.
lost = changed(
    right,
    allocated=(4, 0, 0, 0),
    written=(4, 0, 0, 0),
    committed=(4, 0, 0, 0),
    rows=((0, INVALID),) + right.rows[1:],
    counts=(1,) + (0,) * 7,
)
found = {name for name, _ in (*clauses.violations(lost), *clauses.step_violations(before, lost))}
seen("an engine that cuts a page", found, {"RB"})
# With a draft it is judged with and without the bug.
s = run(m, s, act.Propose(0, (9,)))
seen("with a draft", {name for name, _ in clauses.step_violations(view.of(m, s), lost)}, {"RB"})
