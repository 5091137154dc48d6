"""The study of what each method gives: depth and robustness, in the order of worth. Its plan is methods_plan.md."""

from collections.abc import Sequence

from reproduction.cells import EVERY_STEP, LAST, REPLAYS, SEARCH, SEARCH_SEED, Model, Options, Row, Scale

SEARCH_SEEDS = range(1000, 1003)
"""The seeds of the searches of rates, which no other run has."""

STEPS: Options = {"eval_strategy": "no", "save_strategy": "no", "lr_scheduler_type": "linear", "warmup_steps": 0.1} | {
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
    "calibrate": False,
    "logging_steps": 10,
}
"""The same for all arms. The model of the last step is the one that is judged: no evaluation chooses another."""

ENCODER: Options = {"per_device_train_batch_size": 16, "max_length": 64, "pooling": "mean", "exits": "shared"} | {
    "head_lr_ratio": 10.0
}
"""Of encoders under noise. The readout's rate is stated, because the paper's preset and the recipe differ in it."""

VIDEO: Options = {**STEPS, "noise_is": "std", "per_device_train_batch_size": 1, "logging_steps": 50}
"""Of UT and DUST: a window of five frames is a sequence for each of its 100 patch positions."""

DEPTH_ARMS = ("probe", "linear", "linear-.05", "useful-.2", "useful-.8")

LEVELS = (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)
"""Of the test noise γ."""

SEARCHED_ALPHAS = (0.0641, 0.105, 0.173, 0.285, 0.468)
RATES = (0.316, 5.01, 0.02, 1.26, 0.0794)
"""The dual learning rates of the five trials of a search, in the order of their α."""

STRONG, WEAK = {"ped2": 0.9, "avenue": 0.77}, {"ped2": 0.7, "avenue": 0.6}
"""Training noise of video, standard deviations in σ_x, near the paper's .15 and .09 as variances: σ_x is .179 of Ped2,
.253 of Avenue."""

OTHER_GAMMAS = {"ped2": (0.0, 0.78, 0.85), "avenue": (0.0, 0.66, 0.72)}
"""The same near the paper's 0, .11 and .13."""

BOTH = ("erm", "algorithm-1")

MECHANISM = ("linear", "uniform", "useful-.8")

ALPHAS = {f"alpha={value:g}": {"alpha": value} for value in (0.226, 0.4)}
"""Of the mechanism and of Figures 5 and 14; the first is 1 − .774, printed of DistilBERT."""

DUAL_RATES = {f"dual_lr={value:g}": {"dual_lr": value} for value in (0.03, 0.3, 3.0)}
"""Of Figure 15."""

VALIDATION: Options = {"split": "validation"}
"""Of plain training's searches, whose trials no table reports. The paper's protocol reports a trial of constraints."""

LOGGED = {EVERY_STEP: {"logging_steps": 1}}

SLOWER = 0.1
"""The factor from the dual learning rates of texts to video's, whose runs have up to ten times as many steps."""


def rates(*values: float) -> dict[str, list[Options]]:
    """The search of learning rates for depth, the same for every arm."""
    return {arm: [{"learning_rate": value} for value in values] for arm in DEPTH_ARMS}


def square(*alphas: float, scale: float = 1.0) -> list[Options]:
    """Five trials: a Latin square, uniform in log α on [.05, .6] and in log η_λ over three decades.

    Args:
        *alphas: The five values of α.
        scale: Times η_λ, which is in [.01, 10] otherwise.
    """
    return [{"alpha": alpha, "dual_lr": scale * rate} for alpha, rate in zip(alphas, RATES, strict=True)]


def text_trials(*values: float, alphas: Sequence[float] = SEARCHED_ALPHAS) -> dict[str, list[Options]]:
    """The searches of a model of texts: plain training's learning rate, which all arms take, and α with η_λ."""
    return {"erm": [{"learning_rate": value} for value in values], "algorithm-1": square(*alphas)}


def at(rate: float) -> dict[str, Options]:
    """The main grid at a learning rate that is fixed in advance."""
    return {"": {"learning_rate": rate}}


def dust(data: str, gammas: Sequence[float], seeds: Sequence[int] = range(5)) -> list[Row]:
    """The runs of DUST: constrained ones are untied, plain training has the paper's pair, tied, and the same form."""
    place = ("robustness", "DUST", [data], [5], gammas)
    return [
        Row(*place, ["algorithm-1"], seeds, ["untied"]),
        Row(*place, ["erm"], seeds, ["tied"], at(2e-3)),
        Row(*place, ["erm"], seeds, ["untied"], at(4e-3)),
    ]


METHODS = Scale(
    about="what each method gives: layers that suffice, and accuracy or RMSE over noise",
    data={
        "imdb": {"data": "{data}/imdb", "dataset": "imdb", "validation_share": 0.1},
        "mnli": {"data": "{data}/mnli/glue_format", "dataset": "mnli", "validation_share": 0.05},
        "mnist": {"data": "{data}/mnist"},
        "ped2": {"data": "{data}/video/ped2"},
        "avenue": {"data": "{data}/video/Avenue Dataset"},
        "ped1": {"data": "{data}/video/UCSD_Anomaly_Dataset.v1p2/UCSDped1/Test"},
    },
    models={
        "MiniLM-exits": Model(
            "text",
            {**STEPS, "model": "{models}/minilm", "max_steps": 150, "per_device_train_batch_size": 16}
            | {"max_length": 96, "validation_share": 0.2},
            trials=rates(5e-5, 1e-4, 2e-4),
            levels=(0,),
            relative=False,
            evaluate={"most": 1000, "frames": 1},
            by_layers=True,
            seconds=(520, 0),
        ),
        "DINOv2-exits": Model(
            "image",
            {**STEPS, "model": "{models}/dinov2", "image_size": 28, "max_steps": 200}
            | {"per_device_train_batch_size": 32},
            trials=rates(2e-5, 5e-5, 1e-4),
            levels=(0,),
            relative=False,
            evaluate={"frames": 1},
            by_layers=True,
            seconds=(200, 0),
        ),
        "MiniLM": Model(
            "text",
            {**STEPS, **ENCODER, "model": "{models}/minilm", "max_steps": 250},
            paper={"dual_warmup_steps": 0.2},
            trials=text_trials(5e-5, 1e-4, 2e-4),
            levels=LEVELS,
            relative=False,
            evaluate={"most": 1000, "frames": 1},
            each=True,
            reused={"erm": "MiniLM 6 imdb 1 erm"},
            seconds=(1000, 0),
        ),
        "MPNet": Model(
            "text",
            {**STEPS, **ENCODER, "model": "{models}/mpnet", "max_steps": 100, "learning_rate": 3e-5},
            paper={"dual_warmup_steps": 0.2},
            levels=LEVELS,
            relative=False,
            evaluate={"most": 1000, "frames": 1},
            reused={"algorithm-1": "MiniLM 6 imdb 1 algorithm-1"},
            seconds=(6000, 0),
        ),
        "UT-text": Model(
            "text-ut",
            {**STEPS, "model": "{models}/minilm", "max_steps": 450, "per_device_train_batch_size": 16}
            | {"max_length": 64},
            paper={"dual_warmup_steps": 0.2},
            trials=text_trials(1e-3, 3e-3, 1e-2, alphas=(0.1, 0.0641, 0.173, 0.285, 0.468)),
            levels=LEVELS,
            relative=False,
            evaluate={"most": 1000, "frames": 1},
            each=True,
            reused={"erm": "UT-text 3 imdb 1 erm"},
            seconds=(300, 0),
        ),
        "UT": Model(
            "video-ut",
            {**VIDEO, "max_steps": 2500, "learning_rate": 1e-3},
            paper={"dual_warmup_steps": 0.2},
            trials={"algorithm-1": square(*SEARCHED_ALPHAS, scale=SLOWER)},
            levels=LEVELS,
            relative=False,
            evaluate={"most": 80, "frames": 1},
            seconds=(240, 0),
        ),
        "DUST": Model(
            "video-dust",
            {**VIDEO, "max_steps": 1500, "learning_rate": 1e-3, "atoms": 400},
            paper={"dual_warmup_steps": 0.2},
            trials={"algorithm-1": square(*SEARCHED_ALPHAS, scale=SLOWER)},
            levels=LEVELS,
            relative=False,
            evaluate={"most": 80, "frames": 1},
            seconds=(300, 0),
        ),
    },
    rows=[
        Row(SEARCH, "DINOv2-exits", ["mnist"], [12], [0.0], DEPTH_ARMS, SEARCH_SEEDS),
        Row("layers", "DINOv2-exits", ["mnist"], [12], [0.0], DEPTH_ARMS, range(5)),
        Row("layers", "DINOv2-exits", ["mnist"], [12], [0.0], ["probe"], range(5), variants={LAST: {}}),
        Row(SEARCH, "MiniLM-exits", ["imdb"], [6], [0.0], DEPTH_ARMS, SEARCH_SEEDS),
        Row("layers", "MiniLM-exits", ["imdb"], [6], [0.0], DEPTH_ARMS, range(5)),
        Row("layers", "MiniLM-exits", ["imdb"], [6], [0.0], ["probe"], range(5), variants={LAST: {}}),
        Row("layers", "DINOv2-exits", ["mnist"], [12], [0.0], DEPTH_ARMS, range(5, 10)),
        Row("layers", "DINOv2-exits", ["mnist"], [12], [0.0], ["probe"], range(5, 10), variants={LAST: {}}),
        # Primary 1, and what the mechanism rests on.
        Row(SEARCH, "MiniLM", ["imdb"], [6], [1.0], ["erm"], SEARCH_SEEDS, evaluate=VALIDATION),
        Row(SEARCH, "MiniLM", ["imdb"], [6], [1.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["imdb"], [6], [1.0], BOTH, range(5)),
        # Primary 4, whose cells are short.
        Row(SEARCH, "UT", ["ped2"], [5], [STRONG["ped2"]], ["algorithm-1"], [SEARCH_SEED], ["untied"]),
        Row("robustness", "UT", ["ped2"], [5], [STRONG["ped2"]], BOTH, range(5), ["untied"]),
        # Primary 2.
        Row(SEARCH, "MiniLM", ["mnli"], [6], [1.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["mnli"], [6], [1.0], BOTH, range(5)),
        # Primary 3.
        Row("robustness", "MPNet", ["imdb"], [12], [1.0], BOTH, range(3)),
        # Short cells of the paper's main experiment, then α and dual rate of Figures 5, 14 and 15.
        Row("robustness", "UT", ["avenue"], [5], [STRONG["avenue"]], BOTH, range(5), ["untied"]),
        *(Row("robustness", "UT", [data], [5], [gamma], BOTH, range(5), ["untied"]) for data, gamma in WEAK.items()),
        Row("robustness", "UT", ["ped2", "avenue"], [5], [0.0], BOTH, range(5), ["untied"]),
        Row("mechanism", "UT", ["ped2", "avenue"], [5], [0.0], MECHANISM, range(5), ["untied"]),
        Row("robustness", "UT", ["ped1"], [5], [0.0], BOTH, range(5), ["untied"]),
        Row("mechanism", "UT", ["ped1"], [5], [0.0], ["useful-.8"], range(5), ["untied"]),
        Row("mechanism", "MiniLM", ["imdb"], [6], [1.0], ["algorithm-1"], range(5), variants=ALPHAS),
        Row("ablation", "MiniLM", ["imdb"], [6], [1.0], ["algorithm-1"], range(3), variants=DUAL_RATES),
        Row("mechanism", "MiniLM", ["imdb"], [6], [1.0], MECHANISM, range(5)),
        Row(SEARCH, "MiniLM", ["imdb"], [6], [0.4, 0.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["imdb"], [6], [0.4, 0.0], BOTH, range(5)),
        Row(SEARCH, "UT-text", ["imdb"], [3], [1.0], ["erm"], SEARCH_SEEDS, evaluate=VALIDATION),
        Row(SEARCH, "UT-text", ["imdb", "mnli"], [3], [1.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "UT-text", ["imdb", "mnli"], [3], [1.0], BOTH, range(5)),
        Row(SEARCH, "DUST", ["ped2"], [5], [STRONG["ped2"]], ["algorithm-1"], [SEARCH_SEED], ["untied"]),
        *(row for noise in (STRONG, WEAK) for data, gamma in noise.items() for row in dust(data, [gamma])),
        *(row for data in STRONG for row in dust(data, [0.0])),
        *(Row("robustness", "UT", [data], [5], more, BOTH, [0], ["untied"]) for data, more in OTHER_GAMMAS.items()),
        *(row for data, more in OTHER_GAMMAS.items() for row in dust(data, more, range(1))),
        # The replays have other seeds than their source, and are there to explain a gain.
        Row("source", "MiniLM", ["imdb"], [6], [1.0], ["algorithm-1"], [0], variants=LOGGED, evaluate={"noise": "1"}),
        Row("mechanism", "MiniLM", ["imdb"], [6], [1.0], REPLAYS, range(1, 6)),
        Row("mechanism", "MiniLM", ["imdb"], [6], [1.0], BOTH, [5]),
        Row(SEARCH, "MiniLM", ["mnli"], [6], [0.4, 0.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["mnli"], [6], [0.4, 0.0], BOTH, range(5)),
        Row(SEARCH, "UT-text", ["imdb", "mnli"], [3], [0.4, 0.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "UT-text", ["imdb", "mnli"], [3], [0.4, 0.0], BOTH, range(5)),
    ],
)
