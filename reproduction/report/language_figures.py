"""The figures on a language model: 6 (layers and noise) and 16 (answers under noise)."""

from reproduction.report.cells import arm_name
from reproduction.report.chart import Chart, Panel, arm_style
from reproduction.report.estimates import over_seeds
from reproduction.report.evidence.answers import GRAM, repeated
from reproduction.report.parts import BANDS, SEEDS, banded, layer_panel, noise_panel
from reproduction.report.results import FORMS, Results
from reproduction.report.selections import answered


def figure_6(results: Results) -> Chart:
    """Loss along the layers and token accuracy against noise, of a fine-tuned language model."""
    panels = []
    for setting in results.where(task="language", paired=True):
        panels.append(layer_panel(setting.arms, f"Loss, {setting.words}", setting.gamma))
        panels.append(noise_panel(setting.arms, setting.metric, setting.gamma))
    missing = "" if panels else "Not run: a language model with ERM and constrained."
    title = "A language model: along the layers, and against noise"
    return Chart("figure-6", title, f"{SEEDS} {BANDS}", panels, 2, missing)


def figure_16(results: Results) -> Chart:
    """How much answers repeat themselves as the noise grows."""
    words = (
        f"The share of {GRAM} words in a row that occurred before in the answer; 0 without repetition. Bands: 95 % "
        "intervals over prompts."
    )
    panels, both = [], False
    for setting, answers in answered(results):
        series = []
        for arm, given in answers.items():
            levels = repeated(given)
            ends = [over_seeds(list(levels[level].values()), "over prompts") for level in sorted(levels)]
            series.append(banded(arm_name(arm), arm_style(arm), sorted(levels), ends))
        both = both or ("erm" in answers and not answers.keys().isdisjoint(FORMS))
        panels.append(Panel(setting.words, "noise γ on every token", "share repeated", series))
    missing = "" if both else "Not run: answers of ERM and constrained to the same prompts."
    return Chart("figure-16", "How much answers repeat themselves", words, panels, 1, missing)
