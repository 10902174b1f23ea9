from common import *
from conformance.rungs.coverage import Coverage
# The first engine ends with Reserve, another begins with Free: in no engine does Free follow Reserve.
c = Coverage(); c.begin()
c.count(act.Reserve, frozenset(), ()); c.begin(); c.count(act.Free, frozenset(), ())
seen("pairs of steps", [str(k) for k in c.pairs], [])
