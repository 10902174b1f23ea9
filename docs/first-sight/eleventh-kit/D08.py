"""A mutant with which a fixture of the tests raises is killed by the test that asks for it."""
import tempfile
from pathlib import Path
from common import *
from conformance.mutation import tested

folder = Path(tempfile.mkdtemp())
(folder / "test_made.py").write_text('''
import pytest
from conformance.mutation import schemata

def broken():
    raise ValueError("the mutant")

@pytest.fixture
def made():
    return schemata.choose(lambda: 1, [(7, broken)])

def test_it(made):
    assert made == 1
''')
fates = {}
tested.judge([str(folder)], [7], lambda number, killed, *, run=True: fates.update({number: (killed is not None, run)}))
seen("mutant 7 (killed, run)", fates, {7: (True, True)})
