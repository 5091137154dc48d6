"""Serve a folder that Descend wrote in an environment of its own, where Descend is not installed, and say its accuracy.

    python examples/without_descend.py FOLDER DATA [--accuracy A]

FOLDER is what `descend layers --save` or `descend export` wrote of a classifier. DATA is a folder with a sub-folder of
texts or images for each class, or a CSV file with the columns text and label. Of a folder that holds model.onnx the
environment has onnxruntime and no PyTorch. With --accuracy the script fails if it is another one, by more than .001:
give the accuracy of the card, and the test data that it was measured on.

The code on the card and in linear_readout.py is run: give only folders that you wrote.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent

SERVE = """
import csv, importlib.util, json, re, sys
from pathlib import Path

folder, data = Path(sys.argv[1]), Path(sys.argv[2])
assert importlib.util.find_spec("descend") is None, "Descend is installed here"
csv.field_size_limit(2**30)
if data.is_file():
    with data.open(newline="", encoding="utf-8") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
else:
    rows = [(path, path.parent.name) for path in sorted(data.glob("*/*"))]
images = "image" in json.loads((folder / "config.json").read_text())["architectures"][0].lower()
if not images:
    keep = json.loads((folder / "tokenizer_config.json").read_text()).get("keep_markup", True)
    read = [(text.read_text(encoding="utf-8") if isinstance(text, Path) else text, label) for text, label in rows]
    rows = [((text if keep else text.replace("<br />", " ")).strip(), label) for text, label in read]
if (folder / "model.onnx").exists():
    assert importlib.util.find_spec("torch") is None, "PyTorch is installed here"
    code = re.search(r"```python\\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.S).group(1)
    sample = re.compile(r'\["A film to remember.*?\]|\[pixels\("image.png"\)\]')
    answers = []
    for first in range(0, len(rows), 32):
        given = [str(each) for each, _ in rows[first : first + 32]]
        text = f"[pixels(each) for each in {given!r}]" if images else repr(given)
        exec(sample.sub(lambda _: text, code), {"print": answers.extend})
else:
    from transformers import pipeline

    if images:
        classify = pipeline("image-classification", model=str(folder), top_k=1)
        answers = [classify(str(path))[0]["label"] for path, _ in rows]
    else:
        classify = pipeline("text-classification", model=str(folder), truncation=True, trust_remote_code=True)
        answers = [found["label"] for found in classify([text for text, _ in rows], batch_size=16)]
right = sum(answer == label for answer, (_, label) in zip(answers, rows, strict=True))
print(f"{right} of {len(rows)} right, accuracy {right / len(rows):.4f}")
"""


def main() -> int:
    """Make the environment, and run the code above in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--accuracy", type=float)
    options = parser.parse_args()
    if (options.folder / "modules.json").is_file():
        parser.error(f"{options.folder} is an embedding model: it has no classes.")
    onnx = (options.folder / "model.onnx").is_file()
    needed = ["onnxruntime", "tokenizers", "pillow"] if onnx else ["torch", "transformers", "pillow"]
    with TemporaryDirectory() as place:
        print(f"an environment with {', '.join(needed)} and no Descend, which takes a minute or two …", flush=True)
        venv.create(place, with_pip=True)
        python = str(Path(place, "bin", "python"))
        pip = [python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        for package in needed:  # torch first and alone, by its exact version
            subprocess.run([*pip, package], check=True)
        command = [python, "-I", "-c", SERVE, str(options.folder.resolve()), str(options.data.resolve())]
        done = subprocess.run(command, cwd=options.folder, capture_output=True, text=True)
    print(done.stdout, done.stderr if done.returncode else "", sep="", end="")
    if done.returncode or options.accuracy is None:
        return done.returncode
    return int(abs(float(done.stdout.split()[-1]) - options.accuracy) > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
