"""TRL's trainer under the constraints: ERM is TRL's own, micro-batches are one batch, and nothing of TRL's is lost."""

from collections import Counter

import pytest
import torch
from datasets import Dataset
from torch.nn.utils import parameters_to_vector
from transformers import TrainingArguments
from trl import SFTConfig, SFTTrainer

from descend.tasks.text import generate_instructions, learn_tokenizer, tokenize_instructions
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer
from tests.support.networks import causal

PLAIN = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_strategy": "no"}


@pytest.fixture(scope="module")
def tokenizer():
    rows = generate_instructions(50).rows
    made = learn_tokenizer(text for row in rows for text in (*row.values(), "### Instruction Input Response :"))
    made.eos_token = made.sep_token
    return made


@pytest.fixture(scope="module")
def data(tokenizer):
    rows, skipped = tokenize_instructions(generate_instructions(48), tokenizer, 64)
    assert not skipped
    return rows


def trainer(folder, tokenizer, data, kind=DescentSFTTrainer, noise=None, model=None, **args):
    chosen = {"max_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "logging_steps": 1, "seed": 0}
    chosen |= {"gradient_checkpointing": False, **PLAIN, **args}
    config = (SFTConfig if kind is SFTTrainer else DescentSFTConfig)(output_dir=str(folder), **chosen)
    given = {} if kind is SFTTrainer else {"noise": noise}
    return kind(
        model or causal(vocab_size=len(tokenizer), attention_dropout=0.0),
        config,
        train_dataset=data.select(range(32)),
        eval_dataset=data.select(range(32, 48)),
        processing_class=tokenizer,
        **given,
    )


ACTIVE = {"alpha": "0.2", "dual_lr": 0.5, "dual_warmup_steps": 0, "stop_gradient": False, "cap": 3.0}


def test_a_batch_without_targets_moves_nothing(tmp_path, tokenizer, data):
    masked = data.map(lambda row: {"labels": [-100] * len(row["labels"])})
    one = trainer(tmp_path, tokenizer, data, dataset_kwargs={"skip_prepare_dataset": True}, **ACTIVE)
    one.train_dataset = masked
    before = parameters_to_vector(one.model.parameters())
    one.train()
    assert torch.equal(parameters_to_vector(one.model.parameters()), before)
    assert one.dual.multipliers.tolist() == [0.0] * 4


def test_nothing_is_read_but_the_last_layer_without_constraints(tmp_path, tokenizer, data):
    """In a warm-up of two steps, each of all 32 texts."""
    read = Counter()
    steps = {"dual_warmup_steps": 2, "max_steps": 4, "per_device_train_batch_size": 32}
    one = trainer(tmp_path, tokenizer, data, alpha="0.2", **steps)

    def reads(module, args, output):
        if args[0].dim() == 2:  # rows of a tile, not the model's own forward pass
            read[one.state.global_step] += len(args[0])

    one.objective.model.library.base_model.norm.register_forward_hook(reads)
    one.train()
    assert [read[step] / read[0] for step in range(4)] == [1, 1, 4, 4]
    logged = [[layer for layer in range(4) if f"loss/{layer}" in log] for log in one.state.log_history]
    assert logged[0] == [3] and logged[3] == [0, 1, 2, 3]


def test_constraints_change_what_is_learned(tmp_path, tokenizer, data):
    """With no constraint setting: held-out losses of the inner layers are lower than plain training's."""
    found = []
    for method in ("constrained", "erm"):
        one = trainer(tmp_path / method, tokenizer, data, method=method, max_steps=60, learning_rate=5e-3)
        one.train()
        found.append(one._measure(one._evaluation_loader(one.eval_dataset)).losses.mean(0))
    assert (found[0] < found[1])[1:3].all()


def test_packed_texts_do_not_see_each_other(tmp_path, tokenizer, data):
    """The same model, texts side by side or packed: the same mean loss, noise of their own, as many groups as texts."""
    packed = trainer(tmp_path / "packed", tokenizer, data, noise=1.0, packing=True, max_length=200, **ACTIVE)
    assert "seq_lengths" in packed.train_dataset.column_names
    packed.train()
    assert packed.dual.multipliers.max() > 0
    model, found = packed.objective.model.saved, []
    for packing, size in ((False, 1), (True, 1), (True, 4)):
        settings = {"packing": packing, "max_length": 200, "per_device_eval_batch_size": size}
        one = trainer(tmp_path / f"{packing}{size}", tokenizer, data, model=model, noise=1.0, **settings)
        found.append(one.evaluate()["eval_loss"])
        assert one.verdict.groups == 16
    assert found == pytest.approx([found[0]] * 3, rel=1e-5)


def test_a_window_of_the_log_over_the_end_of_warm_up_compares_the_same_steps(tmp_path, tokenizer, data):
    """All layers over the steps after it; TRL's metrics over all tokens."""
    found = []
    for every in (1, 4):
        settings = {"dual_warmup_steps": 2, "max_steps": 4, "learning_rate": 0.0, "logging_steps": every}
        one = trainer(tmp_path / str(every), tokenizer, data, **settings)
        one.train()
        found.append([log for log in one.state.log_history if "loss/3" in log])
    fine, (window,) = found
    for layer in range(4):
        expected = sum(log[f"loss/{layer}"] for log in fine[2:]) / 2
        assert window[f"loss/{layer}"] == pytest.approx(expected, rel=0.02)
    for name in ("mean_token_accuracy", "entropy"):
        steps = [log[name] for log in fine]
        assert len(steps) == 4 and min(steps) < window[name] < max(steps)  # a mean over tokens


def test_chat_templates_and_text_columns_are_prepared_as_trl_does(tmp_path, tokenizer):
    tokenizer = learn_tokenizer(["user assistant say red blue one two : ."])
    tokenizer.eos_token = tokenizer.sep_token
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ' : ' + m.content + ' . ' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant : {% endif %}"
    )
    rows = [
        {
            "prompt": [{"role": "user", "content": "say red"}],
            "completion": [{"role": "assistant", "content": "red one two"}],
        }
    ] * 48
    one = trainer(tmp_path, tokenizer, Dataset.from_list(rows), **ACTIVE)
    one.train()
    labels = one.train_dataset[0]["labels"]
    told = tokenizer.decode([label for label in labels if label != -100])
    assert told.split()[-4:] == ["red", "one", "two", "."] and -100 in labels
    assert one.evaluate(Dataset.from_list(rows[:4]))["eval_loss"] > 0


def test_trls_own_metrics_are_logged(tmp_path, tokenizer, data):
    """TRL over the same steps, ERM, and constraints, under which inner exits share the tiles of the last."""
    steps = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 0.0}
    names = ("mean_token_accuracy", "entropy", "num_tokens")
    logs, evaluated = {}, {}
    for kind, method in ((SFTTrainer, None), (DescentSFTTrainer, "erm"), (DescentSFTTrainer, "constrained")):
        args = steps | {None: {}, "erm": {"method": "erm"}, "constrained": {"exit_share": 0.5}}[method]
        one = trainer(tmp_path / str(method), tokenizer, data, kind, **args)
        one.train()
        logs[method] = [[log[name] for name in names] for log in one.state.log_history if "loss" in log]
        metrics = one.evaluate()
        evaluated[method] = [metrics[f"eval_{name}"] for name in names]
    assert len(logs[None]) == 3 and logs[None][-1][2] > 0
    for method in ("erm", "constrained"):
        # TRL's are means of micro-batches' means, ours of all tokens.
        torch.testing.assert_close(torch.tensor(logs[method]), torch.tensor(logs[None]), rtol=0.05, atol=0.02)
        assert evaluated[method] == pytest.approx(evaluated[None], rel=0.05, abs=0.02)


@pytest.mark.parametrize("logging", [{"logging_strategy": "no"}, {"logging_steps": 2}])
def test_an_evaluation_counts_the_tokens_up_to_it_whatever_was_logged(tmp_path, tokenizer, data, logging):
    settings = logging | {"eval_strategy": "steps", "eval_steps": 1}
    counted = {}
    for kind in (SFTTrainer, DescentSFTTrainer):
        one = trainer(tmp_path / kind.__name__, tokenizer, data, kind, **settings)
        one.train()
        counted[kind] = [log["eval_num_tokens"] for log in one.state.log_history if "eval_num_tokens" in log]
    assert counted[DescentSFTTrainer] == counted[SFTTrainer] and len(set(counted[SFTTrainer])) == 3


@pytest.mark.filterwarnings("ignore:.*chunked_nll:FutureWarning")
@pytest.mark.parametrize(("kind", "settings"), [(SFTConfig, {"loss_type": "chunked_nll"}), (TrainingArguments, {})])
def test_plain_arguments_are_taken_and_the_trainers_model_is_the_one_that_generates(
    tmp_path, tokenizer, data, kind, settings
):
    """And the loss by its older name."""
    model = causal(vocab_size=len(tokenizer))
    args = kind(output_dir=str(tmp_path), max_steps=1, **PLAIN, **settings)
    one = DescentSFTTrainer(model, args, train_dataset=data, processing_class=tokenizer)
    assert one.args.alpha is None and one.dual.problem.constrained and one.args.loss_type == "nll"
    assert one.args.exit_share == 1 and one.objective.sample is None
    one.train()
    ids = torch.tensor([data[0]["input_ids"][:5]])
    assert one.model is model and model.generate(input_ids=ids, max_new_tokens=3, do_sample=False).shape[1] > 5
    assert model(input_ids=ids, labels=ids).loss > 0
