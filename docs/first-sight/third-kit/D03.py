"""In the format in words a vector has a line `result` wherever its recording has one, so that the
reader compares it. The lowest slot of a new table is 0, and Reserve returns it: `result 0`.
"""
from common import *
from conformance.recordings.format import Header, Line
from conformance.vectors.build import Vector
from conformance.vectors.files import in_words

g = geometry()
lines = (
    Line(act.Reserve(None), None, 0, {"used": {0: True}}),
    Line(act.Reserve(None), None, 1, {"used": {1: True}}),
)
vector = Vector("one", Header(geometry=g, limits=default_limits(g), policy="lowest"), lines, frozenset())
found = in_words(vector).splitlines()[3:]
seen("the vector in words", found, [
    "do Reserve -", "result 0", "saw used 0 1", "end",
    "do Reserve -", "result 1", "saw used 1 1", "end",
])
