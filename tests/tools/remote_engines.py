"""Engines for another process: engines that fail, and engines with unusual adapters."""

import os
import signal
import sys
import time
from typing import Any
from weakref import ref

import spec_engine
import toy_engine
from attrs import evolve

from conformance.protocol import Action, Result
from spec.machines.actions import Allocate
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits


class Ends(toy_engine.Adapter):
    """A toy that ends its process with status 3 at a batch of `size`."""

    size = 3

    def end(self) -> None:
        """End the process."""
        os._exit(3)

    def apply(self, action: Action) -> Result:
        """Take the action, or end the process."""
        if isinstance(action, Allocate) and len(action.batch) == self.size:
            self.end()
        return super().apply(action)


class Soon(Ends):
    """A toy that ends its process at the first cell."""

    size = 1


class Crashes(Ends):
    """A toy whose process ends by a signal."""

    def end(self) -> None:
        """Send SIGSEGV, as a wild pointer would cause."""
        os.kill(os.getpid(), signal.SIGSEGV)


class Closes(Ends):
    """A toy that closes its streams and answers no more."""

    def end(self) -> None:
        """Close the files, as a library might, and go on."""
        os.closerange(3, 64)
        time.sleep(30)


class Loud(toy_engine.Adapter):
    """A toy that prints to standard output, and reads standard input to its end."""

    def apply(self, action: Action) -> Result:
        """Print and read, then take the action."""
        print("to standard output")
        os.write(1, b"and by its number\n")
        assert sys.stdin.read() == ""
        assert os.read(0, 1) == b""
        return super().apply(action)


class Arrays(spec_engine.SpecEngine):
    """A specification whose view has arrays and lists."""

    def observe(self) -> View:
        """The view of the specification with arrays and lists in place of tuples."""
        import numpy as np

        view = super().observe()
        arrays: dict[str, Any] = {
            name: np.array(getattr(view, name)) for name in ("counts", "rows", "allocated")
        }
        lists: dict[str, Any] = {"written": list(view.written or ())}
        return evolve(view, **arrays, **lists)


class Salted(spec_engine.SpecEngine):
    """A specification whose contents depend on all that an engine is made with."""

    def observe(self) -> View:
        """The view with each content beside what the engine was made with."""
        view, profile = super().observe(), self.profile
        salt = str((profile.geometry, profile.limits, profile.cleanup))
        assert view.cells is not None
        return evolve(
            view,
            cells=tuple((salt, cell) for cell in view.cells),
            expected=lambda tokens: (salt, view.expected(tokens)),
        )


class Restless(toy_engine.Adapter):
    """A toy that shows counts only while the number of its sequences is even."""

    def observe(self) -> View:
        """The view, with or without counts."""
        view = super().observe()
        return evolve(view, counts=None) if len(self.allocator.seqs) % 2 else view


class OneAtATime(toy_engine.Adapter):
    """A toy that takes all of a device, so that the one before must be gone."""

    last: "ref[OneAtATime] | None" = None

    def __init__(self, *sizes: Any) -> None:
        if self.last is not None and self.last() is not None:
            raise MemoryError("no room beside the other one")
        type(self).last = ref(self)
        super().__init__(*sizes)


class Fails(toy_engine.Adapter):
    """A toy that its process can make only once."""

    made = 0

    def __init__(self, *sizes: Any) -> None:
        type(self).made += 1
        if self.made > 1:
            os._exit(4)
        super().__init__(*sizes)


class Leaks(toy_engine.Adapter):
    """A toy that keeps the last block when it releases a sequence."""

    bug = "leak"

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.allocator.bug = self.bug


class Shy(Leaks):
    """A toy that refuses a batch that would fill the pool, as its profile permits."""

    bug = "refuses what is legal"

    def __init__(self, geometry: Geometry, limits: Limits, cleanup: CleanupMode) -> None:
        super().__init__(geometry, limits, cleanup)
        self.profile = evolve(self.profile, refuses="may_refuse_more")
