"""A history of a violation ends in the move that shows it, whichever move of the alphabet it is;
a violation by a state alone ends in the state. The first moves of the alphabet are reserve(0),
reserve(1).
"""
import sys
from pathlib import Path
import numpy as np
from conformance.exploration.graph import Graph
from conformance.exploration.instances import instance
from conformance.exploration.search import Wrong, told
from spec.vocabulary import Geometry

chosen = instance("lifecycle", Geometry(pages=2, page_size=2, slots=2, pages_per_seq=1))
graph = Graph()
graph.add_level(np.array([0, 0], np.int32), np.array([0, 1], np.int32))  # states 1 and 2
wanted = {
    (1, 1): "reserve(0), reserve(1)",
    (2, 0): "reserve(1), reserve(0)",  # the move with the number 0
    (0, 0): "reserve(0)",
    (1, None): "reserve(0)",
    (2, None): "reserve(1)",
}
wrong = []
for (state, move), history in wanted.items():
    found = told(chosen, graph, Wrong("CONS", "pages are lost", state, move))
    if found != history:
        wrong.append(f"violated by move {move} in state {state}: {found!r}, should be {history!r}")
print("\n".join(wrong) or "as it should be")
sys.exit(bool(wrong))
