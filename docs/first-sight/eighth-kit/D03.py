"""A process whose step took too long is ended: the next engine has a new one, and is right."""

import os
import sys
import tempfile
from pathlib import Path

from conformance.isolation.placement import factory_of
from conformance.lockstep.run import replay
from spec.machines.actions import Free, Reserve
from spec.vocabulary import CleanupMode, Geometry, default_limits

ADAPTER = '''
import time
from conformance.protocol import Profile
from spec import ladder, view
from spec.machines.actions import Free, Reserve

class Adapter:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(name="slow", geometry=geometry, limits=limits, cleanup=cleanup,
                               actions={Reserve, Free})
        self.machine = self.profile.machine
        self.state = self.machine.initial(geometry, limits, cleanup)
    def apply(self, action):
        if isinstance(action, Free):
            time.sleep(4)
        self.state = self.machine.step(self.state, action)
    def observe(self):
        return view.of(self.machine, self.state)
'''

geometry = Geometry(pages=4, page_size=2, slots=2, pages_per_seq=2)
with tempfile.TemporaryDirectory() as name:
    (Path(name) / "slow_adapter.py").write_text(ADAPTER)
    sys.path.append(name)
    factory = factory_of("slow_adapter:Adapter", python=None)

    def make():
        return factory(geometry, default_limits(geometry), CleanupMode.INCREMENTAL)

    hung = replay(make, (Reserve(0), Free(0)), seconds=1)
    assert hung is not None and hung.clause == "PROG", hung
    try:
        found = replay(make, (Reserve(0), Reserve(1)), seconds=20)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        found = error
print(found)
sys.exit(0 if found is None else 1)
