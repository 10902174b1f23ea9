"""A command that has reached its end and has sent its exit status has decided: the supervisor
concludes only for a child that ended without one. So a child that sends 0 and is then killed while
it ends, such as in the exit code of a native library, leaves the exit status 0.
"""
import os
import signal

from common import *
from conformance.runtime.supervisor import supervised
from conformance.verdict import UNDECIDED

own = os.getpid()


def conclude(known, *, process, error, interrupted):
    return UNDECIDED


status = supervised(lambda tell: 0, conclude=conclude)
if os.getpid() != own:  # the child, after its status is sent
    os.kill(os.getpid(), signal.SIGKILL)
seen("the exit status of a run that holds", status, 0)
