"""The row of a slot in a recording, after a page of it was released."""
from common import *
from spec.fields import BY_NAME
# docs/recordings.md, "rows": in order, 2147483647 for a page that is released. Window 3, five
# committed cells in pages of two: the query at 5 sees 3, 4 and 5, so page 0 may go, and pages 1
# and 2 stay in entries 1 and 2.
m, s = start(geometry(window=3), ladder.machine("window"))
s = run(m, s, act.Reserve(0), act.Append(0, (1, 2, 3, 4, 5)), *written(0, 5), act.Release(0, 3))
row = view.of(m, s).rows[0]
seen("the row", row, (2147483647, 1, 2, 2147483647))
seen("its entry in a recording", BY_NAME["rows"].to_record(row), (2147483647, 1, 2))
seen("that of an empty row", BY_NAME["rows"].to_record((2147483647,) * 4), ())
