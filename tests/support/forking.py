"""Code in a process of its own that need not wait for imports: it is forked from one that has made them.

And has done nothing else: to fork one that has trained is not safe everywhere.
"""

import json
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path


def prepared() -> str:
    """The name of the way to start processes from one that has imported what trainers need."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["descend.training.trainer", "descend.run"])
    return "forkserver"


# Each line of its input is the code, the folder it runs in, and the files of what it prints.
_SERVER = """
import gc, importlib, json, os, signal, sys, traceback
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()
for line in sys.stdin:
    code, folder, *files = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.chdir(folder)
for number, place in enumerate([os.devnull, *files]):
    os.dup2(os.open(place, os.O_RDWR), number)
sys.argv[:] = ["-c"]
signal.alarm(300)  # it may not hang
status = 0
try:
    exec(code, {"__name__": "__main__"})
except SystemExit as end:
    status = end.code or 0
except BaseException:
    traceback.print_exc()
    status = 1
for stream in (sys.stdout, sys.stderr):
    stream.flush()
os._exit(status)  # to take all that was imported apart takes a second
"""


class Forking:
    """A process that has imported some modules, and is forked for each code."""

    def __init__(self, *modules: str):
        command = [sys.executable, "-c", _SERVER, *modules]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, code: str, folder: Path | None = None) -> subprocess.CompletedProcess:
        """Run code, as ``python -c`` does."""
        with tempfile.TemporaryDirectory() as place:
            files = [Path(place, name) for name in ("out", "err")]
            for file in files:
                file.touch()
            words = [code, str(folder or Path.cwd()), *map(str, files)]
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            return subprocess.CompletedProcess(code, status, *(file.read_text() for file in files))

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
