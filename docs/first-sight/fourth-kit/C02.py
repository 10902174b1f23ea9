"""Generate names a reason although no round was refused.

docs/actions.md, Generate: "Rounds, at most `limits.rounds`, until one would be refused", and its
result is `[rounds, reason]`, "with null if no round was refused"; conformance.protocol.Rounds says
the same. With a prompt of 2 tokens, `max_new` 9 and 8 rounds a call, the prefill draws the first
token and the 8 rounds draw the other 8, so the sequence ends in the last allowed round. No ninth
round is tried, so none is refused: 8 rounds, no reason.
"""

from common_c import apply, engine, go, ladder, report, start

from spec.machines import scheduling
from spec.machines.actions import Generate, Prefill
from spec.vocabulary import Geometry, Params, Request, default_limits

geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
assert default_limits(geometry).rounds == 8
prefill = Prefill((Request(id=1, prompt=(1, 2), params=Params(max_new=9)),))
machine = ladder.machine("admission", "rollback")
state = go(machine, start(machine, geometry), prefill)
after, done, found = scheduling.generate(machine, state)

made = engine(geometry)
made.apply(prefill)
result = apply(made, Generate())
report(
    ("rounds of the specification", 8, done),
    ("generated tokens", 9, len(after.outputs[0].tokens)),
    ("its refusals", [], sorted(refusal.reason.name for refusal in found)),
    ("rounds of the engine", 8, result.done),
    ("its refusal", None, result.refused and result.refused.name),
)
