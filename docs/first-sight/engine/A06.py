from common import *
# Known: 5 prompt tokens and the drawn one. Three drafts; positions 5..8 are written. The cell of
# the known token at 5 is committed by the write: committed is 6.
e = engine(8, 4, 4, 4)
e.prefill([req(1, (1, 2, 3, 4, 5), 8)])
e.propose(0, (1, 2, 3))
check([entry[2] for entry in e.pack()], [5, 6, 7, 8], "packed positions")
cells = [(0, p) for p in range(5, 9)]
e.allocate(cells); e.write(cells)
check(why(e.truncate, 0, 5), "COMMITTED", "truncation of the cell of a known token")
check(why(e.commit, 0, 6), "COMMITTED", "second commit of the cell of a known token")
