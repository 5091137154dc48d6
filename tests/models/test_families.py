"""Laws that every row of the tables of families obeys, against Transformers' own forward pass, loss and gradient."""

from copy import deepcopy

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from descend import GaussianNoise, InputError, Objective
from descend.contract import resolve
from descend.models import (
    LayeredCausalLM,
    LayeredClassifier,
    MeanPooledConfig,
    MeanPooledForSequenceClassification,
    images,
)
from descend.models import causal as language
from descend.models.encoders import FAMILIES
from descend.models.first_layers import keep_first, plain_output
from descend.models.layered import PLACES
from descend.models.library import PER_LAYER, logits_of
from descend.models.own_exits import MARK
from descend.run import export_model
from tests.support.networks import CAUSAL, CONFIGS, IMAGES, OWN_ATTENTION, PIXELS, WIDE, causal, image_network, network

TOKENS = [name for name, family in FAMILIES.items() if family.token_head]
CASES = [
    *(("class", name) for name in FAMILIES),
    *(("language", name) for name in language.FAMILIES),
    *(("tokens", name) for name in TOKENS),
    *(("answer", name) for name in TOKENS),
    *(("image", name) for name in images.FAMILIES),
]
AUTO = {"tokens": AutoModelForTokenClassification, "answer": AutoModelForQuestionAnswering}


def made(head, family, **settings):
    """A network in eval mode whose norms, heads and positions all matter."""
    if head == "language":
        # Gemma 2 caps its attention, which SDPA can't.
        built = causal(family, "eager" if family == "gemma2" else "sdpa", **settings)
    elif head == "image":
        built = image_network(family, **settings)
    else:
        auto = AUTO.get(head, AutoModelForSequenceClassification)
        built = network(family, labels=2 if head == "answer" else 3, auto=auto, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return built.eval()


def batch_of(head, padded):
    """Four texts or images, and their labels; token 1 is padding."""
    generator = torch.Generator().manual_seed(0)
    if head == "image":
        return {"pixel_values": torch.randn(4, 3, 8, 8, generator=generator)}, {"labels": torch.tensor([0, 2, 1, 1])}
    ids = torch.randint(5, 40, (4, 9), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for row, length in enumerate((9, 5, 4, 7)):
            ids[row, length:], mask[row, length:] = 1, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if head == "answer":
        return inputs, {"start_positions": torch.tensor([0, 2, 1, 3]), "end_positions": torch.tensor([4, 2, 3, 6])}
    if head == "class":
        return inputs, {"labels": torch.tensor([0, 2, 1, 1])}
    labels = ids.clone() if head == "language" else torch.randint(0, 3, ids.shape, generator=generator)
    labels[mask == 0] = -100
    labels[0, :3] = -100
    return inputs, {"labels": labels}


def test_all_families_are_tested():
    assert {name for head, name in CASES if head == "class"} == CONFIGS.keys()
    assert {name for head, name in CASES if head == "language"} == CAUSAL.keys()
    assert images.FAMILIES.keys() == IMAGES.keys()
    assert len(TOKENS) == 8


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("head", "family"), CASES)
@torch.no_grad()
def test_the_last_exit_has_the_models_own_logits(head, family, padded):
    own = made(head, family)
    layers, _ = resolve(own, None, None)
    inputs, _ = batch_of(head, padded)
    states, (*inner, last) = layers.layer_outputs(inputs), layers.predictions(inputs)
    outputs = own(**inputs, output_hidden_states=True)
    expected = logits_of(outputs)
    # But for the last one, which comes before a final norm here.
    torch.testing.assert_close(states[:-1], outputs.hidden_states[:-1], rtol=0, atol=0)
    torch.testing.assert_close(last, expected, rtol=1e-5, atol=1e-5)
    assert len(inner) == layers.depth == 3
    for early in inner:
        assert not torch.allclose(early, expected, atol=1e-3)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("head", "family"), CASES)
def test_the_last_exit_has_the_models_own_loss_and_gradient(head, family, padded):
    own = made(head, family)
    inputs, labels = batch_of(head, padded)
    expected = own(**inputs, **labels).loss
    expected.backward()
    gradients = {name: value.grad for name, value in own.named_parameters() if value.grad is not None}
    own.zero_grad()
    objective = Objective(own).eval()
    exits = objective([0.0, 0.0, 0.0, 1.0], **inputs, **labels)
    loss = exits.lagrangian / exits.targets
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert exits.sums[-1] / exits.targets == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    ours = {name: value.grad for name, value in own.named_parameters() if value.grad is not None}
    scale = max(value.abs().max() for value in gradients.values()).item()
    assert len(gradients) > 8 and ours.keys() == gradients.keys()
    for name, value in gradients.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize(
    ("head", "family", "settings"),
    [
        *((*case, {}) for case in CASES),
        *(("language", name, {"tie_word_embeddings": tied}) for name in language.FAMILIES for tied in (True, False)),
    ],
)
@torch.no_grad()
def test_the_first_layers_alone_are_a_model_with_that_exits_logits(head, family, settings, tmp_path):
    inputs, _ = batch_of(head, padded=True)
    for count in (1, 2, 3):
        plain = made(head, family, **settings)
        listed = {name for name, value in plain.config.to_dict().items() if isinstance(value, list) and len(value) == 3}
        assert listed <= {*PER_LAYER, "architectures"}
        layers, _ = resolve(plain, None, None)
        expected = list(layers.predictions(inputs))[count]
        keep_first(layers, count)
        assert layers.depth == plain.config.num_hidden_layers == count
        plain.save_pretrained(tmp_path / str(count))
        attention = {} if family in OWN_ATTENTION else {"attn_implementation": plain.config._attn_implementation}
        loaded = type(plain).from_pretrained(tmp_path / str(count), **attention).eval()
        for model in (plain, loaded):
            torch.testing.assert_close(plain_output(model, inputs), expected, rtol=1e-5, atol=1e-5)
        tied = settings.get("tie_word_embeddings")
        assert tied is None or tied == (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight)


@pytest.mark.parametrize("family", language.FAMILIES)
def test_answers_that_the_first_layers_draft_are_those_of_greedy_decoding(family):
    whole, draft = made("language", family), made("language", family)
    keep_first(LayeredCausalLM(draft), 2)
    prompt, settings = batch_of("language", False)[0]["input_ids"][:1], {"max_new_tokens": 12, "do_sample": False}
    greedy = whole.generate(prompt, **settings)
    assert torch.equal(whole.generate(prompt, assistant_model=draft, **settings), greedy)
    if LayeredCausalLM(whole).family.drafts:
        assert torch.equal(whole.generate(prompt, assistant_early_exit=2, **settings), greedy)


@pytest.mark.parametrize(("head", "family"), [case for case in CASES if case[0] in ("class", "language")])
@torch.no_grad()
def test_noise_goes_on_the_word_embedding_alone(head, family, monkeypatch):
    own = made(head, family)
    layers, task = resolve(own, None, None)
    inputs, _ = batch_of(head, padded=True)
    keep = inputs["attention_mask"].bool()
    words = layers.get_input_embeddings()
    assert words.num_embeddings == own.config.vocab_size
    clean = words(inputs["input_ids"])
    noisy = GaussianNoise(0.5, seed=1)(clean, keep)
    samples = [{"input_ids": row[mask].tolist()} for row, mask in zip(inputs["input_ids"], keep, strict=True)]
    assert task.sigma(words, samples) == pytest.approx(clean[keep].std(correction=0).item(), rel=1e-5)
    assert (noisy - clean)[keep].std().item() == pytest.approx(0.5 * task.sigma(words, samples), rel=0.2)
    noise = GaussianNoise(0.5, seed=1)
    with noise.on(layers, mask=keep):
        exits = list(layers.predictions(inputs))
    calls = []
    monkeypatch.setattr(words, "forward", lambda ids: calls.append(ids) or noisy)
    for ours, expected in zip(exits, layers.predictions(inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert len(calls) == 1


@pytest.mark.parametrize("family", language.FAMILIES)
@torch.no_grad()
def test_drafting_by_the_first_layers_is_known_of_each_family(family):
    """Transformers drafts with k layers by setting the configuration's number of layers, which some models ignore."""
    own = made("language", family)
    layers, _ = resolve(own, None, None)
    called = []
    for block in layers.layer_modules:
        block.register_forward_hook(lambda *_: called.append(1))
    own.config.num_hidden_layers = 1
    own(**batch_of("language", padded=False)[0], use_cache=False)
    assert len(called) == (1 if layers.family.drafts else 3)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_modernbert_reads_its_first_token_or_the_mean(mean, padded):
    own = made("class", "modernbert")
    own.config.classifier_pooling = "mean" if mean else "cls"
    inputs, _ = batch_of("class", padded)
    *_, last = resolve(own, None, None)[0].predictions(inputs)
    torch.testing.assert_close(last, own(**inputs).logits, rtol=1e-5, atol=1e-5)
    *_, last = resolve(own, None, None)[0].predictions({"input_ids": inputs["input_ids"]})
    torch.testing.assert_close(last, own(input_ids=inputs["input_ids"]).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", images.FAMILIES)
@torch.no_grad()
def test_noise_on_an_image_goes_on_its_embedded_patches(family):
    """Not on [CLS], registers and positions; and images leave early as texts do."""
    own = made("image", family)
    layers, task = resolve(own, None, None)
    inputs, _ = batch_of("image", False)
    patches = layers.get_input_embeddings()
    clean = patches(inputs["pixel_values"])
    with GaussianNoise(0.5, sigma=clean.std().item(), seed=1).on(layers):
        states = layers.layer_outputs(inputs)
    exits = torch.stack(list(layers.predictions(inputs)))
    logits, left = layers.exits(inputs, lambda layer, logits, rows: rows < layer)
    others = states[0].shape[1] - clean.shape[1]
    moved = (states[0] - layers.layer_outputs(inputs)[0]).abs().amax(-1) > 0
    assert others >= 1 and not moved[:, :others].any() and moved[:, others:].all()
    assert left.tolist() == [1, 2, 3, 3] and task.metric == "accuracy"
    torch.testing.assert_close(logits, exits[left, torch.arange(4)])


@pytest.mark.parametrize("family", images.FAMILIES)
@torch.no_grad()
def test_a_model_made_for_another_size_is_the_one_that_interpolates(family, tmp_path):
    own = made("image", family)
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    interpolates = {} if family.startswith("dino") else {"interpolate_pos_encoding": True}
    expected = own(pixels, **interpolates).logits
    images.resized(own, 16).save_pretrained(tmp_path)
    loaded = type(own).from_pretrained(tmp_path)
    assert loaded.config.image_size == 16
    torch.testing.assert_close(loaded(pixels).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_decoder_reads_the_last_token_wherever_the_padding_is(side):
    own = made("class", "qwen3")
    layers, _ = resolve(own, None, None)
    inputs, _ = batch_of("class", padded=True)
    if side == "left":
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    expected = own(**inputs).logits
    *_, last = layers.predictions(inputs)
    torch.testing.assert_close(last, expected, rtol=1e-5, atol=1e-5)
    *_, last = layers.predictions(layers.embedded(inputs))
    torch.testing.assert_close(last, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_deberta_with_a_convolution_leaves_early_after_it():
    """The large DeBERTa-v2 models have one after block 1, which belongs to layer 1."""
    own = made("class", "deberta-v2", conv_kernel_size=3, conv_act="gelu", num_hidden_layers=4)
    layers, _ = resolve(own, None, None)
    inputs, _ = batch_of("class", padded=True)
    exits = torch.stack(list(layers.predictions(inputs)))
    torch.testing.assert_close(exits[-1], own(**inputs).logits)
    logits, left = layers.exits(inputs, lambda layer, logits, rows: rows < layer)
    assert left.tolist() == [1, 2, 3, 4]
    torch.testing.assert_close(logits, exits[left, torch.arange(4)])


@torch.no_grad()
def test_a_batch_as_large_as_debertas_relative_positions_leaves_early():
    """A block is also given embeddings of relative positions, 8 of them, which are not rows of the batch."""
    layers, _ = resolve(made("class", "deberta-v2"), None, None)
    ids = torch.randint(5, 40, (8, 9), generator=torch.Generator().manual_seed(2))
    exits = torch.stack(list(layers.predictions({"input_ids": ids})))
    logits, left = layers.exits({"input_ids": ids}, lambda layer, logits, rows: rows < 3 * layer)
    torch.testing.assert_close(logits, exits[left, torch.arange(8)])


TEACHER = {"architectures": ["DeiTForImageClassificationWithTeacher"]}
SMALL_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
FUNNEL = {"vocab_size": 40, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "block_sizes": [1, 1]}
GEMMA3N = {"vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 8, "laurel_rank": 4, "head_dim": 8}
GEMMA3N |= {"num_kv_shared_layers": 0, "activation_sparsity_pattern": None, "num_key_value_heads": 1}
GEMMA3N |= {"layer_types": ["full_attention"] * 3, "pad_token_id": 0, "altup_num_inputs": 2}


@pytest.mark.parametrize(
    ("auto", "kind", "settings", "message"),
    [
        (AutoModelForSeq2SeqLM, "t5", SMALL_T5, r"'t5'.*encoder and a decoder"),
        (AutoModelForCausalLM, "gemma3n_text", WIDE | GEMMA3N, r"'gemma3n_text'.*embedding of its own"),
        (AutoModelForSequenceClassification, "funnel", FUNNEL, r"'funnel'.*shorten"),
        (AutoModelForCausalLM, "mamba", {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}, "'mamba'"),
        (AutoModelForSequenceClassification, "mpnet", WIDE, r"distilbert.*'mpnet'.*FAMILIES"),
        (AutoModelForSequenceClassification, "albert", WIDE | {"num_hidden_groups": 3}, "num_hidden_groups 3"),
        (AutoModelForSequenceClassification, "albert", WIDE | {"inner_group_num": 2}, "inner_group_num 2"),
        (AutoModelForSequenceClassification, "llama", WIDE, r"pad_token_id.*none"),
        (AutoModelForImageClassification, "swin", {"embed_dim": 8, "depths": [1], "num_heads": [1]}, r"vit.*'swin'"),
        (AutoModelForImageClassification, "deit", PIXELS | TEACHER, r"ForImageClassification; got DeiT.*Teacher"),
        (AutoModel, "vit", PIXELS, r"ForImageClassification; got ViTModel"),
        (AutoModelForTokenClassification, "qwen2", WIDE, r"distilbert.*modernbert.*'qwen2'"),
        (AutoModelForCausalLM, "qwen3_moe", WIDE | CAUSAL["qwen3_moe"] | {"output_router_logits": True}, "experts"),
    ],
)
def test_what_can_not_be_read_is_refused_with_its_reason(auto, kind, settings, message):
    with pytest.raises(InputError, match=message) as refused:
        resolve(auto.from_config(AutoConfig.for_model(kind, **settings)), None, None)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("family", sorted(name for name in FAMILIES if not name.startswith("descend-")))
@torch.no_grad()
def test_a_readout_of_the_mean_obeys_the_laws_around_every_family(family, tmp_path):
    """Exit L is the model's own output, also with early exits and tempered; the first K layers alone are exit K."""
    encoder = made("class", family).base_model
    given = deepcopy(encoder.config)  # as it is read from a folder, before the encoder is made
    given._attn_implementation = None
    own = MeanPooledForSequenceClassification(MeanPooledConfig(given, num_labels=3), encoder).eval()
    layers, _ = resolve(own, None, None)
    inputs, _ = batch_of("class", padded=True)
    exits = torch.stack(list(layers.predictions(inputs)))
    torch.testing.assert_close(exits[-1], own(**inputs).logits, rtol=1e-5, atol=1e-5)
    mean = [
        row[mask].mean(0)
        for row, mask in zip(own.base_model(**inputs).last_hidden_state, inputs["attention_mask"].bool(), strict=True)
    ]
    torch.testing.assert_close(exits[-1], own.score(torch.stack(mean)), rtol=1e-5, atol=1e-5)
    logits, left = layers.exits(inputs, lambda layer, logits, rows: rows < layer)
    assert left.tolist() == [1, 2, 3, 3]
    torch.testing.assert_close(logits, exits[left, torch.arange(4)], rtol=1e-5, atol=1e-5)
    with layers.tempered(2.0):
        torch.testing.assert_close(own(**inputs).logits, exits[-1] / 2, rtol=1e-5, atol=1e-5)
    keep_first(layers, 2)
    own.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert loaded.config.num_hidden_layers == LayeredClassifier(loaded).depth == 2
    torch.testing.assert_close(loaded(**inputs).logits, exits[2], rtol=1e-5, atol=1e-5)


# --- own exits

WEIGHTS = [0.0, 0.3, 0.7, 1.0]


def own(head, family, moved=0.0):
    """A model with own exits, which differ from its readout by noise of this size, and its layers."""
    model = made(head, family)
    layers, _ = resolve(model, None, None)
    layers.give_own_exits()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in layers.own_exits.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, generator=generator))
    return model, layers


def read(layers, inputs):
    with torch.no_grad():
        return torch.stack(list(layers.predictions(inputs)))


@pytest.mark.parametrize(("head", "family"), CASES)
def test_new_own_exits_read_what_the_shared_one_reads(head, family):
    shared, _ = resolve(made(head, family), None, None)
    model, layers = own(head, family)
    inputs, _ = batch_of(head, padded=True)
    torch.testing.assert_close(read(layers, inputs), read(shared, inputs), rtol=1e-5, atol=1e-5)
    assert len(layers.own_exits) == layers.depth == 3
    tied = {id(each) for each in layers.own_exits.parameters()} & {id(each) for each in shared.parameters()}
    assert not tied and getattr(model.config, MARK)


@pytest.mark.parametrize(("head", "family"), CASES)
def test_exits_learn_with_weight_1_and_the_model_hears_its_weights(head, family):
    model, layers = own(head, family, moved=0.1)
    inputs, labels = batch_of(head, padded=True)
    parameters = dict(model.named_parameters())
    of_exits = {name for name in parameters if name.startswith("exits.")}
    total = Objective(model).eval()(WEIGHTS, **inputs, **labels)
    torch.testing.assert_close(
        total.lagrangian.item(), sum(w * s for w, s in zip(WEIGHTS, total.sums, strict=True)), rtol=1e-5, atol=1e-4
    )
    found = torch.autograd.grad(total.lagrangian, [*parameters.values()], allow_unused=True)
    slopes = {name: slope for name, slope in zip(parameters, found, strict=True) if slope is not None}
    assert of_exits <= slopes.keys()

    # The same by hand: each exit's loss alone. Inner exits of a language model leave its head as it is.
    task, batch = resolve(model, None, None)[1], {**inputs, **labels}
    given, target = task.inputs(batch), task.target(batch)
    expected = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for layer, (weight, hidden) in enumerate(zip(WEIGHTS, layers.layer_outputs(given), strict=True)):
        if head == "language":
            rows = layers.head_input(hidden.flatten(0, 1)[given[PLACES]], layer)
            module = layers.last_of_head
            fixed = {name: each.detach() for name, each in module.named_parameters()}
            logits = module(rows) if layer == 3 else torch.func.functional_call(module, fixed, rows)
            prediction = layers.family.scale(layers.config, logits)
        else:
            prediction = list(layers.predictions(given))[layer]
        loss = task.losses(prediction, target).sum()
        found = torch.autograd.grad(loss, [*parameters.values()], retain_graph=True, allow_unused=True)
        for name, slope in zip(parameters, found, strict=True):
            if slope is not None:
                expected[name] += slope * (1.0 if name in of_exits else weight)
    for name, slope in slopes.items():
        scale = max(1.0, expected[name].abs().max().item())
        torch.testing.assert_close(slope, expected[name], rtol=1e-3, atol=1e-4 * scale, msg=name)


@pytest.mark.parametrize(("head", "family"), CASES)
def test_saved_exits_are_loaded_again_and_exported(head, family, tmp_path):
    model, layers = own(head, family, moved=0.2)
    inputs, _ = batch_of(head, padded=True)
    expected = read(layers, inputs)
    assert not torch.allclose(expected[1], read(resolve(made(head, family), None, None)[0], inputs)[1], atol=1e-2)
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(plain_output(again, inputs), expected[-1], rtol=1e-5, atol=1e-5)  # Transformers alone
    torch.testing.assert_close(read(resolve(again, None, None)[0], inputs), expected, rtol=1e-5, atol=1e-5)
    for layer in (1, 3):
        export_model(model, layer, tmp_path / f"first-{layer}")
        cut = type(model).from_pretrained(tmp_path / f"first-{layer}").eval()
        assert not hasattr(cut.config, MARK) and resolve(cut, None, None)[0].own_exits is None
        torch.testing.assert_close(plain_output(cut, inputs), expected[layer], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(read(layers, inputs), expected)  # the model itself is not changed
