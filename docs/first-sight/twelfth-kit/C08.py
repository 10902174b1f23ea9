"""CONTENT judges every written cell: an engine that mixes up the pages of a prompt is seen."""
from common import *
from spec import clauses

m, s = start()
prompt = (5, 6, 7, 8, 9)
s = run(m, s, act.Reserve(0), act.Assign(0, prompt, Params(max_new=2), 1), *written(0, 5))
right = view.of(m, s)
seen("the right engine", [name for name, _ in clauses.violations(right)], [])
# Row (0, 1, 2), two cells each. The engine stored the K and V of positions 0 and 1 in page 1, and
# those of 2 and 3 in page 0.
seen("the row", right.rows[0][:3], (0, 1, 2))
cells = list(right.cells)
cells[0:2], cells[2:4] = cells[2:4], cells[0:2]
wrong = evolve(right, cells=tuple(cells))
seen("cell 0", wrong.cells[0], prompt[:3])
seen("the clauses violated", [name for name, _ in clauses.violations(wrong)], ["CONTENT"])
