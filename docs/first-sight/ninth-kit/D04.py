"""An engine under a Python that is named: what only the kit's process finds is not found there.

docs/adapters.md: the other Python needs the adapter; kvspec adds its own packages to it, and nothing
else from its environment. The folder of the module below is on the path of this process alone.
"""
import sys, tempfile
from pathlib import Path
from common import seen
from conformance.isolation.placement import factory_of
from spec.vocabulary import InvalidInput

ENGINE = '''
def make(geometry, limits, cleanup):
    raise AssertionError("never made")
'''
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "only_in_the_kit.py").write_text(ENGINE)
    sys.path.insert(0, folder)
    found = {}
    for python in (None, sys.executable):
        try:
            factory_of("only_in_the_kit:make", python=python); found[python] = "found"
        except InvalidInput:
            found[python] = "not there"
seen("the module, in this Python and in a named one", list(found.values()), ["found", "not there"])
