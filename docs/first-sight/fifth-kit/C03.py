"""The worst case of a request counts the full pages of its prompt once for each choice.

docs/sources.md 5.10: for n choices it is floor(prompt / page_size) pages, plus n times the further
pages up to prompt + max_new. Pages of four, a prompt of four, max_new 4, three choices: 1 + 3 * 1 = 4
pages. A pool of five has them, so Submit is done; counted three times it would be 3 * 2 = 6 pages,
and NEVER_FITS.
"""

from common_c import answer, engine_of, judge, reasons

from spec import ladder
from spec.machines.actions import Submit
from spec.vocabulary import CleanupMode, Geometry, Params, Request, default_limits

geometry = Geometry(pages=5, page_size=4, slots=4, pages_per_seq=3)
request = Request(id=1, prompt=(1, 2, 3, 4), params=Params(max_new=4), n_generations=3)
machine = ladder.machine("admission")
new = machine.initial(geometry, default_limits(geometry), CleanupMode.INCREMENTAL)
judge(
    ("pages of the worst case", 4, request.pages_needed(geometry)),
    ("the specification refuses Submit for", [], reasons(machine, new, Submit(request))),
    ("the engine refuses Submit for", [], answer(engine_of(geometry), Submit(request))),
)
