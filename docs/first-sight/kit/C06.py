from common import *
# Window 3, 6 committed cells: the next query, at 6, sees 4, 5, 6. So `before` may be 6 - 3 + 1 = 4: two pages of 2.
m, s = start(geometry(window=3), ladder.machine("window"))
s = run(m, s, act.Reserve(0), act.Append(0, (1, 2, 3, 4, 5, 6)), *written(0, 6))
seen("Release(0, 4)", reasons(m, s, act.Release(0, 4)), set())
seen("Release(0, 5)", reasons(m, s, act.Release(0, 5)), {"WINDOW"})
