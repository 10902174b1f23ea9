"""OUT: no output is doubled. Request 1 has finished twice, with request 2 between the two."""
from common import *
from attrs import evolve
from spec import clauses

m, s = start()
one, two = (1, 0, (4,), FinishReason.LIMIT), (2, 0, (5,), FinishReason.LIMIT)
once = evolve(view.of(m, s), outputs=(one, two))
seen("each once", list(clauses.violations(once)), [])
twice = evolve(once, outputs=(one, two, one))
seen("one again later", list(clauses.violations(twice)), [("OUT", "request 1 choice 0 has 2 outputs, should be 1")])
