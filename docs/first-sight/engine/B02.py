from common import *
# Cleanup END: finished sequences are freed when no sequence is unfinished. Slot 0 holds an empty
# one, which is unfinished; so the finished one in slot 1 stays.
e = engine(8, 4, 4, 2, cleanup=CleanupMode.END)
e.reserve(0)
e.prefill([req(1, (1, 2), 1)])
check(e.stats().outputs, 1, "outputs")
check(e.stats().active, 2, "slots in use while slot 0 is unfinished")
