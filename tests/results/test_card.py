"""Model cards: what they say, when they are written, and that a user's own is never overwritten."""

import shlex
import shutil
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from transformers import TrainingArguments

import descend
from descend.cli import main
from descend.cli.settings import read_recipe
from descend.report import verdict_sentence
from descend.report.card import card
from descend.results import CARD_FILE, RunConfig, Summary, read_summary, write_card
from descend.run.describing import stored, train_command, values_of
from tests.support.networks import QUIET, network
from tests.support.runs import train
from tests.support.subjects import labelled

SUMMARY = {
    **{"metric": "accuracy", "higher_is_better": True, "noise": [0, 1.0], "values": [0.9, 0.8], "mean": 0.85},
    **{"train_noise": 1.0, "layer_losses": {"0": [3, 2, 1], "1.0": [4, 3, 2]}},
    **{"layer_metrics": {"0": [0.5, 0.7, 0.9], "1.0": [0.4, 0.6, None]}},
    **{"feasible": False, "layers_needed": {"noise": 1.0, "within": {"2": None}}},
    **{"violations": [-0.1, 0.2], "violation_intervals": [[-0.2, 0], [0.1, 0.3]]},
    **{"violated": [2], "certified": [0.03, -0.1]},
    **{
        "samples": 100,
        "recipe": "text-distilbert",
        "method": "constrained",
        "seed": 0,
        "model": "DistilBERT-2",
        "dataset": "a|b c",
    },
}


def text_of(architecture="BertForSequenceClassification", **more):
    return card(type(architecture, (), {"config_class": None})(), "m", ["About it."], **more)


def measured(**changes):
    return Summary.model_validate(SUMMARY | changes)


def test_a_card_before_the_evaluation():
    known = {"verdict": "Feasible.", "command": "descend train x", "base_model": "a/b", "metadata": {"license": "mit"}}
    loaded = ModelCard(text_of(**known))
    data = loaded.data.to_dict()
    assert (data["library_name"], data["base_model"], data["license"]) == ("transformers", "a/b", "mit")
    assert data["pipeline_tag"] == "text-classification" and data["tags"] == ["descend"] and "model-index" not in data
    assert all(part in loaded.text for part in ("# m", "About it.", "Feasible.", "```\ndescend train x\n```"))
    others = [ModelCard(text_of(each)).data.get("pipeline_tag") for each in ("LlamaForCausalLM", "UT")]
    assert others == ["text-generation", None]


BROKEN = "INFEASIBLE: layer 2 breaks its constraint on the test data."
OPEN = {"groups": 3, "violation_intervals": [[None, None]] * 2}


@pytest.mark.parametrize(
    ("changes", "more", "parts", "absent"),
    [
        (
            {},
            {},
            [BROKEN, "layer 1 by 3.0%.", "| 2 | 2 | 0.2 | 0.1 … 0.3 |", "| 1 | 0.7 | 0.6 |"],
            "input itself",
        ),
        ({}, {}, ["| 2 | 0.9 | nan |", "| 0 | 0.9 | 1 |"], "license"),
        (
            {"input_metrics": {"0": 0.95, "1.0": 0.3}},
            {},
            ["| the input itself | 0.95 | 0.3 |\n| 0 | 0.5 | 0.4 |"],
            "base_model",
        ),
        (OPEN, {}, ["Open: 3 groups of samples", "| layer | loss | violation |\n", "| 2 | 2 | 0.2 |\n"], "interval"),
        (
            {"multipliers": [0.0, 0.3]},
            {},
            [
                "| layer | loss | violation | 95 % interval | λ | λ · violation, of the objective |",
                "| 0.1 … 0.3 | 0.3 | 3.0% |",
                "The dual has not converged on the test data: all |λ · violation| add up to 3.0% of the objective",
            ],
            "input itself",
        ),
        ({}, {"layer": 1}, ["ends with layer 1 of 2", "| 1 | 0.6 | 3 |"], "loss at full depth"),
    ],
)
def test_the_tables_of_an_evaluation(changes, more, parts, absent):
    text = text_of(summary=measured(**changes), **more)
    assert all(part in text for part in parts) and absent not in text
    cells = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert set(cells) <= {4, 5, 6, 7}  # no name has broken a table


def test_the_results_of_an_evaluation_as_the_hub_reads_them():
    (result,) = ModelCard(text_of(summary=measured())).data.eval_results  # the metric at γ = 1 is not a number
    assert (result.metric_value, result.dataset_name, result.dataset_type) == (0.9, "a|b c", "a-b-c")
    assert result.metric_args == {"noise": 0.0, "shift": "gaussian", "samples": 100} and result.dataset_split == "test"
    cut = ModelCard(text_of(summary=measured(), layer=1)).data.eval_results
    assert {each.metric_args["noise"]: each.metric_value for each in cut} == {0.0: 0.7, 1.0: 0.6}
    diverged = {"0": [0.5, 0.7, None], "1.0": [None] * 3}
    assert not ModelCard(text_of(summary=measured(layer_metrics=diverged))).data.eval_results


def test_a_card_is_written_again_until_a_user_edits_it(tmp_path, caplog):
    file = tmp_path / CARD_FILE
    for text in ("first\n", "second\n"):
        write_card(tmp_path, text)
        assert file.read_text() == text
    # Edited, longer, the user's own, in another encoding with other line ends, empty.
    for theirs in (b"mine\n", b"second\nmore\n", b"# Theirs\n", b"# mine\r\ncaf\xe9\r\n", b""):
        file.write_bytes(theirs)
        caplog.clear()
        write_card(tmp_path, "third\n")
        assert file.read_bytes() == theirs and str(file) in caplog.text
    file.unlink()
    write_card(tmp_path, "third\n")
    assert file.read_text() == "third\n"


@pytest.mark.slow
def test_a_run_has_a_card_from_its_end_on_and_a_new_one_after_each_evaluation(tmp_path):
    run, file = tmp_path / "run", tmp_path / "run" / "model" / CARD_FILE
    assert train(run, steps=3) == 0
    first = ModelCard.load(file)
    assert first.data.library_name == "descend" and not first.data.eval_results
    assert "on the validation data" in first.text and "descend train video-ut" in first.text
    assert main(["evaluate", str(run), "--noise", "0,0.8"]) == 0
    second = ModelCard.load(file)
    assert len(second.data.eval_results) == 2 and read_summary(run).verdict in second.text
    assert second.text.count("on the pixels") == 2 and "input embedding" not in second.text
    # The evaluation of another checkpoint belongs to that one's card.
    shutil.copytree(run / "model", run / "best_feasible")
    shutil.copy(run / "dual.safetensors", run / "best_feasible")
    before = file.read_text()
    assert main(["evaluate", str(run), "--noise", "0", "--model", "best_feasible"]) == 0
    assert file.read_text() == before
    assert ModelCard.load(run / "best_feasible" / CARD_FILE).data.eval_results


COMMANDS = [
    "video-ut --data generated --method erm --max-steps 7 --no-tied",
    "video-dust --data generated --preset paper --alpha 0.3,0.2 --depth 2",
    "video-vit --data generated --num-train-epochs 2 --strength 0.5 --seed 3",
    "text-ut --data generated --noise 0.5 --no-load-best-model-at-end --label-names labels marks",
    "text-ut --data generated --report-to none --eval-steps 3",
    "text-distilbert --data generated --preset paper --method erm --dataset mnli --report-to tensorboard",
    "llm-sft --data generated --dual-optim-args '{\"start\": 0}' --bf16 --dual-every epoch",
    "text --data generated --model them/bert --keep-layers 2 --dataset mnli --pooling cls",
    "text --data generated --model them/bert --keep-layers 2 --heal",
    "text-ut --data generated --hub-token hidden --num-train-epochs 3",
    "lm --data generated --model them/llama --lora q_proj --noise 0.5 --learning-rate 1e-4",
]


def configured(words: list[str]) -> RunConfig:
    """The ``config.json`` of a command."""
    run, _ = read_recipe([*words, "--out", "RUN", "--use-cpu"])
    recipe, args = run.recipe, run.arguments
    return RunConfig(
        recipe=recipe.name,
        method=args.method,
        preset=args.preset,
        seed=args.seed,
        model="m",
        settings=asdict(recipe),
        training=stored(args),
        given=values_of(run.given, recipe, args),
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_of_a_card_trains_the_same_run_and_names_no_folder(command, working_directory):
    config = configured(shlex.split(command))
    words = shlex.split(train_command(config))
    assert words[:3] == ["descend", "train", config.recipe] and words[-2:] == ["--out", "RUN"]
    given = {"method": config.method} | config.given  # a recipe's own method may change between versions
    assert configured(words[2:-2]) == config.model_copy(update={"given": given}) and "hidden" not in words
    clips = working_directory / "secret" / "clips"
    clips.mkdir(parents=True)
    places = {"data": str(clips), "cache_dir": str(working_directory)}
    shared = train_command(config.model_copy(update={"given": config.given | places}))
    assert "--data clips" in shared and str(working_directory) not in shared
    assert train_command(config.model_copy(update={"given": {}})) == ""  # of an older run


ADAPTERS = LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin"])


@pytest.mark.parametrize(
    ("make", "library"),
    [
        (lambda: network("distilbert"), "transformers"),
        (lambda: get_peft_model(network("distilbert"), ADAPTERS), "peft"),
    ],
    ids=["whole", "adapters"],
)
def test_what_is_pushed_has_our_card(make, library, tmp_path, monkeypatch):
    pushed = []  # the folders that would be uploaded
    hub = SimpleNamespace(
        create_repo=lambda *_, **__: SimpleNamespace(repo_id="me/it"),
        upload_folder=lambda *, folder_path, **_: pushed.append(folder_path),
    )
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub, raising=False)
    monkeypatch.setattr("transformers.trainer.create_repo", hub.create_repo, raising=False)
    file = tmp_path / "out" / CARD_FILE
    args = TrainingArguments(str(tmp_path / "out"), max_steps=1, hub_model_id="me/it", **QUIET)
    noise, data = descend.GaussianNoise(0.15, noise_is="variance"), labelled()
    trainer = descend.DescentTrainer(make(), args, train_dataset=data, eval_dataset=data, noise=noise)
    trainer.train()
    trainer.evaluate()
    trainer.push_to_hub(license="mit", tags="mine")
    loaded = ModelCard.load(file)
    assert pushed == [str(tmp_path / "out")] and (loaded.data.license, loaded.data.model_name) == ("mit", "it")
    assert (loaded.data.library_name, loaded.data.tags) == (library, ["descend", "mine"])
    assert verdict_sentence(trainer.verdict, "the evaluation data") in loaded.text
    assert str(trainer.verdict) == trainer.verdict.status
    assert "noise γ = 0.15, where γσ_x is the variance, on the input embedding" in loaded.text
    descend.evaluate(trainer, data)
    assert ModelCard.load(file).data.eval_results
    file.write_text("# Mine\n")
    trainer.push_to_hub()
    assert file.read_text() == "# Mine\n"
