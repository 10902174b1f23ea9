"""After a truncation no cell holds a rejected draft, also in a page that the row keeps."""
from common import *


def drafts_left(capacity, drafts=(41, 42)):
    m, s = start(machine=ladder.machine("rollback", "scheduling"), capacity=capacity)
    request = Request(id=1, prompt=(1, 2, 3), params=Params(max_new=5))
    s = run(m, s, act.Prefill((request,)), act.Propose(0, drafts), act.Pack())
    three = ((0, 3), (0, 4), (0, 5))  # the drawn token and two drafts
    s = run(m, s, act.Allocate(three), act.Write(three))
    assert s.committed[0] == 4 and s.sequences[0].written == 6
    s = run(m, s, act.Truncate(0, 4))
    assert s.proposed[0] == () and s.sequences[0].written == 4
    # A tag ends with the token that was written: no cell may end with a draft.
    return sum(tag[-1:] in ((41,), (42,)) for tag in view.of(m, s).cells)


seen("as standard", drafts_left(STANDARD), 0)
seen("pages taken ahead", drafts_left(Capacity(lookahead=2)), 0)
seen("pages reserved", drafts_left(Capacity(reserve="request")), 0)
