"""A command that failed has the exit status 1, also if its result cannot be written."""
from common import *
import shutil
from conformance.cli.contract import execute
from conformance.verdict import Verdict
class Command:
    NAME, HELP, EXAMPLES = "test", "a command whose result cannot be written", ()
    def __init__(self, folder, fails): self.folder, self.fails = folder, fails
    def add_arguments(self, parser): pass
    def run(self, arguments, report):
        shutil.rmtree(self.folder)  # the folder of --json is a file when the result is to be written
        Path(self.folder).write_text("")
        if self.fails: report.fail("CONS: a page leaked")
        return Verdict.FAILS if self.fails else Verdict.HOLDS
# By hand: "An unwritable result is bad usage (2), unless the command failed": then it is 1.
for fails, status in ((False, 2), (True, 1)):
    folder = tempfile.mkdtemp()
    seen(f"fails: {fails}", execute(Command(folder, fails), ["--json", f"{folder}/r.json"]), status)
    Path(folder).unlink()
