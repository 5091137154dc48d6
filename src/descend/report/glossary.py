"""The words of a page that a stranger does not know, each with its meaning. A page lists those that it shows."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from descend.results import ENOUGH_GROUPS

_OF_PICTURES = (
    "RMSE",
    "Root mean square error: the distance of a picture from the clean one, on the scale 0–255 of its grey values.",
    r"\bRMSE\b",
)

_TERMS = (
    (
        "Layer <i>l</i>, <i>L</i>",
        "Layer <i>l</i> is the network’s answer if it is read after block <i>l</i>. Layer 0 is what the first block"
        " gets, read the same way: the head is made for later layers, so its error there may lie above that of the"
        " input itself, and even fall as the noise grows. <i>L</i> is the number of layers.",
        r"\b[Ll]ayers?\b",
    ),
    ("Full depth", "All layers are used.", r"\b[Ff]ull depth\b"),
    ("Exit", "An answer that is taken from an inner layer, without computing the others.", r"\b[Ee]xits?\b"),
    (
        "ERM, plain training",
        "Empirical risk minimization: training lowers the loss of the last layer alone.",
        r"\bERM\b|\b[Pp]lain training\b",
    ),
    (
        "Constrained training",
        "Training lowers the loss of the last layer under constraints: each layer has to lower the expected loss, too.",
        r"\b[Cc]onstrained\b",
    ),
    (
        "Preset paper, Descend’s default",
        "Two kinds of constraints: by our reading of the paper’s settings (<code>--preset paper</code>), with"
        " guesses where they are lost, and without any constraint setting.",
        r"\b[Pp]reset paper\b|\bDescend(’|'|&#39;)s default\b",
    ),
    (
        "Uniform, linear weights",
        "The sum of all layers’ losses is trained, with equal or growing weights.",
        r"\b(Uniform|Linear) weights\b",
    ),
    ("R-Drop", "A baseline: two passes with different dropout have to agree.", r"\bR-Drop\b"),
    ("NEFTune", "A baseline: uniform noise on the embeddings during training.", r"\bNEFTune\b"),
    ("LayerSkip", "A baseline: layers are dropped in training, and inner layers trained as exits.", r"\bLayerSkip\b"),
    (
        "<i>f<sub>l</sub></i>, loss",
        "How wrong the answer of layer <i>l</i> is, as training measures it, on average over samples.",
        r"f<sub>l|\bf_l\b|\b[Ll]oss(es)?\b",
    ),
    (
        "RMSE",
        "Root mean square error: the typical distance of a prediction from its target, in the target’s own unit.",
        r"\bRMSE\b",
    ),
    ("Accuracy", "The share of answers that are right.", r"\b[Aa]ccuracy\b"),
    ("Exact match", "The share of samples whose whole answer is right.", r"\b[Ee]xact match\b"),
    (
        "γ, noise level",
        "How strong the noise is: its standard deviation, in standard deviations of the clean data. With"
        " <code>--noise-is variance</code>, the noise’s variance over that standard deviation.",
        r"γ",
    ),
    ("Training noise", "The noise level in training, at which the verdict is taken.", r"\b[Tt]raining noise\b"),
    ("α", "The share by which a layer has to lower the loss of the layer before.", r"α"),
    (
        "Strength",
        "How much of the descent the early layers have to do, from 0 to 1, where no α is given.",
        r"\bstrength\b",
    ),
    ("Had to reach", "The loss that a layer under a constraint may have at most.", r"\b[Hh]ad to reach\b"),
    (
        "Violation",
        "The loss of a layer less what it had to reach. Above 0, the constraint is broken.",
        r"\b[Vv]iolations?\b",
    ),
    (
        "λ, multiplier",
        "The price of a constraint in training. It grows while the constraint is broken.",
        r"λ|\b[Mm]ultipliers?\b",
    ),
    ("Slack", "By how much a constraint was relaxed, at a cost.", r"\b[Ss]lack\b"),
    (
        "Cap",
        "A bound on the loss of the layer where the chain of constraints starts, or of another layer that was chosen.",
        r"\b[Cc]ap\b",
    ),
    (
        "Binding",
        "A constraint whose multiplier λ was above 0 at the last step of training. λ moves at every step: that of"
        " another may have been above 0 before.",
        r"\b[Bb]ind(s|ing)?\b",
    ),
    (
        "Threshold, patience",
        "Rules for exits: an answer leaves at the first layer that is at least this sure (threshold), or that agrees"
        " with so many layers before it (patience).",
        r"\b([Tt]hreshold|[Pp]atience)\b",
    ),
    (
        "Feasible, infeasible, open",
        "Feasible: no constraint is broken on the evaluated data. “As far as the data can tell”: some confidence"
        " interval reaches above 0, so more data could show otherwise. Infeasible: at least one constraint is broken:"
        " its interval lies above 0, which proves it, or it is missed by more than 1\u00a0% of its bound."
        f" Open: the samples are of fewer than {ENOUGH_GROUPS} groups, such as clips or texts, which prove nothing.",
        r"\b([Ff]easible|[Ii]nfeasible|INFEASIBLE|Open:)",
    ),
    (
        "Certified, not enough, open",
        "Certified: so few layers suffice, with 95\u00a0% confidence. Not enough: they do not. Open: neither is known.",
        r"(layers (do not |may )?suffice|embedding alone)\b",
    ),
    ("Confidence interval", "Where the true value lies in 95 of 100 such evaluations.", r"\binterval"),
    (
        "Descending layers",
        "How often a layer lowers a sample’s loss, over all layers and samples.",
        r"\b[Dd]escending layers\b",
    ),
    (
        "Linear probe",
        "A linear readout fitted to a layer after training, to see what the layer knows.",
        r"\b[Ll]inear probe",
    ),
    (
        "Area over depth",
        "The mean of the metric over all depths: one number for quality at every exit.",
        r"\b[Aa]rea over depth\b",
    ),
    (
        "Seed",
        "The start of the random numbers. Runs that differ in their seeds alone count as one method.",
        r"\b[Ss]eeds?\b",
    ),
    ("UT", "Unrolled transformer: each of its layers is a step of descent on an energy.", r"\bUT\b"),
    (
        "DUST",
        "Deep unfolded sequential transformer: its layers are steps that find sparse codes of a video’s patches.",
        r"\bDUST\b",
    ),
    ("ViT", "Vision transformer: it reads a picture as a row of patches.", r"\bViT\b"),
)


def terms(page: str, data: Sequence[Any], *, pictures: bool) -> list[tuple[Markup, Markup]]:
    """The terms that a page shows, each with its meaning.

    Args:
        page: The page's HTML.
        data: The page's sections, with the plots that its script draws.
        pictures: Whether predictions are pictures, so that an RMSE is one of grey values.
    """
    words = html.unescape(re.sub(r"<(?!sub)[^>]*>", " ", page))
    words += " ".join(text for section in data for plot in section.get("plots", {}).values() for text in _texts(plot))
    # A model is called UT-7.
    known = [_OF_PICTURES if pictures and term[0] == _OF_PICTURES[0] else term for term in _TERMS]
    return [(Markup(name), Markup(meaning)) for name, meaning, pattern in known if re.search(pattern, words)]


def _texts(plot: Mapping[str, Any]) -> list[str]:
    """What a reader sees in a plot: the titles of its axes, and its legend."""
    layout, traces = plot.get("layout", {}), plot.get("data", ())
    axes = [layout.get(axis, {}).get("title", {}).get("text", "") for axis in ("xaxis", "yaxis")]
    return [*axes, *(str(trace.get("name", "")) for trace in traces if trace.get("showlegend", True))]
