"""Laws that every row of the tables of families obeys, against Transformers' own forward pass, loss and gradient."""

from copy import deepcopy

import pytest
import torch
from peft import LoraConfig, get_peft_model
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
    MARK,
    PLACES,
    LayeredCausalLM,
    LayeredClassifier,
    MeanPooledConfig,
    MeanPooledForSequenceClassification,
    encoders,
    images,
    keep_first,
    merged,
    plain_output,
)
from descend.models import causal as language
from descend.models.library import PER_LAYER, logits_of
from descend.run import export_model
from tests.support.cases import slow
from tests.support.networks import (
    CAUSAL,
    CONFIGS,
    DECODER,
    EAGER,
    IMAGES,
    PIXELS,
    WIDE,
    causal,
    image_network,
    moved,
    network,
)

TABLES = {
    "class": encoders.FAMILIES,
    "language": language.FAMILIES,
    "tokens": {name: family for name, family in encoders.FAMILIES.items() if family.token_head},
    "answer": {name: family for name, family in encoders.FAMILIES.items() if family.answer_head},
    "image": images.FAMILIES,
    "mean": {name: family for name, family in encoders.FAMILIES.items() if not name.startswith("descend-")},
}
"""The rows that have a head, by its name here; ``mean`` is that of a mean-pooled classifier."""

UNREAD = {
    "class": {"longest", "token_head", "answer_head"},
    "language": {"drafts"},
    "tokens": {"pool", "head", "longest", "looks", "answer_head"},
    "answer": {"pool", "head", "longest", "looks", "token_head"},
    "image": set(),
    "mean": {"pool", "head", "longest", "looks", "token_head", "answer_head"},
}
"""The fields of a row that have nothing to do with the logits of a head."""


def first_of_equals(head):
    """The first family of those whose rows say the same of a head."""
    firsts = {}
    for name, family in TABLES[head].items():
        firsts.setdefault(tuple(value for field, value in family._asdict().items() if field not in UNREAD[head]), name)
    return list(firsts.values())


ONE_OF_EQUALS = {head: first_of_equals(head) for head in TABLES}

LISTED = ("smollm3", "olmo3", "qwen3_moe")
"""Families with a usual row, and lists with an entry for each layer or experts."""


def cases(*heads):
    """Head and family of every row; those that repeat another row are slow."""
    return [
        pytest.param(head, name, id=f"{head}-{name}", marks=[] if quick(head, name) else pytest.mark.slow)
        for head in heads
        for name in TABLES[head]
    ]


def quick(head, family):
    return family in ONE_OF_EQUALS[head] or (head == "language" and family in LISTED)


def with_settings(case, *settings):
    """A case with more values behind it."""
    ends = ("-".join(map(str, each.values())) if isinstance(each, dict) else str(each) for each in settings)
    name = "-".join(filter(None, [case.id, *ends]))
    return pytest.param(*case.values, *settings, id=name, marks=case.marks)


OWN = {"class-bert", "class-roberta", "class-deberta-v2", "class-llama", "language-gpt2", "language-llama", "image-vit"}
"""Those that are quick where any family would do."""

CASES = cases("class", "language", "tokens", "answer", "image")
READ = [
    *(with_settings(case, {}) for case in [*CASES, *cases("mean")]),
    pytest.param("class", "descend-mean-pooled", {"classifier_pooling": "cls"}, id="class-descend-mean-pooled-cls"),
    pytest.param("class", "modernbert", {"classifier_pooling": "mean"}, id="class-modernbert-mean"),
    # The large DeBERTa-v2 models have a convolution after block 1, which belongs to layer 1.
    pytest.param("class", "deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}, id="class-deberta-v2-conv"),
]
"""Head, family and settings of models whose readout is a special one."""

AUTO = {"tokens": AutoModelForTokenClassification, "answer": AutoModelForQuestionAnswering}


def made(head, family, **settings):
    """A network in eval mode whose norms, heads and positions all matter."""
    if head == "mean":
        encoder = made("class", family, **settings).base_model
        given = deepcopy(encoder.config)  # as it is read from a folder, before the encoder is made
        given._attn_implementation = None
        return MeanPooledForSequenceClassification(MeanPooledConfig(given, num_labels=3), encoder).eval()
    if head == "language":
        built = causal(family, "eager" if family in EAGER else "sdpa", **settings)
    elif head == "image":
        built = image_network(family, **settings)
    else:
        auto = AUTO.get(head, AutoModelForSequenceClassification)
        built = network(family, labels=2 if head == "answer" else 3, auto=auto, **settings)
    return moved(built, 0.2)


def batch_of(head, padding="right"):
    """Eight texts or images, and their labels; without padding there is no mask, and token 1 is padding.

    As many as the embeddings of relative positions that a block of DeBERTa is given, which are no rows of the batch.
    """
    generator = torch.Generator().manual_seed(0)
    classes = {"labels": torch.tensor([0, 2, 1, 1, 0, 2, 2, 1])}
    if head == "image":
        return {"pixel_values": torch.randn(8, 3, 8, 8, generator=generator)}, classes
    ids = torch.randint(5, 40, (8, 9), generator=generator)
    lengths = torch.tensor([9, 5, 4, 7, 9, 6, 8, 4] if padding else [9] * 8)
    mask = (torch.arange(9) < lengths[:, None]).long()
    ids[mask == 0] = 1
    if padding == "left":
        ids, mask = ids.flip(1), mask.flip(1)
    inputs = {"input_ids": ids, "attention_mask": mask} if padding else {"input_ids": ids}
    if head in ("class", "mean"):
        return inputs, classes
    if head == "answer":
        starts = torch.tensor([0, 2, 1, 3, 0, 1, 2, 1])
        return inputs, {"start_positions": starts, "end_positions": starts + torch.tensor([4, 0, 2, 3, 8, 4, 5, 2])}
    labels = ids.clone() if head == "language" else torch.randint(0, 3, ids.shape, generator=generator)
    labels[mask == 0] = -100
    labels[0, :3] = -100
    return inputs, {"labels": labels}


def test_all_families_are_tested():
    assert encoders.FAMILIES.keys() == CONFIGS.keys()
    assert language.FAMILIES.keys() == CAUSAL.keys()
    assert images.FAMILIES.keys() == IMAGES.keys()


@pytest.mark.parametrize(
    ("head", "family", "settings", "padding"),
    [
        *(
            with_settings(slow(case) if padding is None else case, padding)
            for case in READ
            for padding in (None, "right")
        ),
        ("class", "qwen3", {}, "left"),
    ],
)
def test_the_last_exit_has_the_models_own_logits_loss_and_gradient(head, family, settings, padding):
    own = made(head, family, **settings)
    layers, _ = resolve(own, None, None)
    inputs, labels = batch_of(head, padding)
    expected = own(**inputs, **labels, output_hidden_states=True)
    states, exits = layers.layer_outputs(inputs), torch.stack(list(layers.predictions(inputs)))
    # But for the last one, which comes before a final norm here.
    torch.testing.assert_close(states[:-1], expected.hidden_states[:-1], rtol=0, atol=0)
    torch.testing.assert_close(exits[-1], logits_of(expected), rtol=1e-5, atol=1e-5)
    assert len(exits) == layers.depth + 1 == 4
    for early in exits[:-1]:
        assert not torch.allclose(early, exits[-1], atol=1e-3)
    if head in ("class", "mean", "image"):
        logits, left = layers.exits(inputs, lambda layer, logits, rows: rows < layer)
        assert left.tolist() == [1, 2, *[3] * 6]
        torch.testing.assert_close(logits, exits[left, torch.arange(8)], rtol=1e-5, atol=1e-5)
    expected.loss.backward()
    gradients = {name: value.grad for name, value in own.named_parameters() if value.grad is not None}
    own.zero_grad()
    found = Objective(own).eval()([0.0, 0.0, 0.0, 1.0], **inputs, **labels)
    loss = found.lagrangian / found.targets
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-5)
    assert found.sums[-1] / found.targets == pytest.approx(expected.loss.item(), rel=1e-5)
    loss.backward()
    ours = {name: value.grad for name, value in own.named_parameters() if value.grad is not None}
    scale = max(value.abs().max() for value in gradients.values()).item()
    assert len(gradients) > 8 and ours.keys() == gradients.keys()
    for name, value in gradients.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize(
    ("head", "family", "settings"),
    [
        *(case for case in READ if case.values[0] != "language"),
        *(
            with_settings(case if tied else slow(case), {"tie_word_embeddings": tied})
            for case in cases("language")
            for tied in (True, False)
        ),
    ],
)
@torch.no_grad()
def test_the_first_layers_alone_are_a_model_with_that_exits_logits(head, family, settings, tmp_path):
    plain, (inputs, _) = made(head, family, **settings), batch_of(head)
    # A plain checkpoint needs no Descend.
    assert type(plain).__module__.startswith("transformers.") == (head != "mean" and "descend-" not in family)
    listed = {name for name, value in plain.config.to_dict().items() if isinstance(value, list) and len(value) == 3}
    assert listed <= {*PER_LAYER, "architectures"}
    layers, _ = resolve(plain, None, None)
    expected = list(layers.predictions(inputs))[2]
    keep_first(layers, 2)
    assert layers.depth == plain.config.num_hidden_layers == 2
    plain.save_pretrained(tmp_path)
    attention = {"attn_implementation": plain.config._attn_implementation} if head == "language" else {}
    loaded = type(plain).from_pretrained(tmp_path, **attention).eval()
    for model in (plain, loaded):
        torch.testing.assert_close(plain_output(model, inputs), expected, rtol=1e-5, atol=1e-5)
    tied = settings.get("tie_word_embeddings")
    assert tied is None or tied == (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight)


@pytest.mark.parametrize(("head", "family"), cases("class", "language", "image"))
@torch.no_grad()
def test_noise_goes_on_the_embedded_words_or_patches_alone(head, family, monkeypatch):
    """Not on padding, [CLS], registers and positions: all exits are those of a model with the noisy embedding."""
    layers, task = resolve(made(head, family), None, None)
    inputs, _ = batch_of(head)
    fed, embedding = next(iter(inputs.values())), layers.get_input_embeddings()
    keep = None if head == "image" else inputs["attention_mask"].bool()
    clean = embedding(fed)
    noisy = GaussianNoise(0.5, seed=1)(clean, keep)
    assert head != "image" or clean.shape[1] == 4  # patches, without [CLS] and registers
    if keep is not None:
        samples = [{"input_ids": row[mask].tolist()} for row, mask in zip(fed, keep, strict=True)]
        assert task.sigma(embedding, samples) == pytest.approx(clean[keep].std(correction=0).item(), rel=1e-5)
    with GaussianNoise(0.5, seed=1).on(layers, mask=keep):
        exits = list(layers.predictions(inputs))
    calls = []
    monkeypatch.setattr(embedding, "forward", lambda *fed, **settings: calls.append(1) or noisy)
    for ours, expected in zip(exits, layers.predictions(inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert len(calls) == 1


@torch.no_grad()
def test_every_family_reads_a_text_of_its_longest_length():
    """Some count positions from the padding's number on, so that a text has fewer tokens than there are positions."""
    for family in TABLES["class"]:
        model = made("class", family)
        longest = resolve(model, None, None)[0].limits.get("length")
        if longest is not None:
            tokens = torch.full((1, longest), 7)
            assert (
                plain_output(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}).isfinite().all()
            )


@pytest.mark.parametrize(("head", "family"), cases("class", "mean"))
@torch.no_grad()
def test_words_may_be_embedded_before_the_model_as_compiled_training_does(head, family):
    layers, _ = resolve(made(head, family), None, None)
    inputs, _ = batch_of(head)
    inputs["input_ids"][0, 1] = 4  # ESM's masked residue
    embedded = layers.embedded(inputs)
    assert "input_ids" not in embedded
    for ours, expected in zip(layers.predictions(embedded), layers.predictions(inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


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
    own(**batch_of("language", None)[0], use_cache=False)
    assert len(called) == (1 if layers.family.drafts else 3)


@pytest.mark.parametrize("family", [name for name in images.FAMILIES if name != "beit"])
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


OPT_350M = DECODER | {"ffn_dim": 32, "word_embed_proj_dim": 8, "do_layer_norm_before": False}
TEACHER = {"architectures": ["DeiTForImageClassificationWithTeacher"]}
SMALL_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
FUNNEL = {"vocab_size": 40, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "block_sizes": [1, 1]}
GEMMA3N = {
    **{"vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 8, "laurel_rank": 4, "head_dim": 8},
    **{"num_kv_shared_layers": 0, "activation_sparsity_pattern": None, "num_key_value_heads": 1},
    **{"layer_types": ["full_attention"] * 3, "pad_token_id": 0, "altup_num_inputs": 2},
}


@pytest.mark.parametrize(
    ("auto", "kind", "settings", "message"),
    [
        (AutoModelForSeq2SeqLM, "t5", SMALL_T5, r"'t5'.*encoder and a decoder"),
        (AutoModelForCausalLM, "gemma3n_text", WIDE | GEMMA3N, r"'gemma3n_text'.*embedding of its own"),
        (AutoModelForSequenceClassification, "funnel", FUNNEL, r"'funnel'.*shorten"),
        (AutoModelForCausalLM, "mamba", {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}, "'mamba'"),
        (AutoModelForSequenceClassification, "big_bird", WIDE, r"distilbert.*opt.*'big_bird'.*print\(model\).*blocks="),
        (AutoModelForSequenceClassification, "opt", OPT_350M, "'opt'.*norm after the last block"),
        (AutoModelForCausalLM, "opt", OPT_350M | {"word_embed_proj_dim": 16}, "'opt'.*norm after the last block"),
        (AutoModelForSequenceClassification, "albert", WIDE | {"num_hidden_groups": 3}, "num_hidden_groups 3"),
        (AutoModelForSequenceClassification, "albert", WIDE | {"inner_group_num": 2}, "inner_group_num 2"),
        (AutoModelForSequenceClassification, "llama", WIDE, r"pad_token_id.*none"),
        (AutoModelForImageClassification, "swin", {"embed_dim": 8, "depths": [1], "num_heads": [1]}, r"vit.*'swin'"),
        (AutoModelForImageClassification, "deit", PIXELS | TEACHER, r"ForImageClassification; got DeiT.*Teacher"),
        (AutoModelForImageClassification, "beit", PIXELS | {"use_mean_pooling": False}, "'beit'.*mean patch"),
        (AutoModel, "vit", PIXELS, r"ForImageClassification; got ViTModel"),
        (AutoModelForTokenClassification, "qwen2", WIDE, r"distilbert.*modernbert.*'qwen2'"),
        (AutoModelForQuestionAnswering, "qwen2", WIDE, r"one of distilbert, (?!.*\besm\b).*'qwen2'"),
        (AutoModelForCausalLM, "qwen3_moe", WIDE | CAUSAL["qwen3_moe"] | {"output_router_logits": True}, "experts"),
    ],
)
def test_what_can_not_be_read_is_refused_with_its_reason(auto, kind, settings, message):
    with pytest.raises(InputError, match=message) as refused:
        resolve(auto.from_config(AutoConfig.for_model(kind, **settings)), None, None)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", ONE_OF_EQUALS["mean"])
def test_a_linear_readout_is_one_matrix_on_the_mean_or_the_first_token_of_every_layer(family, pooling):
    """Against the encoder's own hidden states, and a product written out."""
    own = made("mean", family)
    own.config.classifier_pooling = pooling
    inputs, labels = batch_of("mean")
    states = own.base_model(**inputs, output_hidden_states=True).hidden_states
    name = encoders.FAMILIES[family].norm  # that of the last block's output, of which the last state is made
    norm = own.base_model.get_submodule(name) if name else torch.nn.Identity()
    states = [*map(norm, states[:-1]), states[-1]]
    for state, logits in zip(states, LayeredClassifier(own).predictions(inputs), strict=True):
        read = [row[mask].mean(0) for row, mask in zip(state, inputs["attention_mask"].bool(), strict=True)]
        pooled = torch.stack(read) if pooling == "mean" else state[:, 0]
        torch.testing.assert_close(logits, pooled @ own.score.weight.T + own.score.bias, rtol=1e-5, atol=1e-5)
    loss = -logits.log_softmax(-1)[range(8), labels["labels"]].mean()
    torch.testing.assert_close(own(**inputs, **labels).loss, loss)
    assert {name.split(".")[0] for name in own.state_dict()} == {"encoder", "score"}
    assert not any("pooler" in name for name in own.state_dict())


# --- own exits

WEIGHTS = [0.0, 0.3, 0.7, 1.0]


def own(head, family):
    """A model with new own exits, and its layers."""
    model = made(head, family)
    layers, _ = resolve(model, None, None)
    layers.give_own_exits()
    return model, layers


@torch.no_grad()
def read(layers, inputs):
    return torch.stack(list(layers.predictions(inputs)))


@pytest.mark.parametrize(("head", "family"), [case if case.id in OWN else slow(case) for case in CASES])
def test_exits_learn_with_weight_1_and_the_model_hears_its_weights(head, family):
    model, layers = own(head, family)
    moved(layers.own_exits, 0.1)
    inputs, labels = batch_of(head)
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
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


@pytest.mark.parametrize(
    ("head", "family"),
    [case if case.id in OWN else slow(case) for case in CASES],
)
def test_own_exits_start_as_the_shared_one_and_are_saved_loaded_and_exported(head, family, tmp_path):
    inputs, _ = batch_of(head)
    shared = read(resolve(made(head, family), None, None)[0], inputs)
    model, layers = own(head, family)
    torch.testing.assert_close(read(layers, inputs), shared, rtol=1e-5, atol=1e-5)
    assert len(layers.own_exits) == layers.depth == 3 and getattr(model.config, MARK)
    moved(layers.own_exits, 0.2)
    expected = read(layers, inputs)
    assert not torch.allclose(expected[1], shared[1], atol=1e-2) and torch.equal(expected[-1], shared[-1])
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


# --- what no row of the tables says


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("modules", [["q_proj"], ["q_proj", "lm_head"], ["embed_tokens"]])
def test_adapters_become_part_of_the_weights(tied, modules):
    torch.manual_seed(1)
    inputs, _ = batch_of("language")
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=modules, init_lora_weights=False)
    wrapped = get_peft_model(causal(tie_word_embeddings=tied), config).eval()
    expected = list(LayeredCausalLM(wrapped).predictions(inputs))[2]
    plain = merged(wrapped)
    keep_first(LayeredCausalLM(plain), 2)
    torch.testing.assert_close(plain(**inputs).logits, expected, rtol=1e-5, atol=1e-5)
    assert not hasattr(plain, "peft_config") and merged(plain) is plain
