"""docs/actions.md, Prefill and Clone: further choices are cloned; "Full pages are shared", and "A
partial last page is copied to a free page". Prompts of three and of five tokens (two choices) in
pages of four: slot 0 gets page 0, slot 1 pages 1 and 2, and slot 2, the second choice of five tokens,
shares page 1 and has a copy of the partial page 2 in the next free page, 3. The two prompts have
eight tokens together, which does not matter.
"""

from common_a import Params, Request, act, do, end, engine, row

one = engine()
first = Request(id=1, prompt=(1, 2, 3), params=Params(max_new=4))
second = Request(id=2, prompt=(4, 5, 6, 7, 8), params=Params(max_new=4), n_generations=2)
do(one, act.Prefill((first, second)))
end(((0,), (1, 2), (1, 3)), tuple(row(one, slot) for slot in range(3)))
