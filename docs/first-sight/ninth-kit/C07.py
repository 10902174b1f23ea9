"""A request of one token more than a row has positions."""
from common import *
# docs/actions.md: TOO_LONG if the prompt and `max_new` tokens are more than `max_len`. Pages of
# two, four per sequence: max_len is 8. Five and four tokens are 9; five and three are 8.
m, s = start()
for max_new, expected in ((4, {"TOO_LONG"}), (3, set())):
    r = Request(id=1, prompt=(1, 2, 3, 4, 5), params=Params(max_new=max_new))
    seen(f"Submit, {max_new}", reasons(m, s, act.Submit(r)), expected)
    seen(f"Prefill, {max_new}", reasons(m, s, act.Prefill((r,))), expected)
    held = run(m, s, act.Reserve(0))
    seen(f"Assign, {max_new}", reasons(m, held, act.Assign(0, r.prompt, r.params, 1)), expected)
