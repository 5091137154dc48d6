"""What is imported when, and what an installation without the extras can do."""

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from descend.cli import main
from descend.extras import EXTRAS, required
from descend.recipes import RECIPES
from tests.support.documented import ROOT
from tests.support.runs import put
from tests.support.sources import clips

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HEAVY = ("torch", "transformers", "accelerate", "datasets", "matplotlib", "optuna", "trl", "numpy")
OPTIONAL = sorted({module for modules in EXTRAS.values() for module in modules})

# Python's own finder of modules, blind to some of them, as if they were not installed.
HIDING = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else super().find_spec(name, path, target)

sys.meta_path = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""


# Code that runs in a separate process need not wait for imports: it is forked from one that has made them.
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
    os.dup2(os.open(place, os.O_RDWR | os.O_CREAT), number)
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


class Forking(subprocess.Popen):
    """A process that has imported some modules, and is forked for each code; a context manager, as every `Popen`."""

    def __init__(self, *modules: str):
        command = [sys.executable, "-c", _SERVER, *modules]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, code: str, folder: Path | None = None) -> subprocess.CompletedProcess:
        """Run code, as ``python -c`` does."""
        with tempfile.TemporaryDirectory() as place:
            files = [Path(place, name) for name in ("out", "err")]
            words = [code, str(folder or Path.cwd()), *map(str, files)]
            self.stdin.write(json.dumps(words) + "\n")
            self.stdin.flush()
            status = int(self.stdout.readline())
            return subprocess.CompletedProcess(code, status, *(file.read_text() for file in files))


# What takes long to import, and looks for no extra: no package of Hugging Face's is among them.
SLOW = ("torch._dynamo", "torch.distributed.tensor", "scipy.stats")


@pytest.fixture(scope="module")
def light() -> Iterator[Callable]:
    """Run code where the command line is imported, and nothing else."""
    with Forking("descend.cli") as forking:
        yield forking.run


@pytest.fixture(scope="module")
def without() -> Iterator[Callable]:
    """Run code where modules are hidden; `SLOW` are imported already."""
    with Forking(*SLOW) as forking:
        yield lambda hidden, code, cwd: forking.run(HIDING.format(hidden=list(hidden)) + code, cwd)


def saying(*argv: str) -> str:
    """The code of a command that says at its end which of `HEAVY` it imported."""
    return f"""
import sys
from descend.cli import main
try:
    status = main({list(argv)!r})
except SystemExit as exit:
    status = exit.code or 0
print("imported:", *(name for name in {HEAVY!r} if name in sys.modules))
sys.exit(status)
"""


# --- light


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        ([], 0),
        (["--help"], 0),
        (["--version"], 0),
        (["trian"], 2),
        (["recipes"], 0),
        (["train"], 2),
        (["train", "--help"], 0),
        *((["train", name, "--help"], 0) for name in RECIPES),
        (["train", "llm-sft", "--help-all"], 0),
        (["train", "video-ut", "--out", "run"], 2),
        (["train", "video-ut", "--data", "generated", "--out", "run", "--learning-rat", "3"], 2),
        (["train", "llm-sft", "--data", "generated", "--out", "run", "--max-steps", "many"], 2),
        (["train", "video-ut", "--data", "generated", "--out", "run", "--kernel", "cubic"], 2),
        (["train", "text-ut", "--data", "generated", "--output_dir", "run"], 2),
        (["train", "video-ut", "--data", "generated", "--out", "run", "--r-drop", "2"], 2),
        (["train", "text-ut", "--data", "generated", "--out", "RUN/config.json/run"], 2),
        (["evaluate", "RUN", "--model", "best"], 2),
        (["evaluate", "RUN", "--shift", "pink"], 2),
        (["sweep", "video-ut", "--trials", "1", "--out", "search", "--data", "generated", "--depht", "3"], 2),
        (["completion", "bash"], 0),
        (["train", "video-tu"], 2),
        (["train", "video-ut", "--data", "NOWHERE", "--out", "run"], 2),
        (["train", "text-ut", "--data=./NOWHERE", "--out", "run"], 2),
        (["train", "llm-sft", "--data", "NOWHERE", "--out", "run"], 2),
        (["demo", "--data", "NOWHERE"], 2),
        (["evaluate", "NOWHERE"], 2),
        (["evaluate", "--help"], 0),
        (["evaluate", "RUN", "--data", "NOWHERE"], 2),
        (["compare", "NOWHERE", "--out", "page"], 2),
        (["report", "NOWHERE"], 2),
        (["complete", "NOWHERE", "--prompts", "NOWHERE", "--out", "answers.json"], 2),
        (["complete", "RUN", "--prompts", "NOWHERE", "--out", "answers.json"], 2),
        (["privacy", "NOWHERE"], 2),
        (["sweep", "video-tu", "--trials", "1", "--out", "search"], 2),
    ],
)
def test_what_needs_no_model_imports_nothing_heavy(tmp_path, light, argv, status):
    put(tmp_path, {"RUN/config.json": '{"recipe": "video-ut"}'})
    done = light(saying(*argv), tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, "imported:"), done.stderr
    assert len(done.stderr.splitlines()) == (1 if status else 0)


# --- wheel and sdist


def test_the_sdist_holds_what_a_person_needs_to_test_it_and_its_wheel_every_file_of_the_package(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (ROOT / "src").rglob("*")
    assert held == {
        file.relative_to(ROOT / "src").as_posix()
        for file in files
        if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file)
    }
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"PKG-INFO", "LICENSE", "CITATION.cff", "Makefile", "constraints.txt", "docs/conf.py"} <= held
    assert {"tests/test_packaging.py", "examples/glue_descent.py", "docs/tutorials/own_model.py"} <= held
    assert not [
        name for name in held if name.startswith((".venv", "docs/build", "docs/gallery", "docs/tutorials/runs"))
    ]


# --- without the extras


def test_the_extras_are_those_of_the_project():
    for extra, modules in EXTRAS.items():
        packages = PROJECT["optional-dependencies"][extra]
        assert {re.split(r"[<>=]", each)[0] for each in packages} == set(modules.values()), extra
    everything = ",".join(extra for extra in EXTRAS if extra not in ("tasks", "onnx", "embed", "privacy", "postgres"))
    assert PROJECT["optional-dependencies"]["all"] == [f"descend[{everything}]"]


@pytest.mark.slow
def test_core_needs_torch_alone():
    """A plain loop, where nothing but torch and what torch itself needs is installed."""
    every = {re.split(r"[<>=]", each)[0] for each in PROJECT["dependencies"]} - {"torch"}
    loop = """
import torch
from descend import DescentProblem, PrimalDual

dual = PrimalDual(DescentProblem(depth=2))
weight = torch.ones(3, requires_grad=True)
for step in range(3):
    losses = weight.square()
    dual.lagrangian(losses).backward()
    dual.observe(losses.detach())
    dual.step()
assert (dual.multipliers >= 0).all()
print("trained")
"""
    code = HIDING.format(hidden=[*every, *OPTIONAL]) + loop
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "trained\n", done.stderr


@pytest.mark.slow
def test_a_model_is_trained_and_evaluated_without_any_extra(tmp_path, without):
    """A model of Transformers and samples in a list; the verdict and its file, and a line says how to get the page."""
    script = """
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification
import descend

samples = [{"input_ids": torch.arange(4) + i % 3, "attention_mask": torch.ones(4, dtype=torch.long),
            "labels": torch.tensor(i % 2)} for i in range(8)]
model = DistilBertForSequenceClassification(
    DistilBertConfig(vocab_size=16, dim=8, n_layers=2, n_heads=2, hidden_dim=8, max_position_embeddings=8))
args = descend.DescentConfig("run", max_steps=2, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=2,
                             report_to="none", disable_tqdm=True, use_cpu=True, calibrate=False)
trainer = descend.DescentTrainer(model, args, train_dataset=samples, eval_dataset=samples)
trainer.train()
trainer.save_pretrained("model")
print("verdict:", descend.evaluate(trainer, samples).verdict)
"""
    done = without(OPTIONAL, script, tmp_path)
    assert "open: " in done.stdout.lower().splitlines()[-1], done.stderr
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert (tmp_path / "run" / "summary.json").is_file() and not (tmp_path / "run" / "report.html").exists()
    (line,) = (each for each in done.stderr.splitlines() if "report.html" in each)
    assert "pip install 'descend[report]'" in line and line.endswith("descend report run")


BESIDE_VIDEO = sorted({*OPTIONAL} - EXTRAS["video"].keys() - EXTRAS["report"].keys())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "page"),
    [(["matplotlib", "jinja2"], False), (BESIDE_VIDEO, True)],
    ids=["no report", "video alone"],
)
def test_videos_need_the_extra_video_and_for_the_page_report(tmp_path, without, hidden, page):
    videos = clips(tmp_path / "videos", frames=12)
    code = f"""
from descend.cli import main
words = ["--data", {str(videos)!r}, "--out", "run", "--max-steps", "2", "--depth", "2"]
print(main(["train", "video-ut", *words]), main(["evaluate", "run"]))
"""
    done = without(hidden, code, tmp_path)
    assert done.stdout.splitlines()[-1:] == ["0 0"], done.stderr
    assert "open: " in done.stdout.lower() and (tmp_path / "run" / "summary.json").is_file()
    assert (tmp_path / "run" / "report.html").is_file() is page
    advice = "Run: pip install 'descend[report]', then: descend report run"
    assert done.stderr.splitlines()[-1].endswith(advice) is not page


@pytest.mark.parametrize(
    ("argv", "module"),
    [
        (["train", "video-ut", "--data", "generated", "--out", "run"], "av"),
        (["demo"], "PIL"),
        (["demo"], "matplotlib"),
        (["train", "text-ut", "--data", "generated", "--out", "run"], "datasets"),
        (["train", "llm-sft", "--data", "generated", "--out", "run"], "trl"),
        (["train", "llm-sft", "--data", "generated", "--out", "run"], "peft"),
        (["sweep", "text-ut", "--data", "generated", "--trials", "1", "--out", "search"], "matplotlib"),
        (["sweep", "text-ut", "--data", "generated", "--trials", "1", "--out", "search"], "optuna"),
        (["layers", "MODEL", "--data", "generated", "--save", "small", "--format", "onnx"], "onnxruntime"),
        (["tasks", "RUN", "--tasks", "arc_easy", "--out", "out.json"], "lm_eval"),
        (["report", "RUN"], "matplotlib"),
        (["privacy", "--noise", "1"], "dp_accounting"),
    ],
)
@pytest.mark.slow
def test_a_missing_extra_is_one_line_that_says_what_to_install(tmp_path, without, argv, module):
    put(tmp_path, {"RUN/config.json": '{"recipe": "video-ut"}', "RUN/summary.json": "{}"})
    done = without([module], saying(*argv), tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert_says_what_to_install(line, module)
    assert not (tmp_path / "run").exists()


def test_a_missing_module_is_one_line_in_this_process_too(monkeypatch, capsys):
    for name in ("dp_accounting", "dp_accounting.gaussian_mechanism"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["privacy", "--noise", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert_says_what_to_install(line, "dp_accounting")


def assert_says_what_to_install(line: str, module: str) -> None:
    extra = next(modules for modules in EXTRAS.values() if module in modules)
    assert line.startswith("descend: ") and f"needs the package {extra[module]}," in line
    assert line.endswith("pip install " + " ".join(dict.fromkeys(extra.values())))


@pytest.mark.slow
def test_exports_of_texts_need_no_pillow(tmp_path, without):
    done = without(["PIL"], "import descend.run.exporting\nprint('read')", tmp_path)
    assert done.stdout == "read\n", done.stderr


def test_a_module_that_no_extra_brings_is_no_missing_extra():
    with pytest.raises(ModuleNotFoundError, match="nonsense"), required("A test"):
        import nonsense  # noqa: F401
