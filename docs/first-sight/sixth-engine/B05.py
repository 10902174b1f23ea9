"""A request of a tiny temperature beside a request with larger logits.

Docs (serving.md): "A request gets the same tokens whatever other requests are served beside it";
Model.sample: "a draw depends on its own row and numbers alone". Tokens 0 and 1 embed as (1, 0),
token 2 as (0, 1), whose norms are sqrt 2 times these. So the logits after 0 or 1 are
sqrt 2 * (0, 1, 0), after 2 they are sqrt 2 * (0, 0, 200). At temperature 1e-38 the largest logit is
drawn as by greedy: request 1 (prompt 0) gives 1, 1, 1, alone and beside request 2 (prompt 2), which
gives 2, 2, 2. With the bug the largest logit of all rows is subtracted: the row of request 1 is
(-281.4 at most) / 1e-38 = -infinity everywhere, and the draw is token 0, the first.
"""
from common_b import *
from small import llama
from impl.host import Host

model, weights = llama([(1, 0), (1, 0), (0, 1)], [(0, 1, 0), (0, 0, 200)])
host = Host(engine(Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2), model=model,
                   weights=weights))
params = Params(max_new=3, temperature=1.2e-38)
one, two = Request(id=1, prompt=(0,), params=params), Request(id=2, prompt=(2,), params=params)
alone = host.generate([one])[1, 0].tokens
beside = host.generate([one, two])
verdict([(1, 1, 1), (1, 1, 1), (2, 2, 2)], [alone, beside[1, 0].tokens, beside[2, 0].tokens])
