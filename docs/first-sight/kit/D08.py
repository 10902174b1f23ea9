from common import *
from types import SimpleNamespace
from conformance.traffic import replay
# Three requests come, and the second is refused at submission. It must stop the replay: else it is left out in silence.
given = [Request(id=i, prompt=(1,), params=Params(max_new=1)) for i in range(3)]
do = lambda step: frozenset({Reason.QUEUE_FULL}) if step.request.id == 1 else frozenset()
lockstep = SimpleNamespace(state=SimpleNamespace(waiting=()))
known = {}
try: replay._top_up(lockstep, do, iter(given), known); said = f"went on, requests {sorted(known)} known"
except InvalidInput as e: said = e.name
seen("a refused request", said, "request 1")
