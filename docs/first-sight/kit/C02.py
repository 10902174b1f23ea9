from common import *
from spec import model
# key = fold_in(fold_in(key(seed), choice), position): choice 1 of seed 4 has no key in common with choice 0 of seed 5.
one = model.draw(Params(max_new=1, temperature=1.0, seed=4), choice=1, position=3)
two = model.draw(Params(max_new=1, temperature=1.0, seed=5), choice=0, position=3)
seen("same draw for (seed 4, choice 1) and (seed 5, choice 0)", one == two, False)
