"""Engines that misbehave, and Python interpreters that are none: variations of the toy engine."""

from typing import Final

from attrs import frozen

from conformance.hostile.calls import BAD_INPUT, FAILS, NOT_CLEAN, STATUSES, UNDECIDED
from conformance.hostile.toy import TOY

ENDED: Final = frozenset({FAILS, UNDECIDED})
REFUSED: Final = frozenset({FAILS, BAD_INPUT, UNDECIDED})
THIRD: Final = """
_apply = Engine.apply


def _third(self, action):
    self.taken = getattr(self, "taken", 0) + 1
    if self.taken == 3:
        {what}
    return _apply(self, action)


Engine.apply = _third
"""
"""Each of these misbehaves at the third action."""


@frozen
class Hostile:
    """A hostile engine. source: of its module. allowed: the possible exit statuses."""

    name: str
    source: str
    allowed: frozenset[int]


def _third(what: str) -> str:
    return TOY + THIRD.format(what=what)


def _made(body: str) -> str:
    return f"{TOY}\n\ndef make(geometry, limits, cleanup):\n    {body}\n"


def _profile(value: str) -> str:
    return (
        f"{TOY}\n\ndef make(*sizes):\n    engine = Engine(*sizes)\n"
        f"    engine.profile = {value}\n    return engine\n"
    )


def _observe(value: str) -> str:
    return f"{TOY}\n\nEngine.observe = lambda self: {value}\n"


ENGINES: Final = (
    Hostile("raises at import", "raise RuntimeError('no')\n", REFUSED),
    Hostile("raises an odd exception at import", "raise BaseException('no')\n", REFUSED),
    Hostile("raises KeyboardInterrupt at import", "raise KeyboardInterrupt\n", REFUSED),
    Hostile("has a syntax error", "def make(:\n", REFUSED),
    Hostile("is no text", "\udcff\udcfe", REFUSED),
    Hostile("imports what is absent", "import nothing_of_this_name\n", REFUSED),
    Hostile("sys.exit(0) at import", "import sys\nsys.exit(0)\n", REFUSED),
    Hostile("os._exit(0) at import", "import os\nos._exit(0)\n", REFUSED),
    Hostile("raises in the factory", _made("raise ValueError('no')"), REFUSED),
    Hostile("sys.exit(0) in the factory", _made("import sys; sys.exit(0)"), REFUSED),
    Hostile("os._exit(0) in the factory", _made("import os; os._exit(0)"), REFUSED),
    Hostile("makes nothing", _made("return None"), REFUSED),
    Hostile("raises at the third action", _third("raise ValueError('no')"), REFUSED),
    Hostile("sys.exit(0) at the third action", _third("import sys; sys.exit(0)"), REFUSED),
    Hostile("os._exit(0) at the third action", _third("import os; os._exit(0)"), ENDED),
    Hostile("kills itself", _third("import os; os.kill(os.getpid(), 9)"), ENDED),
    Hostile("crashes", _third("import ctypes; ctypes.string_at(0)"), ENDED),
    Hostile("interrupts itself", _third("import os; os.kill(os.getpid(), 2)"), ENDED),
    Hostile("raises KeyboardInterrupt", _third("raise KeyboardInterrupt"), ENDED),
    Hostile("recurses", _third("_third(self, action); self.taken = 2"), STATUSES),
    Hostile("closes stdout", _third("import os; os.close(1)"), STATUSES),
    Hostile("closes every file", _third("import os; os.closerange(3, 64)"), STATUSES),
    Hostile("prints megabytes", _third("print('x' * 5_000_000)"), STATUSES - ENDED | {UNDECIDED}),
    Hostile(
        "changes the folder",
        _third("import os; os.chdir(os.environ['TMPDIR'])"),
        STATUSES - {FAILS},
    ),
    Hostile("takes the signals", _third("import signal as s; s.signal(2, s.SIG_IGN)"), STATUSES),
    Hostile(
        "spawns a thread",
        _third("import threading, time; threading.Thread(target=time.sleep, args=(3600,)).start()"),
        STATUSES - {FAILS},
    ),
    Hostile(
        "spawns a process",
        _third("import subprocess; subprocess.Popen(['sleep', '3600'])"),
        STATUSES - {FAILS},
    ),
    Hostile("takes no arguments", TOY + "\n\ndef make():\n    return None\n", REFUSED),
    Hostile("is no function", TOY + "\n\nmake = 3\n", REFUSED),
    Hostile("has no profile", _made("return object()"), REFUSED),
    Hostile("has a profile of the wrong type", _profile("{'name': 'x'}"), REFUSED),
    Hostile("has None as its profile", _profile("None"), REFUSED),
    Hostile("shows None", _observe("None"), REFUSED),
    Hostile("shows a number", _observe("7"), REFUSED),
    Hostile("shows a view of the wrong shape", _observe("view.View(geometry=1)"), REFUSED),
    Hostile("raises when looked at", _observe("1 / 0"), REFUSED),
    Hostile("exits when looked at", _observe("__import__('sys').exit(0)"), REFUSED),
)
PYTHONS: Final = (".", "missing", "/bin/true", "/bin/cat", "yes", "", "toy.py", "\n", "/dev/null")
"""Values of --python; none of them is a Python. `yes` never stops."""
PYTHON_STATUSES: Final = NOT_CLEAN - {FAILS}
