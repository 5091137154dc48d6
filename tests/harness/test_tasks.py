"""`descend tasks` and its model type on small runs, with local YAML files and no network, against lm-eval's hf."""

import json
import random
import re
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from descend.cli import main
from descend.errors import InputError
from descend.harness import evaluating, loading
from descend.harness.model import DescendLM, without_end
from descend.reading import read_json
from descend.results import TaskResults
from descend.tasks.text import encode_prompt
from tests.support.documented import ROOT
from tests.support.runs import SMALL, put, refused, said, trained

TRAINING = f"{SMALL} --data generated --noise 0.5"
WORDS = ["sun", "cat", "dog", "red", "tree", "moon", "fish", "bird", "house", "river"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A constrained run whose tokenizer ends each text with a special token."""
    folder = tmp_path_factory.mktemp("runs") / "constrained"
    return trained(folder, "llm-sft", f"{TRAINING} --max-steps 40 --alpha 0.1")


@pytest.fixture(scope="module")
def plain(run):
    """A run of ERM whose tokenizer adds no special token, as that of GPT-2."""
    vocabulary = {word: place for place, word in enumerate(["<pad>", "<end>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unk>"
    ).save_pretrained(run.parent / "tokenizer")
    return trained(run.parent / "erm", "llm-sft", f"{TRAINING} --method erm", "--tokenizer", run.parent / "tokenizer")


@pytest.fixture(scope="module")
def tasks(run):
    """YAML files of a multiple-choice, a generating and a rolling task."""
    folder, draw = run.parent / "tasks", random.Random(0)
    rows = [{"words": draw.sample(WORDS, 4), "label": draw.randrange(4)} for _ in range(12)]
    put(folder, {"rows.jsonl": "\n".join(map(json.dumps, rows))})
    kinds = {
        "choose": "output_type: multiple_choice\ndoc_to_choice: '{{words}}'\ndoc_to_target: '{{label}}'\n"
        "metric_list: [{metric: acc}, {metric: acc_norm}]\n",
        "write": "output_type: generate_until\ndoc_to_target: '{{words[0]}}'\nmetric_list: [{metric: exact_match}]\n"
        'generation_kwargs: {until: ["\\n"], max_gen_toks: 6, min_new_tokens: 3}\n',
        "roll": "output_type: loglikelihood_rolling\ndoc_to_target: '{{words | join(\" \")}}'\n"
        "metric_list: [{metric: word_perplexity}]\n",
    }
    for name, text in kinds.items():
        text += "doc_to_text: ''\n" if name == "roll" else "doc_to_text: 'say the first of these words : {{words}}'\n"
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ntest_split: test\n{text}"
            f"dataset_kwargs: {{data_files: {{test: '{folder / 'rows.jsonl'}'}}}}\n"
        )
    return {name: str(folder / f"{name}.yaml") for name in kinds}


DRAW = random.Random(1)
LENGTHS = [(DRAW.randint(2, 14), DRAW.randint(1, 4)) for _ in range(24)]
PAIRS = [(" ".join(DRAW.choices(WORDS, k=a)), " ".join(["", *DRAW.choices(WORDS, k=b)])) for a, b in LENGTHS]
ORDER = range(24)


def read(lm, order=ORDER):
    """Log-likelihoods, rolling ones and answers, asked for in an order and returned in the usual one."""
    settings = {"until": ["\n"], "max_gen_toks": 6, "min_new_tokens": 3}
    results = []
    for kind, asked in (
        ("loglikelihood", PAIRS),
        ("loglikelihood_rolling", [("".join(pair),) for pair in PAIRS]),
        ("generate_until", [(prompt, settings) for prompt, _ in PAIRS]),
    ):
        requests = [Instance(request_type=kind, doc={}, arguments=asked[place], idx=0) for place in order]
        answers = dict(zip(order, getattr(lm, kind)(requests), strict=True))
        results.append([answers[place] for place in ORDER])
    return results


# --- the model type


@pytest.mark.slow
def test_without_noise_and_at_full_depth_it_is_hf(run, plain):
    """For a tokenizer that closes texts: hf with the tokenizer that does not."""
    for folder in (run, plain):
        lm = DescendLM(str(folder))
        given = {"tokenizer": lm.tokenizer} if folder == run else {}
        hf = HFLM(pretrained=str(folder / "model"), device="cpu", batch_size=5, **given)
        (likely, rolling, answers), (hf_likely, hf_rolling, hf_answers) = read(lm), read(hf)
        for mine, other in zip(likely, hf_likely, strict=True):
            assert mine[0] == pytest.approx(other[0], abs=1e-6 * max(1, abs(other[0]))) and mine[1] == other[1]
        assert rolling == pytest.approx(hf_rolling, rel=1e-6) and answers == hf_answers
        assert any(answers)


@pytest.mark.slow
def test_results_are_bit_equal_over_batch_size_and_order_and_padding_changes_them_by_rounding(run):
    alone = DescendLM(str(run), noise=1, layer=2)
    together = DescendLM(str(run), noise=1, layer=2, batch_size=7)
    order = DRAW.sample(ORDER, 24)
    results = likely, rolling, answers = read(alone)
    assert results == read(together) == read(together, order)
    together.batch_size_per_gpu = 7  # as on a GPU, where texts do run together: the draws are the same
    padded = read(together)
    assert [value for value, _ in padded[0]] == pytest.approx([value for value, _ in likely], abs=1e-4)
    assert padded[1] == pytest.approx(rolling, abs=1e-4) and padded[2] == answers
    alone.noise = alone.noise.at(0)
    assert all(clean[0] != noisy[0] for clean, noisy in zip(read(alone)[0], likely, strict=True))


def test_a_prompt_is_encoded_as_in_training(run):
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    closing = tokenizer("red sun")["input_ids"]
    assert closing[-1] == tokenizer.sep_token_id
    opened = without_end(tokenizer)
    assert opened("red sun")["input_ids"] == closing[:-1] == encode_prompt(opened, "red sun")
    assert without_end(opened)("red sun")["input_ids"] == closing[:-1]


def test_lm_eval_finds_the_model_type_after_an_import(run):
    assert get_model("descend") is DescendLM
    lm = get_model("descend").create_from_arg_string(
        f"pretrained={run},noise=1.5,layer=2", {"batch_size": 4, "device": "cuda"}
    )
    assert lm.noise.level == 1.5 and len(lm.model.model.layers) == 2


# --- the command


@pytest.mark.slow
def test_runs_are_evaluated_and_compared(run, plain, tasks, tmp_path, capsys):
    out = tmp_path / "new" / "results.json"
    flags = ["--tasks", ",".join(tasks.values()), "--noise", "0,1", "--out", str(out)]
    assert main(["tasks", str(run), str(plain), *flags]) == 0
    printed = capsys.readouterr().out
    results = TaskResults.read(out)
    assert str(out) in printed and results.noise == [0, 1] and results.layer is None
    assert [each.method for each in results.runs] == ["constrained", "erm"] and results.runs[0].depth == 3
    curves = {(each.run, each.metric): each for each in results.curves}
    assert curves.keys() == {
        (place, metric) for place in (0, 1) for metric in ("acc", "acc_norm", "exact_match", "word_perplexity")
    }
    for place, folder in enumerate((run, plain)):
        hf = HFLM(pretrained=str(folder / "model"), tokenizer=DescendLM(str(folder)).tokenizer, device="cpu")
        given = {"tasks": list(tasks.values()), "task_manager": TaskManager(include_defaults=False)}
        expected = simple_evaluate(hf, bootstrap_iters=0, **given)["results"]
        for curve in (each for each in results.curves if each.run == place):
            assert curve.values[0] == pytest.approx(expected[curve.task][f"{curve.metric},none"], rel=1e-6)
            assert curve.samples == 12 and curve.higher_is_better == (curve.metric != "word_perplexity")
    for each in results.comparisons:
        mine, first = curves[each.run, each.metric], curves[0, each.metric]
        assert each.run == 1
        assert each.differences == pytest.approx([a - b for a, b in zip(mine.values, first.values, strict=True)])
        unpaired = each.metric == "word_perplexity"  # no mean of samples
        assert (each.low == each.p_values == each.wins == mine.low == [None, None]) is unpaired


def test_an_export_is_evaluated_as_the_exit_that_it_is(run, tasks, tmp_path, capsys):
    assert main(["export", str(run), "--layers", "2", "--out", str(tmp_path / "two")]) == 0
    for folder, more in ((run, ["--layer", "2"]), (tmp_path / "two", [])):
        out = str(tmp_path / f"{folder.name}.json")
        assert main(["tasks", str(folder), "--tasks", tasks["choose"], "--out", out, *more]) == 0
    exit, export = (TaskResults.read(tmp_path / f"{name}.json") for name in (run.name, "two"))
    assert [curve.values for curve in export.curves] == [curve.values for curve in exit.curves]
    assert [(each.model, each.method, each.depth) for each in export.runs] == [("Llama-2", "constrained", 2)]
    for flags in (["--noise", "0,1"], ["--model", "best_feasible"]):
        words = ["tasks", tmp_path / "two", "--tasks", tasks["choose"], "--out", "none", *flags]
        assert "two is an export" in refused(capsys, *words)


def test_the_same_command_gives_the_same_file_and_overwrites_none(run, tasks, tmp_path, capsys):
    words = ["tasks", run, "--tasks", tasks["choose"], "--noise", "1", "--layer", "1", "--limit", "5", "--out"]
    for name in ("a.json", "b.json"):
        said(capsys, *words, tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    content = read_json(tmp_path / "a.json")
    assert content["layer"] == 1 and content["limit"] == 5 and content["curves"][0]["samples"] == 5
    assert {each.name for each in tmp_path.iterdir()} == {"a.json", "b.json"}
    assert "b.json exists" in refused(capsys, *words, tmp_path / "b.json")


def test_bad_input_is_one_line_before_a_model_is_loaded(run, tasks, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluating, "DescendLM", None)  # no model can be loaded
    # A folder with a few tasks, in place of lm-eval's with thousands.
    known = {"include_path": str(Path(tasks["choose"]).parent), "include_defaults": False}
    monkeypatch.setattr(loading, "TaskManager", lambda **kwargs: TaskManager(**known))
    good, config = tasks["choose"], (run / "config.json").read_text()
    given = {
        "video/config.json": config.replace("llm-sft", "video-ut"),
        "unfinished/config.json": config,
        "wrong.yaml": Path(good).read_text().replace("{{words}}'\n", "{{absent.words}}'\n"),
        "twin.yaml": Path(good).read_text(),
        "file": "",
    }
    put(tmp_path, given)
    video, unfinished, wrong, twin, file = (tmp_path / name.partition("/")[0] for name in given)
    for runs, names, flags, words in [
        ([run], "chose", [], "no task 'chose'.*choose"),
        ([run], str(tmp_path / "none.yaml"), [], "no .*none.yaml"),
        ([run], str(wrong), [], "wrong.*absent"),
        ([run], " , ", [], "--tasks"),
        ([run], f"{good},{twin}", [], "got choose twice"),
        ([run, video], good, [], "video is one of video-ut"),
        ([run, unfinished], good, [], "unfinished has no model"),
        ([run, tmp_path], good, [], "config.json"),
        ([run], good, ["--layer", "4"], "layer must be from 1 to 3.*4"),
        ([run], good, ["--layer", "0"], "layer must be from 1 to 3.*0"),
        ([run], good, ["--model", "best"], "'best'; its models: model"),
        ([run], good, ["--limit", "0"], "limit"),
        ([run], good, ["--noise", "-1"], "γ of at least 0"),
        ([run], good, ["--out", str(tmp_path)], "exists"),
        ([run], good, ["--out", str(file / "out.json")], "file"),
    ]:
        argv = ["tasks", *map(str, runs), "--tasks", names, "--out", str(tmp_path / "out.json"), *flags]
        status, printed = main(argv), capsys.readouterr()
        (*bars, line) = printed.err.splitlines()
        assert status in (1, 2) and not printed.out and all("it/s" in bar for bar in bars), argv
        assert line.startswith("descend: ") and re.search(words, line), line
    assert not (tmp_path / "out.json").exists()


TASK = (
    "task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: '{rows}'}}}}\ntest_split: test\n"
    "output_type: multiple_choice\ndoc_to_choice: ['red', 'blue']\ndoc_to_target: 0\n"
)
TEXT = "doc_to_text: '{{words}}'\n"
METRIC = "metric_list: [{metric: acc}]\n"


@pytest.fixture
def code(tmp_path):
    """A folder with a module that leaves a mark when it is imported, a task of one row and files to include."""
    helper = (
        f"open({str(tmp_path / 'ran')!r}, 'w')\ndef text(doc):\n    return doc['words']\n"
        "def metric(items):\n    return items\n"
    )
    files = {
        "rows.jsonl": '{"words": "red"}\n',
        "helper.py": helper,
        "script/script.py": helper,
        "inner": "doc_to_text: !function helper.text\n",
        "middle.yml": "include: inner\n",
    }
    put(tmp_path, files)
    return tmp_path


ESCAPE = "{{ cycler.__init__.__globals__.__builtins__.open('%s', 'w') }}"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("doc_to_text: !function helper.text\n" + METRIC, r"task\.yaml has !function helper\.text.*--trust-code"),
        ("include: middle.yml\n" + METRIC, r"inner has !function helper\.text.*--trust-code"),
        ("include: [{folder}/inner]\n" + METRIC, r"inner has !function"),
        ("group: mine\ntask: [arc_easy]\n", r"expected the YAML file of one task; .* is of a group"),
        (TEXT + "metric_list: [{metric: !function helper.metric}]\n", r"runs code or writes files: .*helper\.metric"),
        (TEXT + "metric_list: [{metric: {folder}/script}]\n", r"metric \S+/script, which is none of lm-eval's own"),
        (TEXT + "metric_list: [{metric: acc, hf_evaluate: true}]\n", "package evaluate"),
        (TEXT + METRIC + "metadata: {a: &x [!function helper.text, *x]}\n", "!function helper.text"),
        (TEXT + METRIC + "metadata: !!python/name:os.system ''\n", "python/name:os.system"),
        (TEXT + METRIC + "\ufeffinclude: inner\n", "is not YAML"),
        ("\ufeff" + METRIC + "\ufeffinclude: inner\n", "is not YAML|!function helper.text"),
        (TEXT + METRIC + '"inc\\x6cude": inner\n', "!function helper.text"),
        (TEXT + METRIC + "include: /dev/zero\n", "must be a file of at most"),
        (TEXT + METRIC + "metadata: " + "[" * 10_000, "nested deeper than 64"),
        (
            TEXT + METRIC.replace("acc}]", "acc}]\ndataset_kwargs: {data_files: rows.jsonl, cache_dir: ran}"),
            r"says where files are written, by cache_dir.*--trust-code",
        ),
        (f'doc_to_text: "{ESCAPE % "{folder}/ran"}"\n' + METRIC, r"SecurityError.*__init__"),
    ],
)
def test_no_code_of_a_task_file_runs_unless_it_is_trusted(code, lines, words):
    task = code / "task.yaml"
    text = TASK.format(name="task", rows=code / "rows.jsonl") + lines.replace("{folder}", str(code))
    task.write_text(text)
    with pytest.raises(InputError, match=words):
        loading.load_tasks([str(task)])
    assert not (code / "ran").exists()


def test_trusted_code_runs_and_a_plain_task_needs_no_trust(code, run, capsys):
    plain, coded = code / "plain.yaml", code / "coded.yaml"
    lines = {"plain": TEXT + METRIC, "coded": "include: middle.yml\n" + METRIC}
    put(code, {f"{name}.yaml": TASK.format(name=name, rows=code / "rows.jsonl") + lines[name] for name in lines})
    for task, flags, status in ((plain, [], 0), (coded, [], 2), (coded, ["--trust-code"], 0)):
        assert not (code / "ran").exists()
        out = ["--out", str(code / f"{task.stem}.json")]
        assert main(["tasks", str(run), "--tasks", str(task), *out, *flags]) == status
    assert (code / "ran").exists() and TaskResults.read(code / "coded.json").curves[0].task == "coded"
    assert "--trust-code" in capsys.readouterr().err


def test_the_task_of_the_page_is_one_and_the_script_that_makes_its_data_runs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = ROOT / "docs" / "guides" / "tasks.md"
    record = ROOT / "reproduction" / "records" / "guides.md"
    made = record.read_text("utf-8").split("`make.py`:\n\n")[1]
    for name, kind, page in (("task.yaml", "yaml", guide.read_text("utf-8")), ("make.py", "python", made)):
        Path(name).write_text(page.split(f"```{kind}\n")[1].split("```")[0])
    answer = " ".join(WORDS * 2)
    Path("prompts.json").write_text(json.dumps([{"instruction": "say it", "output": answer}] * 3))
    monkeypatch.setattr("sys.argv", ["make.py", "prompts.json"])
    exec(Path("make.py").read_text(), {})
    rows = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(len(set(row["choices"])) == 4 for row in rows)
    assert all(row["choices"][row["label"]] == " ".join(answer.split()[:16]) for row in rows)
    assert main(["tasks", str(run), "--tasks", "task.yaml", "--out", "out.json"]) == 0
    assert {each.metric for each in TaskResults.read(Path("out.json")).curves} == {"acc", "acc_norm"}


def test_an_answer_longer_than_the_context_is_one_line(run, tasks, tmp_path, capsys):
    long = tmp_path / "long.yaml"
    long.write_text(Path(tasks["write"]).read_text().replace("max_gen_toks: 6", "max_gen_toks: 600"))
    words = ["tasks", run, "--tasks", long, "--out", tmp_path / "out.json"]
    assert "600" in said(capsys, *words, status=2)[1].splitlines()[-1]  # lm-eval's bar is before it
