"""A small positive temperature is greedy.

docs/actions.md, Params: "`temperature`: 0 is greedy", any finite number of 0 or more is allowed;
docs/naive.md, "Draws": a draw is a function of seed, choice and position. So at temperature 0.000001
the exact model, which has no logits, draws the same tokens as at temperature 1 with the same seed,
and not those of temperature 0. Our engine says so too (impl.arguments: a positive number does not
become 0, which means greedy).
"""

from common_c import engine, report

from spec.machines import naive
from spec.machines.actions import Prefill
from spec.vocabulary import Geometry, Params, Request


def params(temperature):
    return Params(max_new=1, temperature=temperature, seed=5)


prompt = (11, 12, 13)
warm, small, greedy = (naive.generate(prompt, params(one))[0] for one in (1.0, 1e-6, 0.0))
assert warm != greedy
made = engine(Geometry(pages=4, page_size=4, slots=2, pages_per_seq=2))
made.apply(Prefill((Request(id=1, prompt=prompt, params=params(1e-6)),)))
report(
    ("tokens of the specification at 0.000001", warm, small),
    ("tokens of the engine at 0.000001", warm, made.observe().outputs[0][2]),
)
