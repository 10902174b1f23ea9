"""A geometry has fewer than 2**31 cells in its pool and fewer than 2**31 positions in a row: with
2**31 the last destination would be 2**31 - 1, which is INVALID. 2**15 pages of 2**16 are refused.
"""
from common import *

def made(**sizes):
    try:
        geometry(**sizes)
    except InvalidInput as error:
        return error.name
    return "made"

seen("a pool of 2**31 - 2**16 cells", made(pages=2**15 - 1, page_size=2**16), "made")
seen("a pool of 2**31 cells", made(pages=2**15, page_size=2**16), "Geometry.pages")
seen("a row of 2**31 positions", made(page_size=2**16, pages_per_seq=2**15), "Geometry.pages_per_seq")
