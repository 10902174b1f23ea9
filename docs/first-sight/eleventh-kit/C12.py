"""Two known tokens and two drafts, all written; the cell of the first draft holds another prefix: CONTENT."""
from common import *
from spec import clauses
m, s = start(geometry(pages=4, page_size=2, slots=1), ladder.machine("admission", "rollback"))
s = run(m, s, act.Reserve(0), act.Assign(0, (1, 2), Params(max_new=6), 1), *written(0, 2), act.Propose(0, (3, 4)))
s = run(m, s, act.Purge(0), *written(0, 4, 2))
right = view.of(m, s)
seen("cells of a right engine", right.cells[:4], ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)))
seen("clauses that a right engine violates", [name for name, _ in clauses.violations(right)], [])
wrong = evolve(right, cells=(*right.cells[:2], (1, 2, 9), *right.cells[3:]))
seen("clauses violated by a wrong cell of a draft", [name for name, _ in clauses.violations(wrong)], ["CONTENT"])
