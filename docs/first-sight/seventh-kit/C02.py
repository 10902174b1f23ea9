"""`contents` of a tag is what `forward` computes, however many tags were asked for before."""
from common import *
from spec import model
w = 3
model.contents((1, 2, 3), w)
for a in range(100, 375):
    for b in range(250): model.contents((a, b), w)
model.contents((1, 2, 3, 4), w)
for a in range(400, 675):
    for b in range(250): model.contents((a, b), w)
try: got = model.contents((1, 2, 3, 4, 5), w)
except KeyError as e: got = f"KeyError {e}"
want = [c for c, _ in model.forward((1, 2, 3, 4, 5), w)][-1]
seen("contents of (1, 2, 3, 4, 5), window 3", got, want)
