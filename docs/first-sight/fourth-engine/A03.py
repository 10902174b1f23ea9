"""docs/actions.md, FreeFinished: "Every finished sequence is freed, as by Free", and a sequence has
finished "by a stop or by its limit". A greedy request draws the same first token t each time, so
with the stop sequence (t,) it finishes with its first token, in slot 0, while max_new is 5. With
cleanup NONE it stays there until FreeFinished, which must leave slot 0 unused and every page free.
"""

from common_a import CleanupMode, Params, Request, act, do, end, engine

one = engine(cleanup=CleanupMode.NONE)
do(one, act.Prefill((Request(id=1, prompt=(1, 2, 3), params=Params(max_new=5)),)))
first = one.observe().tokens[0][3]
do(one, act.Reset())
stopped = Params(max_new=5, stops=((first,),))
do(one, act.Prefill((Request(id=1, prompt=(1, 2, 3), params=stopped),)))
finished = one.observe().finished[0]
do(one, act.FreeFinished())
seen = one.observe()
end((True, False, (0,) * 8), (finished, seen.used[0], seen.counts))
