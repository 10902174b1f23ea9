"""A run must have reached a pool that is exactly full wherever rows can fill it. Two slots with rows
of two pages fill a pool of four pages exactly, as they do one of three; they cannot fill five.
"""
from common import *
from conformance.rungs.coverage import Coverage, offered_by


def required(pages):
    g = geometry(pages=pages, slots=2, pages_per_seq=2)
    return "pool exactly full" in Coverage().coverable(offered_by(profile(g=g), [g], poisonable=False))


found = {pages: required(pages) for pages in (3, 4, 5)}
seen("whether a full pool is required, by pages", found, {3: True, 4: True, 5: False})
