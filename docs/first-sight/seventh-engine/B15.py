"""A geometry with a window of 2: the engine attends to every position, so Setup refuses it (docs/window.md)."""
import sys

from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, InvalidInput, default_limits

for window in (1, 2, 7, 8, 9):
    geometry = Geometry(pages=8, page_size=4, slots=2, pages_per_seq=2, window=window)
    try:
        Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())
    except InvalidInput as error:
        if error.name == "Setup.geometry":
            continue
    print(f"a window of {window} is accepted, and ignored")
    sys.exit(1)
