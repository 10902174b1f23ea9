"""`make peers` checks each answer against the oracle before it is timed, so that a wrong one does
not count. An answer that is NaN everywhere is wrong, and one that is NaN in one judged row as well:
exit status 1 if ours is wrong, and no time for a peer that is.
"""
import sys
import jax.numpy as jnp
from conformance.benchmarks.peers.candidates import OURS, ours
from conformance.benchmarks.peers.cases import Case, Size
from conformance.benchmarks.peers.run import measure, to_json
import json

size = Size(sequences=2, cells=16, queries=4, page_size=8, turns=1, seconds=1.0)
case = Case(size=size, heads=(2, 1, 8), queries=1)
right = jnp.asarray(case.expected[0], jnp.float32)  # one query each: all rows are judged
wrong = []
if case.wrong(right) is not None:
    wrong.append(f"the oracle's own answer is wrong: {case.wrong(right)}")
for what, answer in (("all", right * jnp.nan), ("one", right.at[0, 0, 0].set(jnp.nan))):
    if case.wrong(answer) is None:
        wrong.append(f"{what} NaN, called right")
rows = measure(case, {OURS: ours, "broken peer": lambda _: lambda: right * jnp.nan})
found = {row.name: row for row in rows}
if found[OURS].problem or found[OURS].seconds is None:
    wrong.append(f"ours: {found[OURS]}")
if found["broken peer"].seconds is not None or not found["broken peer"].problem.startswith("WRONG"):
    wrong.append(f"a peer whose answer is NaN was timed: {found['broken peer'].verdict}")
bad = measure(case, {OURS: lambda _: lambda: right * jnp.nan})
if json.loads(to_json(list(bad), size, 1.0))["verdict"] != "fails":
    wrong.append("ours is NaN, and the verdict is holds")
print("\n".join(wrong) or "as it should be")
sys.exit(bool(wrong))
