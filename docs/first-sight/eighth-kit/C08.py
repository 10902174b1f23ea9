from common import *
import spec.clauses
# Three drafts behind two known tokens. The first is written and committed; the other two have no
# cell, and stay proposed. An engine that drops them with the commit shows no draft.
m = ladder.machine("rollback"); g = geometry(); s = m.initial(g, default_limits(g))
s = run(m, s, act.Reserve(0), act.Append(0, (1, 2)), *written(0, 2), act.Propose(0, (3, 4, 5)), *written(0, 3, 2))
before = view.of(m, s); after = view.of(m, run(m, s, act.Commit(0, 3)))
seen("drafts that stay", after.proposed[0], (4, 5))
clauses_of = lambda v: {name for name, _ in spec.clauses.step_violations(before, v)}
seen("a right commit", clauses_of(after), set())
seen("a commit that drops the rest", clauses_of(evolve(after, proposed=((), (), (), ()))), {"RB"})
seen("a commit that changes the rest", clauses_of(evolve(after, proposed=((9, 9), (), (), ()))), {"RB"})
