"""`LayersLoss` in SentenceTransformers' trainer: the losses of models cut at each layer, the dual of a `PrimalDual`."""

import copy
import json

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    AdaptiveLayerLoss,
    CachedMultipleNegativesRankingLoss,
    CosineSimilarityLoss,
    GlobalOrthogonalRegularizationLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import (
    BoW,
    Dense,
    Normalize,
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModel, AutoModelForMaskedLM, TrainerCallback

from descend import DescentProblem, InputError, LayersLoss, NonFiniteLossError, PrimalDual
from descend.models.encoders import FAMILIES
from descend.tasks.text import generate_reviews
from tests.support.networks import QUIET, network
from tests.support.texts import review_tokenizer

TEXTS = [row["text"] for row in generate_reviews(48, 1)]
TRIPLETS = Dataset.from_dict({"anchor": TEXTS[:16], "positive": TEXTS[16:32], "negative": TEXTS[32:]})
DEPTH = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of encoders with random weights, by family, each made once."""
    place, tokenizer = tmp_path_factory.mktemp("encoders"), review_tokenizer()
    tokenizer.eos_token = tokenizer.sep_token
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 60, "pad_token_id": 0, "eos_token_id": 3}

    def of(family, auto=AutoModel):
        made = place / f"{family}-{auto.__name__}"
        if not made.exists():
            network(family, auto=auto, **sizes).save_pretrained(made)
            tokenizer.save_pretrained(made)
        return str(made)

    return of


@pytest.fixture
def embedder(folder):
    """Makes a SentenceTransformer with a dense layer, the same one at each call."""

    def of(family="bert", pooling="mean"):
        encoder = Transformer(folder(family), max_seq_length=12)
        torch.manual_seed(0)
        return SentenceTransformer(modules=[encoder, Pooling(16, pooling), Dense(16, 5), Normalize()], device="cpu")

    return of


def ranking(model, method="linear", **settings):
    return LayersLoss(model, MultipleNegativesRankingLoss(model), method=method, **settings)


def columns(model, count=3, size=8):
    """The features of the first texts of each column."""
    return [dict(model.preprocess(TEXTS[16 * column : 16 * column + size])) for column in range(count)]


def trainer_of(model, loss, folder, data=TRIPLETS, **settings):
    kept = QUIET | {"per_device_train_batch_size": 4, "max_steps": 3, "learning_rate": 0.01} | settings
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(str(folder), **kept),
        train_dataset=data,
        eval_dataset=data,
        loss=loss,
    )


def cut(model, layers):
    """A copy with the first blocks alone; its final norm stays."""
    cut = copy.deepcopy(model)
    base = cut[0].model
    base = base.get_base_model() if hasattr(base, "get_base_model") else base
    parent, _, name = FAMILIES[base.config.model_type].blocks.rpartition(".")
    if base.config.model_type != "albert":
        setattr(base.get_submodule(parent), name, base.get_submodule(parent).get_submodule(name)[:layers])
    base.config.num_hidden_layers = layers
    return cut


def by_hand(model, weights, make=MultipleNegativesRankingLoss, labels=None, count=3):
    """f_0 … f_L of cut copies, and the gradient of their weighted sum by the parameters' names."""
    values, gradients = [], {}
    for layer, weight in enumerate(weights):
        copied = cut(model, layer)
        value = make(copied)(columns(copied, count), labels)
        value = sum(value.values()) if isinstance(value, dict) else value
        value.backward()
        values.append(value.detach())
        for name, parameter in copied.named_parameters():
            if parameter.grad is not None and weight:
                gradients[name] = gradients.get(name, 0) + weight * parameter.grad
    return torch.stack(values), gradients


def gradients_of(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


LINEAR = [0.0, 1 / 6, 2 / 6, 3 / 6]


# Families without a final norm, with one, with one whose hidden states are listed by hand, and one shared block.
@pytest.mark.parametrize(
    ("family", "pooling"),
    [("bert", "mean"), ("modernbert", "mean"), ("megatron-bert", "mean"), ("llama", "lasttoken"), ("albert", "mean")],
)
def test_losses_and_the_gradient_are_those_of_models_cut_at_each_layer(embedder, family, pooling):
    model = embedder(family, pooling).eval()
    expected, gradients = by_hand(model, LINEAR)
    loss = ranking(model)
    value = loss(columns(model), None)
    value.backward()
    torch.testing.assert_close(loss.losses.float(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value, torch.tensor(LINEAR) @ expected, rtol=1e-5, atol=1e-5)
    assert expected.diff().abs().min() > 1e-5
    torch.testing.assert_close(gradients_of(model), gradients, rtol=1e-4, atol=1e-5)


def cosine(model):
    return CosineSimilarityLoss(model)


def matryoshka(model):
    return MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [5, 3])


def of_two_parts(model):
    return GlobalOrthogonalRegularizationLoss(model)


@pytest.mark.slow
@pytest.mark.parametrize("make", [cosine, matryoshka, of_two_parts])
def test_any_loss_of_sentence_transformers_is_read_at_every_layer(embedder, make):
    model, labels = embedder().eval(), torch.linspace(0, 1, 8)
    expected, gradients = by_hand(model, [0.25] * 4, make, labels, count=2)
    loss = LayersLoss(model, make(model), method="uniform")
    loss(columns(model, 2), labels).backward()
    torch.testing.assert_close(loss.losses.float(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients_of(model), gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_layers_of_a_model_with_adapters_are_read(embedder):
    config = LoraConfig(target_modules=["query", "Wqkv"], init_lora_weights=False)
    model = embedder("modernbert")
    model[0].model = get_peft_model(model[0].model, config)
    model.eval()
    expected, gradients = by_hand(model, LINEAR)
    loss = ranking(model)
    loss(columns(model), None).backward()
    torch.testing.assert_close(loss.losses.float(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients_of(model), gradients, rtol=1e-4, atol=1e-5)
    assert any("lora" in name for name in gradients)


def test_the_encoder_runs_once_a_column_and_layers_without_a_weight_have_no_gradient(embedder):
    model, calls, grads = embedder(), [], []
    model[0].model.embeddings.register_forward_hook(lambda *_: calls.append(1))
    model[1].register_forward_hook(lambda *_: grads.append(torch.is_grad_enabled()))
    ranking(model)(columns(model), None)
    assert len(calls) == 3 and grads == [True] * 9 + [False] * 3


@pytest.mark.parametrize("accumulate", [1, 2])
def test_erm_is_the_loss_alone_bit_for_bit(embedder, tmp_path, accumulate):
    """With dropout, and with columns of texts merged into one batch."""
    plain, model = embedder(), embedder()
    loss, trainers = ranking(model, "erm"), []
    for trained, each in ((plain, MultipleNegativesRankingLoss(plain)), (model, loss)):
        trainers.append(trainer_of(trained, each, tmp_path, gradient_accumulation_steps=accumulate))
        trainers[-1].train()
    start = dict(embedder().named_parameters())
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert "pooler" in name or not torch.equal(ours, start[name])
    assert loss.losses[:-1].isnan().all() and loss.losses[-1] > 0
    values = [[log["loss"] for log in trainer.state.log_history if "loss" in log] for trainer in trainers]
    assert values[0] == values[1] and len(values[0]) == 3
    assert trainers[0].evaluate()["eval_loss"] == trainers[1].evaluate()["eval_loss"]


class Recorded(TrainerCallback):
    """The losses of each batch in training, and the multipliers after each step."""

    def __init__(self, loss):
        self.loss, self.losses, self.multipliers = loss, [], []
        loss.register_forward_hook(lambda *_: self.losses.append(loss.losses) if torch.is_grad_enabled() else None)

    def on_step_end(self, args, state, control, **kwargs):
        self.multipliers.append(self.loss.dual.multipliers)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_multipliers_are_those_of_a_loop_on_the_recorded_losses(embedder, tmp_path, accumulate):
    """Evaluations between the steps change nothing."""
    model = embedder()
    loss = ranking(model, "constrained", steps=6, strength=None, alpha=0.2, dual_lr=0.5, dual_warmup_steps=1)
    trainer = trainer_of(
        model, loss, tmp_path, max_steps=6, gradient_accumulation_steps=accumulate, eval_strategy="steps", eval_steps=1
    )
    recorded = Recorded(loss)
    trainer.add_callback(recorded)
    trainer.train()
    dual = PrimalDual(DescentProblem(DEPTH, 0.2), lr=0.5, resilience=0.05, warmup=1)
    assert len(recorded.losses) == 6 * accumulate and len(recorded.multipliers) == 6 == loss.dual.steps
    for step, multipliers in enumerate(recorded.multipliers):
        for losses in recorded.losses[step * accumulate : (step + 1) * accumulate]:
            dual.observe(losses * 4, 4)
        dual.step()
        assert torch.equal(multipliers, dual.multipliers)
    assert multipliers[1:].all() and not recorded.multipliers[0].any()
    # The weights of the next batch are those of these multipliers.
    value = loss(columns(model), None)
    torch.testing.assert_close(value.detach(), (dual.weights @ loss.losses).float())


def test_multipliers_are_saved_and_restored(embedder):
    model = embedder()
    loss, again = (ranking(model, "constrained", steps=4, strength=0.8, dual_lr=20.0) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss(columns(model), None).backward()
    optimizer.step()
    state = json.loads(json.dumps(loss.dual.state_dict(), default=torch.Tensor.tolist))
    again.dual.load_state_dict(state)
    assert loss.dual.steps == again.dual.steps == 1 and torch.equal(loss.dual.weights, again.dual.weights)
    assert loss.state_dict().keys() == MultipleNegativesAndModel(model).state_dict().keys()


class MultipleNegativesAndModel(nn.Module):
    """What SentenceTransformers' own losses around a loss register."""

    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, MultipleNegativesRankingLoss(model)


def test_in_evaluation_all_layers_are_read_and_the_value_is_the_weighted_sum(embedder):
    model = embedder().eval()
    loss = ranking(model, "linear", inner_weight=0.0)
    expected, _ = by_hand(model, LINEAR)
    with torch.no_grad():
        value = loss(columns(model), None)
    assert not value.requires_grad and torch.equal(value.double(), loss.losses[-1])
    torch.testing.assert_close(loss.losses.float(), expected, rtol=1e-5, atol=1e-5)


class Fails(nn.Module):
    """A loss that raises an error in one of its calls."""

    def __init__(self, model, number):
        super().__init__()
        self.inside, self.number, self.calls = MultipleNegativesRankingLoss(model), number, 0

    def forward(self, features, labels):
        self.calls += 1
        value = self.inside(features, labels)
        if self.calls == self.number:
            raise ZeroDivisionError
        return value


@pytest.mark.parametrize("family", ["bert", "modernbert", "megatron-bert"])
@pytest.mark.parametrize("number", [1, 3])
def test_the_model_is_as_before_after_a_call_and_after_an_error(embedder, family, number):
    model = embedder(family)
    names, config = [*model.state_dict()], model[0].model.config.to_dict()
    loss = LayersLoss(model, Fails(model, number))
    with pytest.raises(ZeroDivisionError):
        loss(columns(model), None)
    for calls in range(2):
        assert "forward" not in vars(model[0]) and model[0].model.config.to_dict() == config
        assert "hidden_states" not in model[0].model(**model.preprocess(["good"]))
        assert [*model.state_dict()] == names
        norm = FAMILIES[family].norm
        assert norm is None or not model[0].model.get_submodule(norm)._forward_pre_hooks
        if not calls:
            assert loss(columns(model), None) > 0


@pytest.mark.slow
def test_a_compiled_model_is_unwrapped(embedder):
    model = embedder().eval()
    loss, plain = ranking(model), ranking(model)
    expected = plain(columns(model), None)
    compiled = torch.compile(model, backend="eager")
    loss.model = loss.loss.model = compiled  # as the trainer does
    torch.testing.assert_close(loss(columns(model), None), expected)
    torch.testing.assert_close(loss.losses, plain.losses)


def test_a_distributed_model_gets_the_gradient_of_all_layers(embedder):
    model = embedder().eval()
    ranking(model)(columns(model), None).backward()
    expected = gradients_of(model)
    other = embedder().eval()
    loss = ranking(other, "linear")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        loss.model = loss.loss.model = DistributedDataParallel(other, find_unused_parameters=True)
        for _ in range(2):
            other.zero_grad()
            loss(columns(other), None).backward()
    finally:
        distributed.destroy_process_group()
    gradients = {name: value for name, value in gradients_of(other).items() if "pooler" not in name}
    torch.testing.assert_close(gradients, {name: expected[name] for name in gradients})
    assert gradients.keys() == {name for name in expected if "pooler" not in name}


def test_the_model_card_names_the_loss_and_its_settings(embedder, tmp_path):
    model = embedder()
    trainer_of(model, ranking(model, "linear", inner_weight=0.5), tmp_path / "run").train()
    model.save(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "loss:LayersLoss" in card and "loss:MultipleNegativesRankingLoss" in card
    assert '"loss": "MultipleNegativesRankingLoss",\n      "method": "linear",\n      "inner_weight": 0.5' in card


def test_a_loss_that_is_not_finite_stops_before_backward(embedder):
    model = embedder()
    loss = ranking(model, "constrained", steps=5)
    model[2].linear.weight.data.fill_(torch.nan)
    with pytest.raises(NonFiniteLossError, match=r"expected finite layer losses; got .*nan"):
        loss(columns(model), None)


class Draws(nn.Module):
    """A loss that embeds other texts in each call."""

    def __init__(self, model):
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, features, labels):
        self.calls += 1
        rolled = {name: value.roll(self.calls, 0) for name, value in features[0].items() if torch.is_tensor(value)}
        return self.model(rolled)["sentence_embedding"].square().mean()


class Returns(nn.Module):
    """A loss that returns something else."""

    def __init__(self, model, value, embeds=True):
        super().__init__()
        self.model, self.value, self.embeds = model, value, embeds

    def forward(self, features, labels):
        if self.embeds:
            self.model(features[0])
        return self.value


def called(model, loss):
    return LayersLoss(model, loss)(columns(model), None)


def with_modules(model, *modules):
    return ranking(SentenceTransformer(modules=[*modules], device="cpu"))


def of_family(model, kind):
    model[0].model.config.model_type = kind
    return ranking(model)


def of_virtual_tokens(model):
    config = PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=2)
    model[0].model = get_peft_model(model[0].model, config)
    return ranking(model)


def negative(model):
    return LayersLoss(model, Returns(model, torch.tensor(-1.0, requires_grad=True)), method="constrained", steps=3)


WRONG = {
    "no SentenceTransformer": (lambda m: LayersLoss(m[0], None), r"must be a SentenceTransformer; got Transformer"),
    "no Transformer": (lambda m: with_modules(m, BoW(["good"])), r"first module must be a Transformer.* are BoW"),
    "layers mixed": (
        lambda m: with_modules(m, m[0], WeightedLayerPooling(16, DEPTH, 1), m[1]),
        r"got WeightedLayerPooling, which mixes",
    ),
    "a family": (lambda m: of_family(m, "funny"), r"model_type must be one of distilbert, bert.*; got 'funny'"),
    "virtual tokens": (of_virtual_tokens, r"got virtual tokens before the text"),
    "no loss": (lambda m: LayersLoss(m, len), r"must be a loss of SentenceTransformers; got builtin_function"),
    "a cache": (
        lambda m: LayersLoss(m, CachedMultipleNegativesRankingLoss(m)),
        r"no gradient cache.*got CachedMultipleNegativesRankingLoss. Use the loss of the same name without Cached",
    ),
    "a cache inside": (
        lambda m: LayersLoss(m, MatryoshkaLoss(m, CachedMultipleNegativesRankingLoss(m), [5])),
        r"no gradient cache.*got MatryoshkaLoss",
    ),
    "layers inside": (
        lambda m: LayersLoss(m, AdaptiveLayerLoss(m, MultipleNegativesRankingLoss(m))),
        r"read one layer; got AdaptiveLayerLoss",
    ),
    "itself inside": (lambda m: LayersLoss(m, ranking(m)), r"read one layer; got LayersLoss"),
    "another model": (
        lambda m: LayersLoss(m, MultipleNegativesRankingLoss(copy.deepcopy(m))),
        r"made with the same model; got MultipleNegativesRankingLoss with another",
    ),
    "no pass": (lambda m: called(m, Returns(m, torch.tensor(1.0), embeds=False)), r"must call the model.*it did not"),
    "other texts": (lambda m: called(m, Draws(m)), r"on the same texts in the same order for every layer"),
    "no tensor": (lambda m: called(m, Returns(m, 1.0)), r"a scalar tensor; got a float"),
    "a loss of texts": (lambda m: called(m, Returns(m, torch.ones(8))), r"a scalar tensor; got \(8,\)"),
    "a negative loss": (lambda m: negative(m)(columns(m), None), r"expected a mean loss above 0"),
    "no steps": (lambda m: ranking(m, "constrained"), r"constrained needs steps, the number of optimizer steps"),
    "steps": (lambda m: ranking(m, "constrained", steps=0), r"steps must be the number of optimizer steps.* 0"),
    "a method": (lambda m: ranking(m, "layerskip"), r"one of constrained, erm, linear.*got 'layerskip'"),
    "an unknown setting": (lambda m: ranking(m, "linear", strength=0.5), r"linear are inner_weight; got strength"),
    "a range": (lambda m: ranking(m, "constrained", steps=9, strength=2.0), r"strength must lie in \[0, 1\]; got 2.0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_line(embedder, case):
    wrong, message = WRONG[case]
    with pytest.raises(InputError, match=message) as raised:
        wrong(embedder())
    assert "\n" not in str(raised.value)


def test_a_model_for_another_task_is_refused(folder):
    encoder = Transformer(folder("bert", AutoModelForMaskedLM), max_seq_length=12, transformer_task="fill-mask")
    model = SentenceTransformer(modules=[encoder, Pooling(40)], device="cpu")
    with pytest.raises(InputError, match=r"give the last hidden states.*; got logits as token_embeddings. Load it"):
        ranking(model)
