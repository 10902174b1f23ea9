"""The engine before is gone when the next one is made: it may hold what the next one needs."""
import os, tempfile
from pathlib import Path
from common import *
from conformance.isolation.remote import RemoteFactory
from spec.vocabulary import InvalidInput
from conformance.protocol import EngineFailed

ENGINE = '''
from conformance.protocol import Profile
from spec import view
from spec.machines.actions import Allocate, Free, Reserve
taken = []
class Pool:
    """The memory of the device, of which there is room for one."""
    def __init__(self):
        taken.append(1)
    def __del__(self):
        taken.clear()
class Adapter:
    def __init__(self, geometry, limits, cleanup):
        if taken: raise MemoryError("the device has no room for a second pool")
        self.pool = Pool()
        self.profile = Profile(name="e", geometry=geometry, limits=limits, cleanup=cleanup, actions={Reserve, Allocate, Free})
        self.m = self.profile.machine
        self.s = self.m.initial(geometry, limits, cleanup)
    def apply(self, action):
        self.s = self.m.step(self.s, action)
    def observe(self):
        return view.of(self.m, self.s)
'''
g = geometry()
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "one_pool.py").write_text(ENGINE)
    sys.path.insert(0, folder)
    factory = RemoteFactory("one_pool:Adapter", python=None)
    made = 0
    try:
        for _ in range(3):
            engine = factory(g, default_limits(g), CleanupMode.INCREMENTAL)
            engine.apply(act.Reserve(0))
            made += 1
    except (InvalidInput, EngineFailed) as error:
        print(error)
    seen("how many engines were made, one after the other", made, 3)
