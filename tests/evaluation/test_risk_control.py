"""Certified exits: the bound holds over the draw of the validation data, where the law of the data is known."""

import math

import pytest
import torch
from scipy.stats import binomtest

from descend import DescentClassifier, Run
from descend.cli import main
from descend.evaluation.layers import LayerLosses
from descend.evaluation.risk_control import SEQUENCE, GroupTest, answers_lost, certify, on_test_data
from descend.report.words import exits_words, guarantee_words
from descend.results import CERTIFIED_FILE, CertifiedExit, read_summary
from descend.run import EarlyExits
from tests.support import runs
from tests.support.cases import slow_but
from tests.support.documented import ROOT, commands, python_blocks, words_of

SPREAD = (1.0, 0.8)
"""How often an answer is lost at a confidence of 0, at layers 1 and 2; it falls linearly to 0 at a confidence of 1."""


def drawn(count, generator):
    """Samples of three layers: confidences are uniform, and an exit loses an answer with SPREAD · (1 − confidence)."""
    confidences = torch.rand(count, 4, generator=generator, dtype=torch.float64)
    lost = torch.rand(count, 2, generator=generator, dtype=torch.float64) < torch.tensor(SPREAD) * (
        1 - confidences[:, 1:3]
    )
    scores = torch.ones(count, 4, dtype=torch.float64)
    scores[:, 1:3] -= lost.double()
    return LayerLosses(
        losses=torch.zeros(count, 4),
        groups=torch.arange(count),
        metrics=scores.mean(0).tolist(),
        scores=scores,
        decisions=torch.zeros(count, 4, dtype=torch.int64),
        confidences=confidences,
    )


def population_risk(threshold):
    """The law's own: ∫ SPREAD₁ (1 − c) over c ≥ t, and where layer 1 is not left, the same of layer 2."""
    return (SPREAD[0] + threshold * SPREAD[1]) * (1 - threshold) ** 2 / 2


@pytest.mark.slow
def test_over_500_draws_the_risk_is_exceeded_in_at_most_one_minus_confidence():
    generator = torch.Generator().manual_seed(0)
    chosen = [certify(drawn(1000, generator), 0.02, 0.9, noise=0.0).threshold for _ in range(500)]
    exceeded = sum(each is not None and population_risk(each) > 0.02 for each in chosen)
    assert exceeded <= (1 - 0.9) * 500
    assert exceeded > 0 and None not in chosen  # the test is not idle: the thresholds reach up to the bound
    many = drawn(200_000, generator)
    for threshold in (0.3, 0.7, 0.9):
        assert answers_lost(many, threshold).double().mean() == pytest.approx(population_risk(threshold), rel=0.05)


def test_the_bound_is_the_exact_binomial_test_in_a_fixed_order():
    measured = drawn(800, torch.Generator().manual_seed(3))
    guarantee = certify(measured, 0.03, 0.9, noise=0.5)
    passed = []
    for threshold in SEQUENCE:
        lost = int(answers_lost(measured, threshold).sum())
        if binomtest(lost, 800, 0.03, alternative="less").pvalue > 0.1:
            break
        passed.append((threshold, lost))
    assert (guarantee.threshold, guarantee.losses) == passed[-1] and guarantee.validation == 800
    assert (guarantee.risk, guarantee.confidence, guarantee.noise) == (0.03, 0.9, 0.5)
    assert list(SEQUENCE) == sorted(set(SEQUENCE), reverse=True)
    again = on_test_data(guarantee, measured)
    assert again.test == 800 and again.test_risk == guarantee.losses / 800


# --- groups of samples

RISK, DELTA = 0.2, 0.1


def in_groups(sizes, risks, generator, correlation=0.9):
    """Samples of which every exit loses answers by a law of its own: its risk may rise and fall with the threshold.

    All samples leave at the k-th last exit at the k-th threshold of `thresholds`. There a sample of group g loses its
    answer with the probability risks[k, g], correlated within the group and with no other exit.
    """
    exits, groups = len(risks), torch.arange(len(sizes)).repeat_interleave(sizes)
    group = torch.rand(exits, len(sizes), generator=generator) < risks
    own = torch.rand(exits, len(groups), generator=generator) < risks[:, groups]
    copies = torch.rand(exits, len(groups), generator=generator) < correlation**0.5
    scores = torch.ones(len(groups), exits + 2, dtype=torch.float64)
    scores[:, 1:-1] -= torch.where(copies, group[:, groups], own).flip(0).T.double()
    rising = torch.tensor([0.0, *reversed(thresholds(exits)), 1.0]).expand(len(groups), -1)
    return LayerLosses(
        losses=torch.zeros(len(groups), exits + 2),
        groups=groups,
        metrics=[],
        scores=scores,
        decisions=torch.zeros(len(groups), exits + 2, dtype=torch.int64),
        confidences=rising,
    )


def thresholds(exits):
    return [0.9 - 0.1 * place for place in range(exits)]


SIZES = {
    "single samples": torch.full((60,), 1),
    "ten a group": torch.full((60,), 10),
    "thirty a group": torch.full((60,), 30),
    "from one to ten a group": torch.arange(60) % 10 + 1,
}


@pytest.mark.parametrize("kind", slow_but(["ten a group"], SIZES))
def test_a_risk_is_certified_wrongly_as_rarely_as_promised_for_correlated_samples(kind, monkeypatch):
    """The first threshold is safe; the risk of the next three is the bound itself, of the fifth far below it again.

    A group loses answers in proportion to its size.
    """
    sizes, draws = SIZES[kind], 1000
    shape = sizes.double() * sizes.sum() / (sizes * sizes).sum()  # of mean 1 over samples
    risks = RISK * torch.tensor([0.1, 1.0, 1.0, 1.0, 0.1])[:, None] * shape
    monkeypatch.setattr("descend.evaluation.risk_control.SEQUENCE", tuple(thresholds(5)))
    generator = torch.Generator().manual_seed(0)
    chosen = [certify(in_groups(sizes, risks, generator), RISK, 1 - DELTA, noise=0.0).threshold for _ in range(draws)]
    wrong = sum(each not in (None, thresholds(5)[0]) for each in chosen)
    assert wrong <= draws * DELTA + 3 * math.sqrt(draws * DELTA * (1 - DELTA))
    assert chosen.count(None) < draws / 10  # the test is not idle


@pytest.mark.parametrize(("more", "passes"), [(0, True), (1, False)])
def test_the_test_of_groups_is_the_product_by_hand(more, passes):
    """Fourteen groups at a risk of 0.2: b solves 14 kl(q, 0.2) = ln 10, and E is Π (1 + b / 0.8 · (0.2 n − S) / N)."""
    test = GroupTest(torch.full((14,), 4.0), 0.2, 0.9)
    share = 0.2 * (1 - test.bet)
    kl = share * math.log(share / 0.2) + (1 - share) * math.log((1 - share) / 0.8)
    assert 14 * kl == pytest.approx(math.log(10)) and test.needed == 11
    lost = torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    lost[2] = 4 * more  # a whole group
    factors = [1 + test.bet / 0.8 * (0.2 * 4 - each) / 4 for each in lost.tolist()]
    assert test.rejects(lost) == (math.prod(factors) >= 10) == passes


@pytest.mark.parametrize("sizes", [[3] * 10, [3] * 11, [1, 2, 5] * 8, [1, 2, 5] * 5, [9] + [1] * 60])
def test_groups_without_a_lost_answer_are_certified_if_and_only_if_there_are_enough(sizes):
    test = GroupTest(torch.tensor(sizes, dtype=torch.float64), 0.2, 0.9)
    assert test.rejects(torch.zeros(len(sizes))) == (len(sizes) >= test.needed)


def perfect(count, **changes):
    """Samples that lose no answer at any exit."""
    known = vars(drawn(count, torch.Generator().manual_seed(0))) | {"scores": torch.ones(count, 4).double()}
    return LayerLosses(**known | changes)


def test_an_answer_that_only_the_exit_has_right_makes_up_for_none():
    scores = torch.tensor([[0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 0, 0]]).double()
    samples = perfect(4, scores=scores, decisions=torch.zeros(4, 3, dtype=torch.int64), confidences=torch.ones(4, 3))
    assert answers_lost(samples, 0.9).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("risk", "confidence", "needed"), [(0.01, 0.95, 299), (0.05, 0.95, 59), (0.1, 0.9, 22)])
@pytest.mark.parametrize("each", [1, 30])
def test_too_few_groups_mean_full_depth_and_say_how_many_are_needed(risk, confidence, needed, each):
    alike = [perfect(count * each, groups=torch.arange(count * each) // each) for count in (needed - 1, needed)]
    few, enough = (certify(samples, risk, confidence, noise=0.0) for samples in alike)
    assert few.needed == enough.needed == needed and (few.groups, enough.groups) == (needed - 1, needed)
    assert few.threshold is None and enough.threshold == SEQUENCE[-1]
    there = f"{each * (needed - 1)} validation samples in {needed - 1} independent groups"
    assert f"on {there}: this takes at least {needed} groups." in guarantee_words(few)
    assert f"With {100 * confidence:g} % confidence at most {100 * risk:g} % of samples" in guarantee_words(enough)
    assert on_test_data(few, drawn(10, torch.Generator())).test_risk == 0


def test_where_the_safest_threshold_loses_answers_all_go_to_full_depth():
    scores = torch.ones(500, 4).double().index_fill_(1, torch.tensor([1]), 0.0)
    guarantee = certify(perfect(500, scores=scores, confidences=torch.ones(500, 4)), 0.01, 0.95, noise=0.0)
    assert guarantee.threshold is None and "higher risk" in guarantee_words(guarantee)


# --- a run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = "--data generated --depth 3 --hidden-size 16 --max-length 24 --num-train-epochs 1 --method erm"
    return runs.trained(tmp_path_factory.mktemp("runs") / "run", "text-distilbert", settings)


@pytest.mark.slow
def test_evaluate_with_a_risk_saves_what_the_classifier_then_uses(trained):
    run, given = Run.read(trained), {"noise": [0.0], "most": 20}
    summary = run.evaluate([EarlyExits(0.2, 0.9)], **given)
    guarantee, texts = summary.exit.guarantee, ["A good film.", "A bad film, and a long one too."]
    assert read_summary(trained).exit.guarantee == guarantee and guarantee.test == 20 and guarantee.noise == 0
    assert guarantee.threshold == summary.exit.chosen.threshold is not None
    exiting = DescentClassifier.from_pretrained(trained)
    assert exiting.exit == CertifiedExit(threshold=guarantee.threshold, risk=0.2, confidence=0.9, noise=0.0)
    assert exiting.predict(texts) == exiting.predict(texts, exit_threshold=guarantee.threshold)
    assert {each.layer for each in exiting.predict(texts, layer=3)} == {3}  # told otherwise
    # A risk that these few samples can't certify takes the threshold back.
    found = run.evaluate([EarlyExits(0.001)], **given).exit
    assert (found.chosen.threshold, found.chosen.layers, found.chosen.time_ratio) == (None, 3, 1)
    assert found.full == found.chosen.value and "at least 2995 groups" in exits_words(found, "accuracy")
    exiting = DescentClassifier.from_pretrained(trained)
    assert exiting.exit.threshold is None and {each.layer for each in exiting.predict(texts)} == {3}
    # Without a risk the saved threshold and the summary's older keys stay as they are.
    before = (trained / "model" / CERTIFIED_FILE).read_text()
    assert "guarantee" not in run.evaluate([EarlyExits()], **given).content()["exit"]
    assert (trained / "model" / CERTIFIED_FILE).read_text() == before


@pytest.mark.slow
def test_the_page_on_exits_does_what_it_says(trained):
    page = ROOT / "docs" / "guides" / "exits.md"
    words = [word.replace("runs/imdb", str(trained)) for word in words_of(commands(page)[0])]
    assert main([*words, "--noise", "0", "--most", "9"]) == 0
    guarantee = read_summary(trained).exit.guarantee
    assert (guarantee.risk, guarantee.confidence) == (0.05, 0.95)
    values = {}
    for block in python_blocks(page):
        exec(block.replace("runs/imdb", str(trained)).replace('"saved"', repr(str(trained / "model"))), values)
    assert values["classifier"].exit.risk == 0.05 and values["whole"].exit is None
    assert [each.layer for each in values["whole"].predict(["a film"])] == [3]
    assert [each.layer for each in values["answers"]] == [2]
