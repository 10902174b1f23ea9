"""20 uniformly random steps, 5 seeds, with the specification machine as oracle; exit 1 on a difference.

    uniform.py [incremental|end|none [SEEDS]]
"""
import random, sys
import jax
from conformance.engines.ours import ACTIONS, make
from conformance.protocol import Rounds
from spec import ladder, view
from spec.machines import actions as act, scheduling
from spec.vocabulary import CleanupMode, Geometry, Params, Refused, Request, ResetMode, default_limits

STEPS, SEEDS = 20, int(sys.argv[2]) if len(sys.argv) > 2 else 5
G = Geometry(pages=8, page_size=4, slots=3, pages_per_seq=2)
CLEANUP = CleanupMode(sys.argv[1] if len(sys.argv) > 1 else "incremental")
MACHINE = ladder.machine_for(ACTIONS)
FIELDS = ("counts", "used", "rows", "allocated", "written", "committed", "tokens", "proposed",
          "finished", "queue", "outputs")
KINDS = sorted(ACTIONS, key=lambda kind: kind.__name__)


def draw(rng):
    n = lambda most, least=0: rng.randint(least, most)
    slot = lambda: n(G.slots - 1)
    maybe = lambda: rng.choice((None, slot()))
    tokens = lambda: tuple(n(9) for _ in range(n(6, 1)))
    params = lambda: Params(max_new=n(6, 1), temperature=rng.choice((0.0, 1.0)), seed=n(3),
                            stops=tuple((n(9),) for _ in range(n(1))))
    request = lambda: Request(id=n(3), prompt=tokens(), params=params(), n_generations=n(3, 1))
    batch = lambda: tuple((slot(), n(7)) for _ in range(n(4, 1)))
    kind = rng.choice(KINDS)
    match kind.__name__:
        case "Reserve": return kind(maybe())
        case "Assign": return kind(slot(), tokens(), params(), request=n(3), choice=n(2))
        case "Allocate" | "Write": return kind(batch())
        case "Clone": return kind(slot(), maybe(), n(2))
        case "Commit" | "Truncate": return kind(slot(), n(8))
        case "Free" | "Purge": return kind(slot())
        case "Reset": return kind(rng.choice(list(ResetMode)))
        case "Enqueue": return kind(slot(), n(9))
        case "Prefill": return kind(tuple(request() for _ in range(n(2, 1))))
        case "Propose": return kind(slot(), tokens())
        case "Submit": return kind(request())
        case _: return kind()


def expected_result(before, action):
    match action:
        case act.TakeOutputs(): return before and tuple(
            (o.request, o.choice, o.tokens, o.reason) for o in before.outputs)
        case act.Generate():
            _, done, found = scheduling.generate(MACHINE, before)
            return done, {refusal.reason for refusal in found}
        case _: return None


def run(seed):
    rng = random.Random(seed)
    engine, state = make(G, default_limits(G), CLEANUP), MACHINE.initial(G, default_limits(G), CLEANUP)
    history, done = [], 0
    for _ in range(STEPS):
        action = draw(rng)
        history.append(action)
        want = {refusal.reason for refusal in MACHINE.refusals(state, action)}
        try:
            result, got = engine.apply(action), None
        except Refused as error:
            result, got = None, set(error.reasons)
        if bool(want) != bool(got) or (got and not got <= want):
            return f"seed {seed}: refusal {got}, expected {want} after {history}"
        if not want:
            done += 1
            right, before = expected_result(state, action), state
            state = MACHINE.step(state, action)
            if isinstance(result, Rounds):
                if result.done != right[0] or (result.refused is not None) != bool(right[1]):
                    return f"seed {seed}: {result}, expected {right} after {history}"
            elif isinstance(action, act.TakeOutputs) and tuple(result) != right:
                return f"seed {seed}: {result}, expected {right} after {history}"
            elif isinstance(action, act.Reserve | act.Clone):
                new = [i for i, (a, b) in enumerate(zip(before.sequences, state.sequences)) if a is None and b is not None]
                if [result] != new:
                    return f"seed {seed}: {result}, expected {new} after {history}"
        seen, right = engine.observe(), view.of(MACHINE, state)
        for name in FIELDS:
            if getattr(seen, name) != getattr(right, name):
                return f"seed {seed}: {name} {getattr(seen, name)}, expected {getattr(right, name)} after {history}"
    print(f"seed {seed}: {done} of {STEPS} done: {sorted({type(a).__name__ for a in history})}", file=sys.stderr)
    return None


found = [text for text in map(run, range(SEEDS)) if text]
print("\n".join(found) or "uniform: nothing found")
sys.exit(1 if found else 0)
