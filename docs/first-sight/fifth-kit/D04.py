"""Ctrl-C while a finding is shrunk, after one smaller history was found.

`shrink`: "Ctrl-C ends the shrinking and not the run: the smallest history so far is kept", and
README.md: Ctrl-C stops "at a point where nothing is lost". Of four steps the shrinking first leaves
out the first half; the remaining two fail as well, so the smallest history so far has two steps. The
second attempt is interrupted, so those two steps must come back.
"""

from common_d import conclude
from conformance.fuzzing.shrinking import shrink_with
from conformance.lockstep.run import Finding
from spec.machines.actions import Free, Reserve

whole = (Reserve(0), Reserve(1), Reserve(2), Free(2))
calls = []


def again(history):
    """The clause is violated by the last two steps; the user presses Ctrl-C at the second try."""
    calls.append(history)
    if len(calls) > 1:
        raise KeyboardInterrupt
    return Finding(history, "RC", "a count") if history == whole[2:] else None


least = shrink_with(again, Finding(whole, "RC", "a count"), seconds=30)
conclude([str(step) for step in whole[2:]], [str(step) for step in least.history])
