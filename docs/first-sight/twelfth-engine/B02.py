"""Two requests decode side by side; the stop sequence of one ends that one alone."""
from common import FinishReason, check, engine, req

sizes = dict(pages=8, page_size=4, slots=2, pages_per_seq=3)


def serve(*requests):
    one = engine(**sizes)
    one.prefill(requests)
    while one.stats().queued:
        one.generate()
    return {out.request: (out.tokens, out.reason) for out in one.take_outputs()}


first, second = req(1, (1, 2, 3), 6), req(2, (9, 8), 6)
long, short = serve(first)[1][0], serve(second)[2][0]
check((len(long), len(short)), (6, 6), "tokens of each, alone and without stops")
stopping = req(2, (9, 8), 6, stops=((short[2],),))
check(short.index(short[2]), 2, "the third token of the second request is new")
check(
    serve(first, stopping),
    {1: (long, FinishReason.LIMIT), 2: (short[:3], FinishReason.STOP)},
    "the first beside the second, which stops at its third token",
)
print("right")
