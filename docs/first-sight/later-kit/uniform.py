"""20 uniformly random steps of the specification, its clauses judged after each; 40 seeds."""
import random, sys
from common import *
from spec import clauses
from spec.machines.actions import *

def draw(r, m, g):
    kinds = sorted(m.calls, key=lambda k: k.__name__); k = r.choice(kinds)
    slot = r.randrange(g.slots); n = r.randint(1, g.max_len); toks = lambda a, b: tuple(r.randrange(50) for _ in range(r.randint(a, b)))
    params = lambda: Params(max_new=r.randint(1, 4), stops=tuple(toks(1, 2) for _ in range(r.randint(0, 2))), temperature=float(r.randrange(2)), seed=r.randrange(4))
    req = lambda: Request(id=r.randrange(6), prompt=toks(1, 5), params=params(), n_generations=r.randint(1, 2))
    def batch():
        out = []
        for s in range(g.slots):
            if r.random() < .5: 
                f = r.randrange(g.max_len); out += [(s, f + i) for i in range(r.randint(1, 3))]
        return tuple(out)
    return {Reserve: lambda: Reserve(r.choice([None, slot])), Append: lambda: Append(slot, toks(0, 3)), Allocate: lambda: Allocate(batch()),
      Write: lambda: Write(batch()), Sample: lambda: Sample(slot), Free: lambda: Free(slot), Clone: lambda: Clone(slot, None, r.randrange(3)),
      Assign: lambda: Assign(slot, toks(1, 5), params(), r.randrange(6), r.randrange(2)), FreeFinished: FreeFinished, Reset: Reset, TakeOutputs: TakeOutputs,
      Enqueue: lambda: Enqueue(slot, r.randrange(50)), Pack: Pack, Purge: lambda: Purge(slot), Prefill: lambda: Prefill(tuple(req() for _ in range(r.randint(1, 2)))),
      Round: Round, Generate: Generate, Propose: lambda: Propose(slot, toks(1, 3)), Commit: lambda: Commit(slot, n), Truncate: lambda: Truncate(slot, n),
      Release: lambda: Release(slot, n), Submit: lambda: Submit(req()), Admit: Admit}[k]()

done = 0
for seed in range(60):
    r = random.Random(seed)
    g = geometry(pages=10, slots=3, window=r.choice([None, 3]))
    cap = r.choice([STANDARD, Capacity(copy="lazy"), Capacity(lookahead=2), Capacity(reserve="request"), Capacity(copy="lazy", lookahead=3, reserve="request")])
    m = ladder.whole() if seed % 3 else ladder.whole_appending()
    s = m.initial(g, default_limits(g), r.choice(list(CleanupMode)), cap)
    for step in range(20):
        a = draw(r, m, g); before = view.of(m, s)
        if not m.refusals(s, a):
            s = m.effect(s, a); done += 1
        after = view.of(m, s)
        found = [*clauses.violations(after), *clauses.step_violations(before, after)]
        if found: print("SEEN", seed, step, a, found[0]); sys.exit(1)
print("not seen,", done, "steps done")
