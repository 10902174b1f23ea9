"""A stop sequence is missed after a false start that overlaps it.

docs/actions.md, Params: a request "ends as soon as the generated tokens end with one of these".
Stop sequences do not change draws, so a request without one shows the text that a request with the
same seed draws; with two token ids it has a run of three equal tokens and then the other one. For
the stop sequence (a, a, b) the request must end with the first place where the text ends so, here
inside a run of three or more a: (a, a, a, b).
"""

import jax

from common_b import Geometry, Params, Request, engine, verdict
from impl.host import Host
from impl.models.llama import Llama

model = Llama(vocabulary=2, layers=1, embed=8, q_heads=1, kv_heads=1, head_dim=4, mlp=8)
geometry = Geometry(pages=16, page_size=4, slots=2, pages_per_seq=8)
host = Host(engine(geometry, model=model, weights=model.init(jax.random.key(0))))


def serve(seed, stops=()):
    params = Params(max_new=24, temperature=5.0, seed=seed, stops=stops)
    (output,) = host.generate([Request(id=1, prompt=(0, 1), params=params)]).values()
    return output.tokens, output.reason.value


def first_end(text, stop):
    return next((n for n in range(len(stop), len(text)) if text[n - len(stop) : n] == stop), None)


for seed in range(50):
    text, _ = serve(seed)
    found = [
        (a, n)
        for a in (0, 1)
        if (n := first_end(text, (a, a, 1 - a))) and text[max(n - 4, 0) : n] == (a, a, a, 1 - a)
    ]
    if found:
        break
(a, n) = found[0]
print("without a stop sequence", text, "stop sequence", (a, a, 1 - a))
verdict((text[:n], "stop"), serve(seed, ((a, a, 1 - a),)))
