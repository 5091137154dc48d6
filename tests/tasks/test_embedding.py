"""The losses and metrics of embedding models, against those of SentenceTransformers and scipy."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy.stats import spearmanr
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.nn import functional as F

from descend import GaussianNoise, InputError
from descend.evaluation.layers import survey
from descend.models import Embedder, EmbedderConfig, LayeredEmbedder
from descend.recipes.embed import EmbedRecipe
from descend.tasks.text import learn_tokenizer
from descend.tasks.text.embedding import ScoredPairs, Triplets, spearman_shares
from tests.support.networks import moved, network
from tests.support.subjects import batches, measured

WORDS = "a good film with a bad plot and one dull scene"
TOKENIZER = learn_tokenizer([WORDS])


def samples(task, count=9):
    """Texts of 1 to 7 words."""
    drawn = np.random.default_rng(0)
    rows = []
    for place in range(count):
        texts = [" ".join(drawn.choice(WORDS.split(), drawn.integers(1, 8))) for _ in range(task.rows)]
        rows.append({"input_ids": TOKENIZER(texts)["input_ids"], "labels": place / count, "group": place})
    return rows


def embedder():
    """A small BERT with the mean of its tokens."""
    encoder = network("bert", vocab_size=len(TOKENIZER)).base_model
    pooling = {"type": "Pooling", "config": {"embedding_dimension": 16, "pooling_mode": "mean"}}
    return LayeredEmbedder(moved(Embedder(EmbedderConfig(encoder.config, [pooling]), encoder), 0.1))


COLLATE = EmbedRecipe(data=".", model=".").collate(TOKENIZER)


def test_triplets_train_by_the_ranking_loss_of_sentence_transformers():
    embeddings = torch.randn(3, 7 * 3, 5, generator=torch.Generator().manual_seed(0))
    theirs = MultipleNegativesRankingLoss(model=None, scale=20.0)
    for exits in (embeddings, [*embeddings]):
        sums = Triplets().sums(exits, torch.ones(7))
        expected = [
            theirs.compute_loss_from_embeddings([*each.unflatten(0, (7, 3)).unbind(1)], None) for each in embeddings
        ]
        torch.testing.assert_close(sums / 7, torch.stack(expected))


def test_a_triplet_is_measured_alone():
    embeddings = torch.randn(4 * 3, 5, generator=torch.Generator().manual_seed(0)).double()
    task, target = Triplets(), torch.ones(4)
    anchor, positive, negative = embeddings.unflatten(0, (4, 3)).unbind(1)
    near, far = F.cosine_similarity(anchor, positive), F.cosine_similarity(anchor, negative)
    torch.testing.assert_close(task.losses(embeddings, target), torch.log1p(torch.exp(20 * (far - near))))
    assert task.score(embeddings, target).tolist() == (near > far).float().tolist()
    one = torch.cat([task.losses(embeddings[3 * row : 3 * row + 3], target[:1]) for row in range(4)])
    torch.testing.assert_close(task.losses(embeddings, target), one)


def test_scored_pairs_learn_their_score_as_the_cosine():
    embeddings, target = torch.tensor([[1.0, 0], [2, 0], [1, 0], [0, 3], [1, 1], [-1, -1]]), torch.tensor([1.0, 0.5, 0])
    task = ScoredPairs()
    torch.testing.assert_close(task.score(embeddings, target), torch.tensor([1.0, 0, -1]))
    torch.testing.assert_close(task.losses(embeddings, target), torch.tensor([0, 0.25, 1]))


@pytest.mark.parametrize("values", [1000, 5])  # of 5 values most are tied
def test_shares_have_spearmans_mean_and_the_spread_of_the_jackknife(values):
    drawn, count = np.random.default_rng(0), 150
    y = drawn.integers(values, size=count).astype(float)
    x = np.round(y / values + drawn.normal(size=count) * 0.4, 2 if values > 5 else 0)
    shares, rho = spearman_shares(x, y), spearmanr(x, y).statistic
    assert shares.mean() == pytest.approx(rho, abs=1e-12)
    without = [spearmanr(np.delete(x, row), np.delete(y, row)).statistic for row in range(count)]
    jackknife = count * rho - (count - 1) * np.array(without)
    assert np.corrcoef(shares, jackknife)[0, 1] > 0.999
    assert shares.std() == pytest.approx(jackknife.std(), rel=0.02)


def test_spearman_of_equal_values_is_0_and_of_broken_ones_unknown():
    rising = np.arange(5.0)
    assert spearman_shares(np.ones(5), rising).tolist() == [0] * 5
    assert np.isnan(spearman_shares(np.array([0, 1, np.nan, 3, 4]), rising)).all()
    assert spearman_shares(rising, rising).mean() == pytest.approx(1)
    shares = ScoredPairs().over_data(torch.tensor([[0.0, 4], [1, 3], [2, 1], [3, 0]]).double(), torch.arange(4.0))
    torch.testing.assert_close(shares.mean(0), torch.tensor([1.0, -1.0]).double())


@pytest.mark.parametrize("task", [Triplets(), ScoredPairs()], ids=["triplets", "scored"])
def test_neither_fingerprints_nor_noise_depend_on_the_batch_size(task):
    data, model = samples(task), embedder()
    prints = {survey(task, batches(size, COLLATE).of(data)) for size in (1, 2, 9)}
    assert len(prints) == 1
    changed = [*data[:-1], data[-1] | {"input_ids": [*data[-1]["input_ids"][:-1], [2, 3]]}]
    assert survey(task, batches(4, COLLATE).of(changed)) not in prints
    noise = GaussianNoise(0.5, 1.0, 0)
    one, *others = (measured(model, task, data, noise, size, COLLATE) for size in (1, 2, 9))
    assert not torch.allclose(one.losses, measured(model, task, data, None, 9, COLLATE).losses, rtol=1e-3)
    for other in others:
        torch.testing.assert_close(other.losses, one.losses, rtol=1e-4, atol=1e-5)
        assert other.metrics == pytest.approx(one.metrics, abs=1e-6)
    assert len(one.metrics) == 4 and one.losses.shape == (9, 4)


def test_samples_that_do_not_fit_the_task_or_the_model_are_named():
    data = Dataset.from_list(samples(Triplets(), 3))
    Triplets().check(data, {"length": 20, "vocabulary": len(TOKENIZER)})
    with pytest.raises(InputError, match="sample 0 has 3 texts; expected 2"):
        ScoredPairs().check(data, {})
    for limits in ({"length": 3, "vocabulary": 99}, {"length": 20, "vocabulary": 4}):
        with pytest.raises(
            InputError, match=r"sample 0 has a text of .* tokens with numbers up to .*; the model takes"
        ):
            Triplets().check(data, limits)
