"""The log-probability of a very unlikely drawn token.

Docs (serving.md): an output "has the log-probability of each token that was drawn"; sampler.draw:
"that of the drawn token under the logits as given, before temperature". Every token embeds as
(1, 0), whose norm is (sqrt 2, 0), so that the logits are (200, 0) after each. So the log-probability
of token 0 is -log(1 + e^-200) = 0, that of token 1 is -200. At temperature 1e6 both are drawn about
as often: among 16 tokens are some of each. Expected: 0 for each 0, and -200 for each 1 (rounded).
With the bug e^-200 underflows in float32, and that of token 1 is -inf.
"""
from common_b import *
from small import llama

model, weights = llama([(1, 0), (1, 0)], [(200 / 2**0.5, 0), (0, 0)])
made = engine(Geometry(pages=8, page_size=4, slots=1, pages_per_seq=8), model=model,
              weights=weights, logprobs=True, rounds=32)
made.prefill([Request(id=1, prompt=(0,), params=Params(max_new=16, temperature=1e6, seed=3))])
made.generate()
(output,) = made.take_outputs()
assert set(output.tokens) == {0, 1}
verdict([-200.0 * token for token in output.tokens],
        [round(one) + 0.0 if abs(one) < 1e9 else one for one in output.logprobs])
