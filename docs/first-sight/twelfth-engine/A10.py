"""Two requests of two choices each in one prefill, both prompts end inside a page: each choice has a
last page of its own, and the text that its request has when it is served alone."""
from common import check, engine, req

def texts(*requests):
    e = engine(16, 4, 4, 4)
    e.prefill(list(requests))
    rows = e.extract().pages.rows.tolist()
    last = [row[1] for row in rows[: sum(r.n_generations for r in requests)]]
    e.generate()
    return last, {(o.request, o.choice): o.tokens for o in e.take_outputs()}

a = req(1, (1, 2, 3, 4, 5), 6, n=2, temperature=1.0)
b = req(2, (9, 8, 7, 6, 5, 4), 6, n=2, temperature=1.0)
alone = texts(a)[1] | texts(b)[1]
last, together = texts(a, b)
check(len(set(last)), 4, f"different last pages of the four choices {last}")
check(together, alone, "outputs of both requests")
