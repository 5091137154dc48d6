"""TRL's trainer under the constraints: ERM is TRL's own, micro-batches are one batch, and nothing of TRL's is lost."""

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
    logged = [[layer for layer in range(4) if f"loss/{layer}" in log] for log in one.state.log_history]
    assert logged[0] == [3] and logged[3] == [0, 1, 2, 3]


def test_deep_supervision_reads_every_layer_that_it_weighs(tmp_path, tokenizer, data):
    for method, expected in (("uniform", [1 / 4] * 4), ("linear", [0, 1 / 6, 2 / 6, 3 / 6])):
        one = trainer(tmp_path / method, tokenizer, data, method=method, max_steps=1)
        one.train()
        log = one.state.log_history[0]
        weights, losses = ([log[f"{name}/{layer}"] for layer in range(4)] for name in ("weight", "loss"))
        assert weights == pytest.approx(expected) and not {"multiplier/1", "slack/1", "violation/1"} & log.keys()
        assert log["loss"] == pytest.approx(sum(w * f for w, f in zip(expected, losses, strict=True)), rel=1e-3)


def test_constraints_change_what_is_learned(tmp_path, tokenizer, data):
    """With no constraint setting: held-out losses of the inner layers are lower than plain training's."""
    found = []
    for method in ("constrained", "erm"):
        one = trainer(tmp_path / method, tokenizer, data, method=method, max_steps=60, learning_rate=5e-3)
        one.train()
        found.append(one._measure(one._evaluation_loader(one.eval_dataset)).losses.mean(0))
    assert (found[0] < found[1])[1:3].all()


@pytest.mark.parametrize("noise", [None, 1.0])
def test_packed_texts_do_not_see_each_other(tmp_path, tokenizer, data, noise):
    """The same model, texts side by side or packed: the same mean loss, noise of their own, as many groups as texts."""
    packed = trainer(tmp_path / "packed", tokenizer, data, noise=noise, packing=True, max_length=200, **ACTIVE)
    assert "seq_lengths" in packed.train_dataset.column_names
    packed.train()
    assert packed.dual.multipliers.max() > 0
    model, found = packed.objective.model.saved, []
    for packing, size in ((False, 1), (True, 1), (True, 4)):
        settings = {"packing": packing, "max_length": 200, "per_device_eval_batch_size": size}
        one = trainer(tmp_path / f"{packing}{size}", tokenizer, data, model=model, noise=noise, **settings)
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


def test_adapters_of_a_model_by_its_folder_are_saved(tmp_path, tokenizer, data):
    peft = LoraConfig(task_type="CAUSAL_LM", target_modules=["v_proj", "lm_head"], r=2)
    causal(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "base")
    given = {"model": str(tmp_path / "base"), "peft": peft, "gradient_checkpointing": True}
    one = trainer(tmp_path / "run", tokenizer, data, noise=0.5, **given, **ACTIVE)
    one.train()
    one.save_model(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    ids = torch.tensor([data[0]["input_ids"]])
    plain = base(input_ids=ids).logits
    loaded = PeftModel.from_pretrained(base, tmp_path / "saved").eval()(input_ids=ids).logits
    torch.testing.assert_close(loaded, one.objective.model.saved.eval()(input_ids=ids).logits)
    assert not torch.allclose(loaded, plain)


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
