"""`diff A B --python-b P`: B goes wrong, so its history file names B and the Python P of B, and
`rerun --trust` runs it there."""
import json, os, subprocess, sys, tempfile

TOY = '''
from conformance.protocol import Profile
from spec import ladder, view
from spec.machines.actions import Allocate, Free, Reserve

MACHINE = ladder.machine("pages")


class Engine:
    def __init__(self, geometry, limits, cleanup):
        self.profile = Profile(name="toy", geometry=geometry, limits=limits, cleanup=cleanup,
                               actions={Reserve, Allocate, Free})
        self.state = MACHINE.initial(geometry, limits, cleanup)

    def apply(self, action):
        after = MACHINE.step(self.state, action)
        if not (WRONG and isinstance(action, Free)):
            self.state = after

    def observe(self):
        return view.of(MACHINE, self.state)


make = Engine
'''
with tempfile.TemporaryDirectory() as folder:
    for name, wrong in (("toy_a", False), ("toy_b", True)):
        with open(os.path.join(folder, name + ".py"), "w") as file:
            file.write(f"WRONG = {wrong}\n" + TOY)
    out = os.path.join(folder, "d.json")
    paths = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    command = "import sys; from conformance.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", command, "diff", "toy_a:make", "toy_b:make", "--python-b",
         sys.executable, "--seconds", "3", "--json", out,
         "--geometry", "pages=4,page_size=2,slots=2,pages_per_seq=2"],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": paths})
    print(done.returncode, done.stdout[-1500:], done.stderr[-600:])
    result = json.load(open(out))
    assert done.returncode == 1 and result["at_fault"] == "B", result
    with open(os.path.join(folder, result["counterexample"])) as file:
        header = json.loads(file.readline())
print(header)
assert header["engine"] == "toy_b:make"
sys.exit(int(header.get("python") != sys.executable))
