"""TRL's trainer under the constraints: ERM is TRL's own, micro-batches are one batch, and nothing of TRL's is lost."""

import json
from collections import Counter

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, TrainingArguments
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


def trainer(folder, tokenizer, data, kind=DescentSFTTrainer, noise=None, model=None, peft=None, callbacks=None, **args):
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
        peft_config=peft,
        callbacks=callbacks,
        **given,
    )


def weights(trained):
    model = getattr(trained, "objective", None)
    return torch.cat([each.detach().flatten() for each in (model.model.saved if model else trained.model).parameters()])


ACTIVE = {"alpha": "0.2", "dual_lr": 0.5, "dual_warmup_steps": 0, "stop_gradient": False, "cap": 3.0}


def test_a_batch_without_targets_moves_nothing(tmp_path, tokenizer, data):
    masked = data.map(lambda row: {"labels": [-100] * len(row["labels"])})
    one = trainer(tmp_path, tokenizer, data, dataset_kwargs={"skip_prepare_dataset": True}, **ACTIVE)
    one.train_dataset = masked
    before = weights(one).clone()
    one.train()
    assert torch.equal(weights(one), before)
    assert one.dual.multipliers.tolist() == [0.0] * 4


def test_nothing_is_read_but_the_last_layer_without_constraints(tmp_path, tokenizer, data):
    read, targets = Counter(), Counter()
    one = trainer(tmp_path, tokenizer, data, dual_warmup_steps=2, alpha="0.2", max_steps=4)
    norm, add = one.objective.model.library.base_model.norm, one.sums.add

    def reads(module, args, output):
        if args[0].dim() == 2:  # rows of a tile, not the model's own forward pass
            read[one.state.global_step] += len(args[0])

    def counts(exits, *others, **options):
        targets[one.state.global_step] += exits.targets
        add(exits, *others, **options)

    norm.register_forward_hook(reads)
    one.sums.add = counts
    one.train()
    assert [read[step] / targets[step] for step in range(4)] == [1, 1, 4, 4]
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["layer"]) for row in rows if row["metric"] == "loss"]
    assert [layer for step, layer in losses if step == 1] == [3]
    assert [layer for step, layer in losses if step == 4] == [0, 1, 2, 3]


def test_deep_supervision_reads_every_layer_that_it_weighs(tmp_path, tokenizer, data):
    for method, expected in (("uniform", [1 / 4] * 4), ("linear", [0, 1 / 6, 2 / 6, 3 / 6])):
        one = trainer(tmp_path / method, tokenizer, data, method=method, max_steps=1)
        one.train()
        rows = [json.loads(line) for line in (tmp_path / method / "records.jsonl").read_text().splitlines()]
        found = {name: [row["value"] for row in rows if row["metric"] == name] for name in ("loss", "weight")}
        assert found["weight"] == pytest.approx(expected) and len(found["loss"]) == 4
        assert not {"multiplier", "slack", "violation"} & {row["metric"] for row in rows if row["split"] == "train"}
        (logged,) = [log["loss"] for log in one.state.log_history if "train_loss" not in log and "loss" in log]
        assert logged == pytest.approx(sum(w * f for w, f in zip(expected, found["loss"], strict=True)), rel=1e-3)


def test_constraints_change_what_is_learned(tmp_path, tokenizer, data):
    """With no constraint setting: held-out losses of the inner layers are lower than plain training's."""
    steps = {"max_steps": 60, "learning_rate": 5e-3}
    found = {}
    for method in ("erm", "constrained"):
        one = trainer(tmp_path / method, tokenizer, data, method=method, **steps)
        one.train()
        one.evaluate()
        rows = [json.loads(line) for line in (tmp_path / method / "records.jsonl").read_text().splitlines()]
        found[method] = [row["value"] for row in rows if (row["split"], row["metric"]) == ("validation", "loss")]
    plain, ours = found["erm"], found["constrained"]
    assert ours[1] < plain[1] and ours[2] < plain[2]


@pytest.mark.parametrize("packing", [False, True])
def test_packed_texts_do_not_see_each_other(tmp_path, tokenizer, data, packing):
    one = trainer(tmp_path, tokenizer, data, packing=packing, max_length=200, **ACTIVE)
    assert ("seq_lengths" in one.train_dataset.column_names) == packing
    one.train()
    metrics = one.evaluate()
    assert one.dual.multipliers.max() > 0 and 0 <= metrics["eval_token_accuracy"] <= 1
    # The same model, texts side by side or packed: the same mean loss, and as many groups as texts.
    apart = trainer(tmp_path / "apart", tokenizer, data, model=one.objective.model.saved)
    assert apart.evaluate()["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-4)
    assert apart.verdict.groups == one.verdict.groups == 16


def test_the_noise_of_a_text_is_its_own_whatever_it_is_packed_with(tmp_path, tokenizer, data):
    model, found = causal(vocab_size=len(tokenizer)), []
    for packing, size in ((False, 1), (True, 1), (True, 4)):
        one = trainer(
            tmp_path / f"{packing}{size}",
            tokenizer,
            data,
            model=model,
            noise=1.0,
            packing=packing,
            max_length=60,
            per_device_eval_batch_size=size,
        )
        found.append(one.evaluate()["eval_loss"])
    assert found == pytest.approx([found[0]] * 3, rel=1e-5)


def test_a_window_of_the_log_over_the_end_of_warm_up_compares_the_same_steps(tmp_path, tokenizer, data):
    fine = trainer(tmp_path / "fine", tokenizer, data, dual_warmup_steps=2, max_steps=4, learning_rate=0.0)
    coarse = trainer(
        tmp_path / "coarse", tokenizer, data, dual_warmup_steps=2, max_steps=4, learning_rate=0.0, logging_steps=4
    )
    fine.train()
    coarse.train()
    wanted = [[entry[f"loss/{layer}"] for layer in range(4)] for entry in fine.state.log_history if "loss/0" in entry]
    (found,) = (
        [entry[f"loss/{layer}"] for layer in range(4)] for entry in coarse.state.log_history if "loss/0" in entry
    )
    assert len(wanted) == 2
    assert found == pytest.approx(torch.tensor(wanted).mean(0).tolist(), rel=0.02)


def test_trls_metrics_of_a_window_over_the_end_of_warm_up_are_those_of_its_tokens(tmp_path, tokenizer, data):
    settings = {"dual_warmup_steps": 3, "max_steps": 4, "learning_rate": 0.0}
    fine = trainer(tmp_path / "fine", tokenizer, data, **settings)
    coarse = trainer(tmp_path / "coarse", tokenizer, data, logging_steps=4, **settings)
    fine.train(), coarse.train()
    for name in ("mean_token_accuracy", "entropy"):
        steps, window = ([entry[name] for entry in each.state.log_history if name in entry] for each in (fine, coarse))
        assert len(steps) == 4 and min(steps) < window[0] < max(steps)  # a mean over tokens


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


def test_adapters_alone_are_trained_and_saved(tmp_path, tokenizer, data):
    peft = LoraConfig(task_type="CAUSAL_LM", target_modules=["v_proj", "lm_head"], r=2)
    model = causal(vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    one = trainer(
        tmp_path / "run",
        tokenizer,
        data,
        noise=0.5,
        model=str(tmp_path / "base"),
        peft=peft,
        gradient_checkpointing=True,
        **ACTIVE,
    )
    one.train()
    moved = {name for name, parameter in one.objective.model.saved.named_parameters() if parameter.grad is not None}
    one.save_model(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(base, tmp_path / "saved").eval()
    ids = torch.tensor([data[0]["input_ids"]])
    expected = one.objective.model.saved.eval()(input_ids=ids).logits
    torch.testing.assert_close(loaded(input_ids=ids).logits, expected)
    assert all("lora" in name for name in moved)
    head = [p for name, p in loaded.named_parameters() if "lm_head.lora_B" in name]
    assert head and head[0].abs().max() > 0


@pytest.mark.parametrize("again", [False, True])
def test_mixed_precision_learns_the_same(tmp_path, tokenizer, data, again):
    """In bfloat16, with activations computed again: losses stay in single precision, and near those of float32."""
    found = {}
    for half in (False, True):
        one = trainer(tmp_path / str(half), tokenizer, data, bf16=half, gradient_checkpointing=again, **ACTIVE)
        one.train()
        logs = [entry for entry in one.state.log_history if "loss/3" in entry]
        found[half] = torch.tensor([[entry[f"loss/{layer}"] for layer in range(4)] for entry in logs])
        assert all(parameter.dtype == torch.float32 for parameter in one.objective.parameters())
    assert len(found[True]) == 3 and not torch.equal(found[True], found[False])
    torch.testing.assert_close(found[True], found[False], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("peft", [None, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])])
def test_the_trainers_model_is_the_one_that_generates(tmp_path, tokenizer, data, peft):
    model = causal(vocab_size=len(tokenizer))
    one = trainer(tmp_path, tokenizer, data, model=model, peft=peft, max_steps=1)
    one.train()
    assert isinstance(one.model, PeftModel) if peft else one.model is model
    ids = torch.tensor([data[0]["input_ids"][:5]])
    assert one.model.generate(input_ids=ids, max_new_tokens=3, do_sample=False).shape[1] > 5
    assert one.model(input_ids=ids, labels=ids).loss > 0 and one.model.num_parameters() > 0


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_trls_own_metrics_are_logged(tmp_path, tokenizer, data, share):
    """TRL over the same steps, ERM, and constraints, under which inner exits share the tiles of the last."""
    steps = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 0.0}
    names = ("mean_token_accuracy", "entropy", "num_tokens")
    logs, evaluated = {}, {}
    for kind, method in ((SFTTrainer, None), (DescentSFTTrainer, "erm"), (DescentSFTTrainer, "constrained")):
        args = steps if method is None else steps | {"method": method, "exit_share": share}
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


def test_the_older_name_of_the_loss_is_taken(tmp_path):
    with pytest.warns(FutureWarning, match="chunked_nll"):
        assert DescentSFTConfig(output_dir=str(tmp_path), loss_type="chunked_nll", **PLAIN).loss_type == "nll"
    with pytest.warns(FutureWarning, match="chunked_nll"):
        theirs = SFTConfig(output_dir=str(tmp_path), loss_type="chunked_nll", **PLAIN)
    assert DescentSFTConfig.of(theirs).loss_type == "nll"


@pytest.mark.parametrize("kind", [SFTConfig, TrainingArguments])
def test_plain_arguments_are_taken(tmp_path, tokenizer, data, kind):
    args = kind(output_dir=str(tmp_path), max_steps=1, **PLAIN)
    one = DescentSFTTrainer(causal(vocab_size=len(tokenizer)), args, train_dataset=data, processing_class=tokenizer)
    assert (
        one.args.alpha is None
        and one.dual.problem.constrained
        and one.args.exit_share == 1
        and one.objective.sample is None
    )
    one.train()
