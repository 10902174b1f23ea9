from common import *
# The second generated token is a stop sequence of its own: the request ends with two tokens.
h = Host(engine(8, 4, 2, 4))
(plain,) = h.generate([req(1, (1, 2, 3), 6)]).values()
assert plain.tokens[0] != plain.tokens[1]
(out,) = h.generate([req(2, (1, 2, 3), 6, stops=((plain.tokens[1],),))]).values()
check((len(out.tokens), out.reason), (2, FinishReason.STOP), "end at the second generated token")
