"""What `validate --require everything` asks of an engine that reserves pages with the prompt.

By hand: with reserve="request" an Assign takes pages, so that it is refused with OUT_OF_PAGES when
they are not there; with reserve="none" it takes none and can never be. So a recording of the former
must reach `Assign: OUT_OF_PAGES`, and one of the latter need not.
"""
import sys

from conformance.recordings.format import header_from_data
from conformance.recordings.required import required
from conformance.rungs.coverage import Coverage
from spec.machines import actions as act

reached = Coverage()
for kind in (act.Reserve, act.Assign, act.Allocate, act.Write, act.Free):
    reached.count(kind, frozenset(), [])
for reserve, wanted in (("none", False), ("request", True)):
    header = header_from_data({
        "kvspec": "recording", "version": 2, "policy": "lowest", "reserve": reserve,
        "geometry": {"pages": 8, "page_size": 4, "slots": 4, "pages_per_seq": 4},
    })
    items = required(["everything"], reached, header)
    print(reserve, "requires Assign: OUT_OF_PAGES:", "Assign: OUT_OF_PAGES" in items)
    if ("Assign: OUT_OF_PAGES" in items) != wanted:
        sys.exit(1)
