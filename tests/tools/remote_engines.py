"""Engines that go wrong, or look odd, in a process of their own."""

import os
import signal
import sys
import time
from typing import Any

import spec_engine
import toy_engine
from attrs import evolve

from conformance.protocol import Action, Result
from spec.machines.actions import Allocate
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits


class Ends(toy_engine.Adapter):
    """Its process ends, in one way or another, at a batch of `size`."""

    size = 3

    def end(self) -> None:
        """End the process."""
        os._exit(3)

    def apply(self, action: Action) -> Result:
        """What the toy does, unless it ends."""
        if isinstance(action, Allocate) and len(action.batch) == self.size:
            self.end()
        return super().apply(action)


class Soon(Ends):
    """It ends at the first cell."""

    size = 1


class Crashes(Ends):
    """It ends by a signal."""

    def end(self) -> None:
        """As a wild pointer does."""
        os.kill(os.getpid(), signal.SIGSEGV)


class Closes(Ends):
    """It goes on and answers no more."""

    def end(self) -> None:
        """As a library does that closes all files."""
        os.closerange(3, 64)
        time.sleep(30)


class Loud(toy_engine.Adapter):
    """It prints, and reads what there is to read."""

    def apply(self, action: Action) -> Result:
        """What the toy does, in words."""
        print("to standard output")
        os.write(1, b"and by its number\n")
        assert sys.stdin.read() == ""
        assert os.read(0, 1) == b""
        return super().apply(action)


class Arrays(spec_engine.SpecEngine):
    """It shows arrays and lists."""

    def observe(self) -> View:
        """What the specification shows, as others would hold it."""
        import numpy as np

        view = super().observe()
        arrays: dict[str, Any] = {
            name: np.array(getattr(view, name)) for name in ("counts", "rows", "allocated")
        }
        lists: dict[str, Any] = {"written": list(view.written or ())}
        return evolve(view, **arrays, **lists)


class Restless(toy_engine.Adapter):
    """What it shows depends on how many sequences there are."""

    def observe(self) -> View:
        """With counts, and without."""
        view = super().observe()
        return evolve(view, counts=None) if len(self.allocator.seqs) % 2 else view


class Fails(toy_engine.Adapter):
    """Its process can make it once."""

    made = 0

    def __init__(self, *sizes: Any) -> None:
        type(self).made += 1
        if self.made > 1:
            os._exit(4)
        super().__init__(*sizes)


class Leaks(toy_engine.Adapter):
    """It keeps the last block of what it releases, whatever the environment says."""

    bug = "leak"

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.allocator.bug = self.bug


class Shy(Leaks):
    """It refuses a batch that would fill the pool, and says that it may."""

    bug = "refuses what is legal"

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, refuses="may_refuse_more")
