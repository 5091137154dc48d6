"""The paper's claims as rows: what it says, its number, ours, and whether ours repeats it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from reproduction.figures import (
    LANGUAGE_MODELS,
    TEXT_MODELS,
    VIDEO_MODELS,
    NotRunError,
    classifier,
    name_of,
    out_of_reach,
    plain_of,
    seeds_of,
    some,
    strongest,
    varied,
)
from reproduction.table import SETTING, Gain, Table, at_levels, beyond, gain, up_to
from reproduction.tables import NAMES

Verdict = str
"""``repeats``, ``does not``, or ``undecided``: the interval covers both, or seeds are too few for one."""

Judgement = tuple[str, Verdict]
"""Ours in words, and the verdict."""

COST = 2.0
"""Per cent of the number that count as no loss, where the paper says "slight to no degradation"."""

FEW = 0.05
"""The share of runs that are few."""

GRAM = 3
"""Words in a row that count as a repetition in an answer."""


def gains(table: Table, wanted: Callable[[float, float], bool], **values: object) -> dict[str, Gain]:
    """Setting and form → the gain of the paper's form over plain training of its first pair, at some noise levels."""
    by_setting = {}
    for (*setting, form), ours in table.where(arm="paper", **values).groupby([*SETTING, "form"], sort=False):
        place = dict(zip(SETTING, setting, strict=True))
        plain = table.where(arm="erm", form=plain_of(setting[0], form), **place)
        if len(plain):
            by_setting[f"{name_of(setting)} {form}".strip()] = gain(at_levels(ours, wanted), at_levels(plain, wanted))
    if not by_setting:
        raise NotRunError("it needs cells of the paper's form and of plain training")
    return by_setting


def most(by_setting: dict[str, Gain]) -> Judgement:
    """Most settings with several seeds are surely better; refuted if half of them are surely worse."""
    ahead = [each for each in by_setting.values() if each.value > 0]
    sure = {verdict: sum(each.verdict == verdict for each in by_setting.values()) for verdict in ("better", "worse")}
    words = f"better in {len(ahead)} of {len(by_setting)}, surely in {sure['better']}, surely worse in {sure['worse']}"
    words += _of_one_seed(by_setting)
    several = sum(each.seeds > 1 for each in by_setting.values())
    if 2 * sure["better"] > several:
        return words, "repeats"
    return words, "does not" if several and 2 * sure["worse"] >= several else "undecided"


def all_of(by_setting: dict[str, Gain], bound: float = 0.0) -> Judgement:
    """Every gain above a bound, by its interval; refuted by one whose interval lies below it."""
    refuting = [name for name, each in by_setting.items() if each.surely_below(bound)]
    name = min(refuting or by_setting, key=lambda key: by_setting[key].value)
    words = f"{len(by_setting)} settings; least{' sure' * bool(refuting)}: {name}: {by_setting[name]}"
    words += _of_one_seed(by_setting)
    if all(each.surely_above(bound) for each in by_setting.values()):
        return words, "repeats"
    return words, "does not" if refuting else "undecided"


def _of_one_seed(by_setting: dict[str, Gain]) -> str:
    alone = sum(each.seeds < 2 for each in by_setting.values())
    return f"; {alone} of them with one seed, which is never sure" if alone else ""


def falling(runs: pd.DataFrame, plain: pd.DataFrame) -> Judgement:
    """The loss falls at every layer in every run of the paper's form."""
    runs = some(runs, "the paper's form")
    words = f"{runs.falls.sum()} of {len(runs)} runs; plain training {plain.falls.sum()} of {len(plain)}"
    return words, "repeats" if runs.falls.all() else "does not"


def holding(table: Table) -> Judgement:
    """The paper's form holds in most of its runs of UT and DUST."""
    runs = table.where(arm="paper", model=["UT", "DUST"])
    if runs.empty:
        raise NotRunError("it needs UT or DUST with the paper's form")
    share = runs.holds.mean()
    words = f"{runs.holds.sum()} of {len(runs)} runs hold ({100 * share:.0f} %), {runs.falls.sum()} fall at every layer"
    return words, "repeats" if share >= 0.6 and runs.falls.mean() >= 0.8 else "does not"


def deeper(table: Table) -> Judgement:
    """A deeper model of the paper's form has a lower error under strong noise, over the seeds that both depths have."""
    rows = strongest(some(table.where(arm="paper", model=["UT", "DUST"]), "UT or DUST"))
    changes = [
        gain(after, before)
        for _, runs in at_levels(rows, beyond).groupby(["model", "data", "form"])
        for (_, before), (_, after) in pairwise(runs.groupby("depth"))
    ]
    if not changes:
        raise NotRunError("it needs UT or DUST at two depths")
    alone = sum(each.seeds < 2 for each in changes)
    words = f"lower at the next depth in {sum(each.value > 0 for each in changes)} of {len(changes)} pairs"
    words += f" ({alone} of one seed)" if alone else ""
    sure = {each.verdict for each in changes}
    return words, "does not" if "worse" in sure else "repeats" if sure == {"better"} else "undecided"


def more_alpha(table: Table) -> Judgement:
    """A larger α is more robust to the strongest noise."""
    rows = varied(table, "alpha", strongest(classifier(table)))
    most = rows.groupby("setting")["values"].apply(lambda runs: np.mean([values[-1] for values in runs]))
    ends = [f"α = {alpha:g}: {most[alpha]:.3f}" for alpha in (most.index[0], most.index[-1])]
    return f"{', '.join(ends)} ({seeds_of(rows)})", "undecided"


def little_of_rate(table: Table) -> Judgement:
    """The dual rate changes little."""
    rows = varied(table, "dual_lr", strongest(classifier(table)))
    means = [np.mean(list(runs["values"]), 0) for _, runs in rows.groupby("setting")]
    spread = 100 * float(np.ptp(means, axis=0).max())
    return f"at most {spread:.1f} points between rates ({seeds_of(rows)})", "undecided"


def infeasible(table: Table) -> Judgement:
    """A run that cannot meet its constraints is worse at every noise level."""
    wild = out_of_reach(table).iloc[0]
    place = {name: wild[name] for name in (*SETTING, "form", "arm", "seed")}
    beside = some(table.where(**place), "the run beside it").iloc[0]
    worse = [ours > theirs for ours, theirs in zip(wild["values"], beside["values"], strict=True)]
    return f"worse at {sum(worse)} of {len(worse)} levels (one seed)", "undecided"


def samples(table: Table) -> Judgement:
    """A layer lowers a single text's loss more often than not."""
    rows = some(table.where(arm="paper", **_place(table)), "an encoder")
    mean, median = (np.mean([ratio[name] for ratio in rows.ratio]) for name in ("mean", "median"))
    share = rows.descending_share.astype(float).mean()
    words = f"{100 * share:.1f} % of steps; mean {mean:.2f}, median {median:.2f}"
    return words, "repeats" if share > 0.5 else "does not"


def repetition(table: Table) -> Judgement:
    """Under noise plain training's answers repeat themselves, the constrained model's less."""
    shares = {}
    for arm in ("erm", "paper"):
        run = some(table.where(arm=arm, model=list(LANGUAGE_MODELS), seed=0), "answers of a language model").iloc[0]
        shares[arm] = 100 * np.mean([_repeated(each["text"]) for each in run.answers if each["noise"] > 0])
    words = f"repeated: {shares['erm']:.0f} % with plain training, {shares['paper']:.0f} % with the paper's (one seed)"
    return words, "undecided"


def _repeated(text: str) -> float:
    words = text.lower().split()
    grams = [tuple(words[place : place + GRAM]) for place in range(len(words) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def diverged(table: Table) -> Judgement:
    """Few runs of video diverge."""
    rows = table.where(model=list(VIDEO_MODELS))
    if rows.empty:
        raise NotRunError("it needs video")
    share = rows.diverged.mean()
    return f"{rows.diverged.sum()} of {len(rows)} runs diverged", "repeats" if share <= FEW else "does not"


def dust_at_every_depth(table: Table) -> Judgement:
    """The loss of the paper's DUST falls at every layer, at every depth."""
    runs = table.where(arm="paper", model="DUST")
    words, verdict = falling(runs, table.where(arm="erm", model="DUST"))
    depths = sorted(set(runs.depth))
    words += f"; L = {', '.join(map(str, depths))}"
    return words, verdict if verdict == "does not" or len(depths) > 1 else "undecided"


def _place(table: Table) -> dict[str, object]:
    """The encoder of Figure 1, its data and largest training noise."""
    row = strongest(classifier(table)).iloc[0]
    return {name: row[name] for name in ("model", "data", "gamma")}


def _ucsd(table: Table) -> list[str]:
    return [data for data in set(table.rows.data) if NAMES.get(data, data) == "ucsd"]


Judge = Callable[[Table], Judgement]

CLAIMS: Sequence[tuple[str, str, str, Judge]] = (
    (
        "our target",
        "With α and the cap fixed 60 % of the runs of UT and DUST hold, and 80 % fall at every layer",
        "no count; it advises “verifying that constrained models are feasible” (App. B.4)",
        holding,
    ),
    (
        "Figure 1",
        "Under constraints a pretrained encoder's loss falls along its layers",
        "RoBERTa: yes; plain training: a spike",
        lambda table: falling(*(table.where(arm=arm, **_place(table)) for arm in ("paper", "erm"))),
    ),
    (
        "Figure 1",
        "It is more accurate under noise stronger than in training",
        "RoBERTa: yes",
        lambda table: all_of(gains(table, beyond, **_place(table))),
    ),
    (
        "Figure 2",
        "Video: better under noise stronger than in training, in more settings than not",
        "better in 5 of 9, alike in 3, worse in 1",
        lambda table: most(gains(table, beyond, model=list(VIDEO_MODELS))),
    ),
    (
        "Figure 2",
        "On UCSD better in every setting under stronger noise",
        "3 of 3",
        lambda table: all_of(gains(table, beyond, model=list(VIDEO_MODELS), data=_ucsd(table))),
    ),
    (
        "Figure 2",
        f"Up to the training noise it costs little (here: at most {COST:g} %)",
        "“slight to no degradation”",
        lambda table: all_of(gains(table, up_to, model=list(VIDEO_MODELS)), -COST),
    ),
    ("Figure 3", "Deeper constrained models have a lower error under strong noise", "yes", deeper),
    (
        "Figure 4",
        "Texts: more accurate under noise stronger than in training",
        "DistilBERT and RoBERTa on IMDb: yes; UT: alike",
        lambda table: all_of(gains(table, beyond, model=list(TEXT_MODELS))),
    ),
    ("Figure 5", "A larger α is more robust to strong noise", "65 % → 75 %", more_alpha),
    (
        "Figure 6",
        "A language model is more accurate under noise",
        "yes; win rate 69.93 % at γ = 1.5",
        lambda table: all_of(gains(table, beyond, model=list(LANGUAGE_MODELS))),
    ),
    (
        "Figure 7",
        "Constrained DUST falls at every layer, at every depth",
        "yes; plain training: no",
        dust_at_every_depth,
    ),
    ("Figure 11", "An infeasible run is worse at every noise level", "yes", infeasible),
    (
        "Figure 12",
        "A layer lowers a single text's loss more often than not",
        "70.8 % of steps; mean .87, median .82",
        samples,
    ),
    (
        "Figure 13",
        "Texts: the loss falls at every layer in every setting",
        "yes",
        lambda table: falling(
            table.where(arm="paper", model=list(TEXT_MODELS)), table.where(arm="erm", model=list(TEXT_MODELS))
        ),
    ),
    ("Figure 15", "The dual learning rate changes little", "little", little_of_rate),
    (
        "Figure 16",
        "Under noise plain training's answers repeat, the constrained model's less",
        "one prompt",
        repetition,
    ),
    (
        "Table 3",
        "Video: better over noise in more settings than not",
        "74 of 105",
        lambda table: most(gains(table, lambda *_: True, model=list(VIDEO_MODELS))),
    ),
    (
        "Table 4",
        "Texts: better over noise in more settings than not",
        "57 of 72",
        lambda table: most(gains(table, lambda *_: True, model=list(TEXT_MODELS))),
    ),
    ("Table 3", f"Few runs diverge (here: at most {100 * FEW:g} %)", "6 of 210 did", diverged),
)
"""Where it stands, the claim, the paper's number, and what judges it."""

NOT_REPRODUCED = {
    "RoBERTa, DistilBERT, ViT-B": "their weights were not at hand; MiniLM and DINOv2-S stand for them",
    "UT-5, UT-7 and UT-9 on texts": "no time; UT-3 is the depth whose settings the paper prints",
    "MNLI": "no time: an excerpt of it taught small models nothing in the first study",
    "ViT and DUST on ShanghaiTech, ViT on Avenue": "no time; UT-5 on ShanghaiTech is one panel, of another camera",
    "UT-3 and UT-7 on ShanghaiTech, DUST-7": "no time",
    "γ = 0 to .13 of video, .2 to .8 of texts": "no time; video has a strong and a weak noise, MiniLM 0, .5, 1",
    "Llama 3.1 8B": "128 GB of memory; SmolLM2-135M stands for it",
    "AlpacaEval's win rate": "it needs a judge",
    "the five runs of a Bayesian search": "three or six trials, as many for plain training",
}
"""What of the paper is not run at scale small, and why."""


def claims(table: Table) -> pd.DataFrame:
    """Judge every claim."""
    rows = []
    for where, claim, printed, judge in CLAIMS:
        try:
            ours, verdict = judge(table)
        except NotRunError as error:
            ours, verdict = f"{error}.", "not tested"
        rows.append([where, claim, printed, ours, verdict])
    return pd.DataFrame(rows, columns=["where", "claim", "the paper", "ours", "verdict"])
