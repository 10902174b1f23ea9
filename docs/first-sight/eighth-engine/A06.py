"""Two requests of the same prompt and greedy: the first has a stop sequence, the second has none.

"A request ends after max_new tokens, or at one of its stop sequences." (docs/serving.md). So the
second one, which has no stop sequence, gets its 4 tokens and ends with the reason LIMIT.
"""
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import FinishReason, Geometry, Params, Request, default_limits

G = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=4)
SETUP = Setup(geometry=G, limits=default_limits(G), model=IntegerModel())


def ask(host, name, stops=()):
    params = Params(max_new=4, stops=stops)
    return host.generate([Request(id=name, prompt=(3, 1, 4), params=params)])[name, 0]


alone = ask(Host(Engine(SETUP)), 1)
assert len(alone.tokens) == 4 and alone.reason is FinishReason.LIMIT

host = Host(Engine(SETUP))
first = ask(host, 1, stops=((alone.tokens[1],),))
assert first.tokens == alone.tokens[: len(first.tokens)] and first.reason is FinishReason.STOP
second = ask(host, 2)
print(second)
sys.exit(0 if (second.tokens, second.reason) == (alone.tokens, FinishReason.LIMIT) else 1)
