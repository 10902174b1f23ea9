"""A second turn: the prompt of the next request is the first one with its output, and it is served.

Output.tokens are Tokens, a tuple of ints, as a prompt is; a server sends them as JSON. Engine:
integers are Python ints.
"""

import json
import sys

from impl.engine import Engine
from impl.host import Host
from impl.models.integer import IntegerModel
from impl.setup import Setup
from spec.vocabulary import Geometry, InvalidInput, Params, Request, default_limits

geometry = Geometry(pages=4, page_size=4, slots=1, pages_per_seq=2)
host = Host(Engine(Setup(geometry=geometry, limits=default_limits(geometry), model=IntegerModel())))
params = Params(max_new=2)
first = host.generate([Request(id=1, prompt=(5, 6), params=params)])[1, 0]
try:
    text = json.dumps(first.tokens)
    second = host.generate([Request(id=2, prompt=(5, 6, *first.tokens, 7), params=params)])[2, 0]
except (InvalidInput, TypeError) as error:
    print(error)
    sys.exit(1)
print(text, second)
sys.exit((len(first.tokens), len(second.tokens)) != (2, 2))
