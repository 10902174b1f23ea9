"""explore: a checkpoint of another exploration, with another cleanup, is bad input: exit status 2."""
from common import *
import subprocess
def explore(folder, cleanup, *more):
    words = [str(Path(sys.executable).parent / "kvspec"), "explore", "--rung", "scheduling", "--cleanup", cleanup, "--quiet",
             "--geometry", "pages=1,slots=1,page_size=4,pages_per_seq=1", "--checkpoint", f"{folder}/c", *more]
    return subprocess.run(words, capture_output=True, text=True).returncode
# By hand: with --states 3 the first run stops with states left: undecided, 3, and it keeps its checkpoint. It has taken
# moves with cleanup "none"; a run with cleanup "incremental" has other states, so that it cannot go on from there: 2.
# With cleanup "none" again it goes on to the end: 0.
with tempfile.TemporaryDirectory() as folder:
    seen("bounded", explore(folder, "none", "--states", "3"), 3)
    seen("another cleanup", explore(folder, "incremental"), 2)
    seen("the same cleanup", explore(folder, "none"), 0)
