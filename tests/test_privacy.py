"""ε of Gaussian noise: published values, closed forms, the equation at 60 digits, an attack, and the command."""

import json
import math
import re

import mpmath
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, DistilBertConfig

from descend import GaussianNoise, InputError
from descend.privacy import epsilon, guarantee, page
from tests.support.cases import slow
from tests.support.runs import refused, said


def solved(ratio: float, delta: float) -> float:
    """ε by bisection of Balle and Wang's Theorem 8 at 60 digits, Δ/s the ratio."""
    with mpmath.workdps(60):
        mu, bound = mpmath.mpf(ratio), mpmath.mpf(delta)

        def at(eps: mpmath.mpf) -> mpmath.mpf:
            return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        if at(low) <= bound:
            return 0.0
        while at(high) > bound:
            high *= 2
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle) > bound else (low, middle)
        return float(high)


# --- the number


@pytest.mark.parametrize(
    ("std", "sensitivity", "delta", "expected"),
    [
        (3.730632, 1, 1e-5, 1),  # the analytic calibration of ε = 1, δ = 1e-5, against 4.84 of the classic one
        (1, 1, 0.12693674, 1),  # dp_accounting's own tests: δ(1) at Δ/s = 1
        (1, 2 * math.sqrt(768), 1e-5, 1771.42),
        (20, 2 * math.sqrt(768), 1e-5, 15.0568),
        (200, 2 * math.sqrt(768), 1e-5, 1.03726),
        # Nothing is a warning or an error at the ends of floats.
        (1e300, 1e-300, 1e-5, 0),
        (1, 1e-17, 1e-5, 0),
        (1e-300, 1e300, 1e-5, math.inf),
        (0, 1, 1e-5, math.inf),
    ],
)
def test_published_values_and_limits(std, sensitivity, delta, expected):
    assert epsilon(std, sensitivity, delta) == pytest.approx(expected, rel=5e-6)


@pytest.mark.parametrize("ratio", [1e-3, 0.05, 2.77, 627, 1e7, 1.001e7, 1e10, 1e12])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-5, 0.5, 0.9])
def test_the_equation_at_60_digits(ratio, delta):
    """Beyond the library it is a bound, and for δ up to a half a tight one."""
    exact, found = solved(ratio, delta), epsilon(1, ratio, delta)
    if ratio > 1e7:
        assert exact <= found <= exact * (1 + 1e-6) or delta > 0.5
    else:
        assert found == pytest.approx(exact, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("tokens", [1, 4])
def test_the_best_attack_on_our_noise_gains_what_epsilon_says(tokens):
    """P(S) − e^ε Q(S) over noise as descend draws it, S the outcomes whose log odds are above ε: it must be δ."""
    sigma, level, dimension, delta, draws = 0.5, 6.0, 9, 0.1, 200_000
    clip = sigma * math.sqrt(dimension)
    found = guarantee(level, delta, clip, tokens=tokens, sigma=sigma)
    eps = found.text
    assert eps > 0.1
    noise = GaussianNoise(level, sigma, seed=1)
    # Two texts as far apart as the clip allows: every token at C, and at −C.
    one = torch.full((tokens, dimension), sigma)
    assert one.norm(dim=-1) == pytest.approx(clip)

    def share(text: torch.Tensor) -> float:
        seen = noise(text.expand(draws, -1, -1))
        odds = ((seen + one).square().sum((1, 2)) - (seen - one).square().sum((1, 2))) / (2 * found.std**2)
        return (odds > eps).double().mean().item()

    error = (1 + math.exp(eps)) / math.sqrt(draws)
    assert share(one) - math.exp(eps) * share(-one) == pytest.approx(delta, abs=2 * error)


@pytest.mark.parametrize("delta", [slow(1e-6), 1e-3])
def test_no_printed_epsilon_is_below_the_true_one(delta):
    """Against 60 digits: never smaller, and larger by a unit of the third digit at most."""
    levels = [0.01 * 1.7**power for power in range(26)]
    rows = page(levels, delta, clip=1.0, dimension=1, tokens=1).splitlines()[1:27]
    for level, line in zip(levels, rows, strict=True):
        exact, shown = solved(2 / level, delta), float(line.split()[2].replace(",", ""))
        assert exact <= shown <= exact * 1.0101 + 1e-9, line


@pytest.mark.parametrize("delta", [4.7525587087355555e-06, 0.012161858972376809])
def test_an_epsilon_that_is_hardly_above_0_is_not_printed_as_0(delta):
    ratio = float(2 * math.sqrt(2) * mpmath.erfinv(delta)) * (1 + 1e-13)
    shown = float(page([1], delta, clip=ratio / 2, dimension=1, tokens=1).splitlines()[1].split()[2])
    assert 0 < solved(ratio, delta) <= shown < 1e-11


# --- a text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon(-1, 1, 0.1), r"standard deviation.*-1"),
        (lambda: epsilon(math.nan, 1, 0.1), "standard deviation"),
        (lambda: epsilon(math.inf, 1, 0.1), "standard deviation"),
        (lambda: epsilon(1, 0, 0.1), r"sensitivity.*got 0"),
        (lambda: epsilon(1, -2, 0.1), "sensitivity"),
        (lambda: epsilon(1, math.inf, 0.1), "sensitivity"),
        (lambda: epsilon(1, math.nan, 0.1), "sensitivity"),
        (lambda: epsilon(1, 1, 0), r"delta.*got 0"),
        (lambda: epsilon(1, 1, 1), "delta"),
        (lambda: epsilon(0, 1, 1), "delta"),
        (lambda: epsilon(1, 1, math.nan), "delta"),
        (lambda: page([1], 2), "delta"),
        (lambda: page([1], 0.1, clip=0), r"clip.*got 0"),
        (lambda: page([1], 0.1, tokens=0), r"tokens.*got 0"),
        (lambda: page([1], 0.1, clip=1, sigma=-1), r"sigma.*-1"),
        (lambda: page([-1], 0.1), "standard deviation"),
        (lambda: page([1], 0.1, dimension=0), "dimension"),
        (lambda: page([1], 0.1, sigma=math.nan), r"sigma.*nan"),
    ],
)
def test_numbers_out_of_their_range(call, message):
    with pytest.raises(InputError, match=message):
        call()


# --- the command


@pytest.fixture
def told(capsys):
    """What the command prints on stdout."""
    return lambda *argv: said(capsys, "privacy", *argv)[0]


def test_the_table_and_what_it_holds(told):
    table, sentences = told("--noise", "0,1,20,200,1000").split("\n\n")
    assert re.split(r" {3,}", table.splitlines()[0].strip()) == ["γ", "std", "ε per token", "ε per text, T = 128"]
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["0", "0", "∞", "∞"],
        ["1", "1", "1,772", "199,282"],
        ["20", "20", "15.1", "625"],
        ["200", "200", "1.04", "17.7"],
        ["1000", "1000", "0.18", "2.57"],
    ]
    assumed, *regimes = sentences.splitlines()
    assert "δ = 1e-05" in assumed and "C = 27.71 (σ_x√768, the default; σ_x = 1)" in assumed
    assert "must be clipped to that norm before the noise, which descend does not do by itself" in assumed
    assert [each.split(":")[0] for each in regimes] == ["γ = 0", "γ = 1, 20", "γ = 200", "γ = 1000"]
    assert [("no privacy to speak of" in each) for each in regimes] == [True, True, True, False]
    assert "private" not in sentences and "22,026 times" in regimes[1]


def row(out: str) -> list[str]:
    """The cells of a table of one level."""
    return out.splitlines()[1].split()


@pytest.mark.parametrize(
    ("argv", "std", "sensitivity", "delta"),
    [
        ("--sigma 3", 60, 6 * math.sqrt(768), 1e-5),
        ("--clip 1 --sigma 0.5", 10, 2, 1e-5),
        ("--dimension 100", 20, 20, 1e-5),
        ("--delta 0.01", 20, 2 * math.sqrt(768), 0.01),
        ("--tokens 1", 20, 2 * math.sqrt(768), 1e-5),
    ],
)
def test_every_setting_is_heard(told, argv, std, sensitivity, delta):
    out = told("--noise", "20", *argv.split())
    cells = [float(cell) for cell in row(out)]
    assert cells[:2] == [20, std] and 0 <= cells[2] / epsilon(std, sensitivity, delta) - 1 <= 1e-2
    assert (cells[3] == cells[2]) == ("--tokens" in argv) and ("C = 1 (as given; σ_x = 0.5)" in out) == (
        "--clip" in argv
    )


# --- a run


CONFIG = {
    "recipe": "text-distilbert",
    "method": "erm",
    "seed": 0,
    "model": "DistilBERT-6",
    "settings": {},
    "training": {},
}


@pytest.fixture
def run(tmp_path):
    """A folder as a run on text leaves it, in what the command reads."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"sigma": 0.05, "settings": {"noise": 20.0}}))
    DistilBertConfig(dim=100).save_pretrained(tmp_path / "model")
    return tmp_path


BY_VARIANCE = {"sigma": 0.08, "settings": {"noise": 200.0, "noise_is": "variance"}}


@pytest.mark.parametrize(
    ("more", "argv", "level", "std", "words"),
    [
        ({}, "", "20", 1, "C = 0.5 (σ_x√100, the default; σ_x = 0.05)"),
        ({}, "--noise 40", "40", 2, "σ_x√100"),  # an option goes before the run's own value
        ({}, "--sigma 2", "20", 40, "σ_x√100"),
        ({}, "--dimension 768", "20", 1, "σ_x√768"),
        ({}, "--clip 0.1", "20", 1, "C = 0.1 (as given; σ_x = 0.05)"),
        (BY_VARIANCE, "", "200", 4, "γσ_x as the noise's variance"),  # √(200 · 0.08)
        (BY_VARIANCE, "--noise 50", "50", 2, "γσ_x as the noise's variance"),
        (BY_VARIANCE, "--sigma 0.02", "200", 2, "γσ_x as the noise's variance"),
        (BY_VARIANCE, "--noise-is std", "200", 16, "γσ_x as the noise's std"),
    ],
)
def test_a_run_gives_its_noise_sigma_and_dimension(told, run, more, argv, level, std, words):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | more))
    out = told(run, *argv.split())
    assert row(out)[0] == level and float(row(out)[1]) == std and words in out


@pytest.mark.parametrize("noise_is", ["std", "variance"])
def test_a_saved_model_gives_its_noise_and_dimension(capsys, told, run, noise_is):
    entry = {"method": "erm", "noise": 20.0, "noise_is": noise_is}
    BertConfig(hidden_size=24, num_attention_heads=2, descend=entry).save_pretrained(run / "saved")
    if noise_is == "variance":
        assert "does not hold σ_x of its embedding. Give --sigma" in refused(capsys, "privacy", run / "saved")
    more = ["--sigma", "1"] if noise_is == "variance" else []
    typed = ["--noise", "20", "--noise-is", noise_is, "--dimension", "24"]
    assert told(run / "saved", *more) == told(*typed)


def test_a_model_with_an_encoder_inside_or_adapters_has_its_dimension_there(capsys, told, run):
    expected = told(run)
    saved = run / "model"
    inside = {"model_type": "descend-embedder", "encoder": DistilBertConfig(dim=100).to_dict()}
    (saved / "config.json").write_text(json.dumps(inside))
    assert told(run) == expected
    DistilBertConfig(dim=100).save_pretrained(run / "base")
    (saved / "config.json").rename(saved / "adapter_config.json")
    for base, words in ((str(run / "base"), None), ("name/on-the-hub", "for 'name/on-the-hub', which is no folder")):
        (saved / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        assert told(run) == expected if words is None else words in refused(capsys, "privacy", run)


VIT = json.dumps({"model_type": "descend-vit", "hidden_size": 128})


@pytest.mark.parametrize(
    ("file", "content", "message", "way_out"),
    [
        *(("config.json", content, "config.json", None) for content in ("[]", "{}", '{"sigma": 1}')),
        *(
            ("config.json", json.dumps(CONFIG | entries), message, None)
            for entries, message in (
                ({"sigma": 1}, "config.json"),
                ({"sigma": 1, "settings": {"noise": 1, "noise_is": "snr"}}, "noise_is must be 'std' or 'variance'"),
                (
                    {"settings": {"noise": 1}, "sigma": None},
                    "is not finished: σ_x of its embedding is known at its end",
                ),
            )
        ),
        # It has a hidden size, but noise on pixels.
        ("model/config.json", VIT, "expected a model with token embeddings", "--dimension 256"),
        ("model/config.json", "[]", "expected a model with token embeddings", "--dimension 256"),
        ("model/config.json", None, "finish the run first, or give --dimension", "--clip 1"),
    ],
)
def test_a_run_that_does_not_say_enough(capsys, told, run, file, content, message, way_out):
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_text(content)
    assert message in refused(capsys, "privacy", run)
    if way_out:
        assert told(run, *way_out.split())


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"shift": "uniform"}, "uniform noise has no finite ε"),
        ({"shift": "laplace"}, "Laplace noise has an ε by another norm"),
        ({"shift": "tokendropout", "noise": 0.2}, "a rate of tokens left out"),
        ({"shift": "mine"}, "its noise is 'mine', for which descend knows none"),
        ({"method": "neftune"}, "NEFTune's noise is uniform"),
    ],
)
def test_a_model_of_other_noise_has_no_epsilon(capsys, told, tmp_path, entries, words):
    trained = {"method": "erm", "noise": 20.0, "shift": "gaussian"}
    for folder, entry in ((tmp_path / "one", trained), (tmp_path / "other", trained | entries)):
        BertConfig(hidden_size=24, num_attention_heads=2, descend=entry).save_pretrained(folder)
    assert told(tmp_path / "one") == told(tmp_path / "other", "--noise", "20")
    assert words in refused(capsys, "privacy", tmp_path / "other")


def test_a_run_of_neftune_has_no_epsilon(capsys, run):
    content = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(content | {"method": "neftune"}))
    assert "NEFTune's noise is uniform" in refused(capsys, "privacy", run)


@pytest.mark.parametrize(
    ("file", "entries", "words"),
    [
        ("model/config.json", {"noise": 200.0}, "γ = 200.0, std, gaussian and γ = 20.0, std, gaussian"),
        ("model/config.json", {"noise": 20.0, "noise_is": "variance"}, "γ = 20.0, variance, gaussian"),
        ("model/config.json", {"noise": 20.0, "shift": "uniform"}, "γ = 20.0, std, uniform and"),
        ("descend.json", {"noise": 200.0}, "γ = 200.0, std, gaussian and"),
    ],
)
def test_records_that_contradict_each_other_give_no_epsilon(capsys, run, file, entries, words):
    """A stranger's edit of one record: none of the two is believed."""
    entry = {"method": "erm"} | entries
    model = json.loads((run / "model" / "config.json").read_text()) | {"descend": entry}
    (run / file).write_text(json.dumps(model if file.startswith("model") else entry))
    assert words in refused(capsys, "privacy", run)


def test_a_dimension_that_the_weights_do_not_have_is_refused(capsys, told, run):
    """BERT knows no embedding_size: one in its configuration would make C, and with it ε, too small."""
    save_file({"embedding": torch.zeros(30522, 100)}, run / "model" / "model.safetensors")
    assert "C = 0.5 (σ_x√100" in told(run)
    config = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps(config | {"embedding_size": 4}))
    assert "names embeddings [30522, 4], and its weights have none" in refused(capsys, "privacy", run)


def test_what_an_epsilon_holds_for_is_printed_on_the_safe_side():
    """With the printed std, C and δ ε is no larger than the printed one."""
    for level in (0.123456789, 3.00004, 17.7777777):
        for clip in (0.33335555, 27.128856):
            out = page([level], 1.23456789e-5, clip=clip, dimension=7, tokens=1)
            std, shown = (float(each.replace(",", "")) for each in row(out)[1:3])
            norm, delta = (float(re.search(rf"{name} = ([\d.e-]+)", out)[1]) for name in ("C", "δ"))
            assert std >= level and norm <= clip and delta == 1.23456789e-5
            assert solved(2 * norm / std, delta) <= shown and out.count(str(level)) == 2


@pytest.mark.parametrize(
    ("entries", "dimension"),
    [({"embedding_size": 24, "hidden_size": 96}, 24), ({"n_embd": 24}, 24), ({"d_model": 24}, 24), ({"dim": 24}, 24)],
)
def test_the_dimension_is_that_of_the_embedding(told, tmp_path, entries, dimension):
    """In ALBERT the noise lies on embedding_size, and hidden_size is larger."""
    content = {"vocab_size": 100, "descend": {"method": "erm", "noise": 20.0}} | entries
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert told(tmp_path) == told("--noise", "20", "--dimension", str(dimension))
