"""Leaving early: against the full forward pass, a plain loop, and a count of the rows that blocks were given."""

import shutil

import pytest
import torch

from descend import DescentClassifier, GaussianNoise, InputError
from descend.models import LayeredClassifier, encoders
from descend.tasks.text import generate_pairs, generate_reviews, learn_tokenizer
from tests.support.cases import slow_but
from tests.support.networks import OWN_ATTENTION, change, network

ALL = encoders.FAMILIES
FAMILIES = [name for place, name in enumerate(ALL) if ALL[name] not in list(ALL.values())[:place]]
"""The first family of those with equal rows in the table: all are read alike."""

QUICK = ("bert", "descend-mean-pooled")

PAIRS = [(row["text"], row["pair"]) for row in generate_pairs(30, 0)]
TEXTS = [row["text"][: 20 + 7 * place] for place, row in enumerate(generate_reviews(30, 0))]


def lively(family, attention="sdpa", **settings):
    """A network of 6 blocks, its weights large enough that layers and texts differ."""
    depth = "n_layers" if "distilbert" in family else "num_hidden_layers"
    return LayeredClassifier(network(family, attention, **{depth: 6, "initializer_range": 0.3} | settings)).eval()


@pytest.fixture(scope="module")
def tokenizer():
    learned = learn_tokenizer([*TEXTS, *(text for pair in PAIRS for text in pair)])
    learned.model_input_names = ["input_ids", "attention_mask"]
    return learned


@pytest.fixture
def classifier(tokenizer):
    def build(family, **settings):
        size = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 60}
        return DescentClassifier(lively(family, **size | settings), tokenizer)

    return build


def batch(mask="padded"):
    """As many rows as the embeddings of relative positions that a block of DeBERTa is given, which are none of them."""
    tokens = torch.randint(5, 40, (8, 9), generator=torch.Generator().manual_seed(0))
    if mask == "none":
        return {"input_ids": tokens}
    if mask == "broadcast":  # over the rows of the batch, as Transformers' attention takes it
        return {
            "input_ids": tokens,
            "attention_mask": torch.zeros(1, 1, 9, 9).masked_fill(torch.ones(9, 9).triu(4) > 0, -1e4),
        }
    lengths = torch.tensor([9, 5, 2, 7, 9, 1, 6, 4]) if mask == "padded" else torch.tensor(9)
    return {"input_ids": tokens, "attention_mask": (torch.arange(9) < lengths[..., None]).long().expand(8, 9)}


MASKS = ("padded", "full", "none", "broadcast")
MASKED = ("distilbert", "deberta-v2", "llama")
CASES = [
    *(
        (family, attention, mask, {})
        for family in FAMILIES
        for attention in ("eager", "sdpa")
        # Masks differ in how a model takes them, not in how it is read: three families stand for all.
        for mask in (MASKS if family in MASKED else MASKS[:1])
        # Their own attention takes masks (B, T).
        if family not in OWN_ATTENTION or (attention == "sdpa" and mask != "broadcast")
    ),
    ("descend-text-ut", "sdpa", "padded", {"tied": True}),  # one block, whose layers are counted by its calls
]


@pytest.mark.parametrize(
    ("family", "attention", "mask", "settings"),
    slow_but([case for case in CASES if case[1] == "sdpa" or case[0] in MASKED], CASES),
)
@torch.no_grad()
def test_rows_leave_with_their_layers_logits_and_are_computed_no_more(family, attention, mask, settings):
    """And where no row leaves early the logits are the model's own, to a matrix product's rounding."""
    model, inputs = lively(family, attention, **settings), batch(mask)
    full, own = torch.stack(list(model.predictions(inputs))), model(**inputs).logits
    given = []  # the rows of every call of a block
    for block in model.library.base_model.get_submodule(model.family.blocks):
        # Some blocks return a tuple that starts with the hidden states.
        block.register_forward_hook(lambda module, args, out: given.append(len(out[0] if type(out) is tuple else out)))
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)

        def leave(layer, logits, rows, generator=generator):
            torch.testing.assert_close(logits, full[layer, rows])
            return torch.rand(len(rows), generator=generator) < 0.3

        given.clear()
        logits, layers = model.exits(inputs, leave)
        torch.testing.assert_close(logits, full[layers, torch.arange(8)])
        assert len(set(layers.tolist())) > 2
        assert given == [int((layers > place).sum()) for place in range(layers.max())]
    with GaussianNoise(0.5, seed=1).on(model):
        noisy = model(**inputs).logits
    assert not torch.equal(noisy, own)
    for recorded in (False, True):
        model.config.output_hidden_states = recorded
        logits, layers = model.exits(inputs, lambda layer, logits, rows: rows < 0)
        torch.testing.assert_close(logits, own, rtol=1e-6, atol=1e-6)
        assert layers.tolist() == [6] * 8
        with GaussianNoise(0.5, seed=1).on(model):
            again, _ = model.exits(inputs, lambda layer, logits, rows: rows < 0)
        torch.testing.assert_close(again, noisy, rtol=1e-6, atol=1e-6)
    with pytest.raises(ZeroDivisionError):
        model.exits(inputs, lambda layer, logits, rows: 1 / 0)
    assert torch.equal(model(**inputs).logits, own), "something stays behind on the model"


def by_hand(predictions, threshold, given):
    """The class, its probability and the layer of one text, by a loop over the predictions of layers 1 … L."""
    for layer, logits in enumerate(predictions, start=1):
        confidence, found = logits.softmax(-1).max(-1)
        if layer == given or (threshold is not None and confidence >= threshold):
            break
    return int(found), float(confidence), layer


@pytest.mark.parametrize(
    ("family", "texts"),
    [
        *slow_but([(family, TEXTS) for family in QUICK], [(family, TEXTS) for family in FAMILIES]),
        *slow_but([("bert", PAIRS)], [(family, PAIRS) for family in ("bert", "descend-text-ut")]),
    ],
)
@torch.no_grad()
def test_a_threshold_and_a_given_layer_are_a_plain_loops(family, texts, classifier, tokenizer):
    it = classifier(family)
    longest = None if family == "descend-text-ut" else it.model.limits["length"]
    alone = []
    for text in texts:
        given = (text,) if isinstance(text, str) else text
        inputs = tokenizer(*given, truncation=longest is not None, max_length=longest, return_tensors="pt")
        alone.append([logits[0] for logits in it.model.predictions(inputs)][1:])
    # Confidences between which no rounding decides: halfway in the widest gap of those that are high.
    sure = torch.stack([torch.stack(each) for each in alone]).softmax(-1).amax(-1).flatten().sort().values[-60:-10]
    threshold = float(sure[sure.diff().argmax() :][:2].mean())
    layers = set()
    for exit_threshold, layer in [(None, None), (threshold, None), (1.0, None), (None, 1), (None, 4)]:
        expected = [by_hand(predictions, exit_threshold, layer) for predictions in alone]
        layers |= {left for *_, left in expected}
        # One by one no text leaves a batch before others: one rule is enough for that.
        for batch_size in (1, 4, 32) if exit_threshold == threshold else (4, 32):
            found = it.predict(texts, exit_threshold, batch_size, layer)
            assert [(each.index, each.layer) for each in found] == [(index, left) for index, _, left in expected]
            assert [each.confidence for each in found] == pytest.approx([each for _, each, _ in expected], abs=1e-4)
            assert all(each.label == it.model.config.id2label[each.index] for each in found)
    assert len(layers) > 2


def test_the_model_is_given_texts_of_about_the_same_length_in_eval_mode_without_gradients(classifier):
    it, shapes = classifier("distilbert"), []

    def watched(network, args, inputs):
        assert not network.training and not torch.is_grad_enabled()
        shapes.append(tuple(inputs["input_ids"].shape))

    it.model.train().network.register_forward_pre_hook(watched, with_kwargs=True)
    it.predict(TEXTS, batch_size=10)
    it.predict(TEXTS, exit_threshold=1.0, batch_size=10)
    lengths = sorted((min(len(ids), 60) for ids in it.tokenizer(TEXTS)["input_ids"]), reverse=True)
    assert shapes == [(10, length) for length in lengths[::10]] * 2
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_model_can_not_take_is_cut_and_ut_takes_all(classifier, family):
    it, long = classifier(family), "a very good film " * 40
    cut = it.predict([long, long + " and a bad one"], exit_threshold=0.9)
    assert (cut[0] == cut[1]) is (family != "descend-text-ut")
    assert it.predict([]) == [] and it.predict("good film") == it.predict(["good film"])


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        (["good", "  "], {}, "text 1 is empty"),
        ([("good", "")], {}, "text 0 is empty"),
        ("", {}, "text 0 is empty"),
        (["good", 3], {}, r"text 1.*got 3"),
        ([("a", "b", "c")], {}, "text 0"),
        ([()], {}, "text 0"),
        (["good", ("a", "b")], {}, r"pairs.*text 1"),
        (("a", "b"), {}, r"list.*tuple"),
        (None, {}, "got NoneType"),
        ("good", {"exit_threshold": 0}, r"exit_threshold.*\(0, 1\].*got 0"),
        ("good", {"exit_threshold": 1.1}, "got 1.1"),
        ("good", {"exit_threshold": float("nan")}, "got nan"),
        ("good", {"batch_size": 0}, "batch_size must be"),
        ("good", {"layer": 0}, "layer must be 1 to 6.*got 0"),
        ("good", {"layer": 7}, "got 7"),
        ("good", {"layer": True}, "got True"),
        ("good", {"layer": 2, "exit_threshold": 0.9}, "got both"),
    ],
)
def test_wrong_texts_and_settings_are_refused(texts, settings, message, classifier):
    with pytest.raises(InputError, match=message):
        classifier("distilbert").predict(texts, **settings)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder, model: shutil.rmtree(folder), r"'.*folder'.*run folder"),
        (lambda folder, model: (folder / "config.json").unlink(), "load a classifier"),
        (lambda folder, model: [file.unlink() for file in folder.glob("*token*")], r"tokenizer.*words"),
        (lambda folder, model: (folder / "model.safetensors").write_bytes(bytes(100)), "load a classifier"),
        (lambda folder, model: model.bert.save_pretrained(folder), r"classifier.bias, classifier.weight"),
        (
            lambda folder, model: learn_tokenizer([" ".join(map(str, range(5000)))]).save_pretrained(folder),
            r"tokenizer has 5004 words, the model's word embedding \d+\.",
        ),
        (lambda folder, model: change(folder, "tokenizer_config.json", pad_token=None), "tokenizer.*padding"),
    ],
)
def test_what_is_no_classifier_with_its_tokenizer_is_refused(classifier, tokenizer, tmp_path, damage, message):
    model = classifier("bert").model.saved
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "folder")
    assert DescentClassifier.from_pretrained(tmp_path / "folder")
    damage(tmp_path / "folder", model)
    with pytest.raises(InputError, match=message):
        DescentClassifier.from_pretrained(tmp_path / "folder")


def test_a_strangers_code_of_a_tokenizer_is_not_passed_on(classifier, tokenizer, tmp_path):
    for part in (classifier("bert").model.saved, tokenizer):
        part.save_pretrained(tmp_path)
    change(tmp_path, "tokenizer_config.json", auto_map={"AutoTokenizer": ["theirs.Model", None]})
    loaded = DescentClassifier.from_pretrained(tmp_path).tokenizer
    loaded.save_pretrained(tmp_path / "again")
    assert "auto_map" not in (tmp_path / "again" / "tokenizer_config.json").read_text()
