from common import *
from spec.vocabulary.errors import refused, CapacityRefused, RequestRefused
# The lowest code decides the class: OUT_OF_PAGES is 20, CHOICE_TAKEN 31, NEVER_FITS 32.
for order in ((Reason.CHOICE_TAKEN, Reason.OUT_OF_PAGES), (Reason.OUT_OF_PAGES, Reason.CHOICE_TAKEN)):
    seen("class", type(refused(map(Refusal, order))).__name__, "CapacityRefused")
# SLOT_RANGE is 1 and STOPS 30: an Assign to a slot out of range with too many stop sequences.
both = [Refusal(Reason.STOPS), Refusal(Reason.SLOT_RANGE)]
seen("class", type(refused(both)).__name__, "SlotRefused")
