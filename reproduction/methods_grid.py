"""The study of what each method gives: depth and robustness, in the order of worth. Its plan is methods_plan.md."""

from typing import Any

from reproduction.cells import LAST, SEARCH, SEARCH_SEED, Model, Options, Row, Scale

SEARCH_SEEDS = range(1000, 1003)
"""The seeds of the searches of rates, which no other run has."""

STEPS: Options = {"eval_strategy": "no", "save_strategy": "no", "lr_scheduler_type": "linear", "warmup_steps": 0.1} | {
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
    "calibrate": False,
    "logging_steps": 10,
}
"""The same for all arms. The model of the last step is the one that is judged: no evaluation chooses another."""

DEPTH_ARMS = ("probe", "linear", "linear-.05", "useful-.2", "useful-.8")


LEVELS = (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)
"""Of the test noise γ."""

SQUARE = [
    {"alpha": 0.0641, "dual_lr": 0.316},
    {"alpha": 0.105, "dual_lr": 5.01},
    {"alpha": 0.173, "dual_lr": 0.02},
    {"alpha": 0.285, "dual_lr": 1.26},
    {"alpha": 0.468, "dual_lr": 0.0794},
]
"""The five trials of a search for texts: a Latin square, uniform in log α on [.05, .6] and in log η_λ on [.01, 10]."""

RATES = {f"rate={rate:g}": {"learning_rate": rate} for rate in (5e-5, 1e-4, 2e-4)}
"""Of plain training on texts; the best in the mean over seeds is the rate of all arms of the model."""

BOTH = ("erm", "algorithm-1")


def rates(*values: float) -> dict[str, list[dict[str, Any]]]:
    """The search of learning rates for depth, the same for every arm."""
    return {arm: [{"learning_rate": value} for value in values] for arm in DEPTH_ARMS}


METHODS = Scale(
    about="what each method gives: layers that suffice, and accuracy or RMSE over noise",
    data={
        "imdb": {"data": "{data}/imdb", "dataset": "imdb", "validation_share": 0.1},
        "mnli": {"data": "{data}/mnli/glue_format", "dataset": "mnli", "validation_share": 0.05},
        "mnist": {"data": "{data}/mnist"},
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
            {**STEPS, "model": "{models}/minilm", "max_steps": 250, "per_device_train_batch_size": 16}
            | {"max_length": 64, "pooling": "mean", "exits": "shared", "learning_rate": 1e-4},
            paper={"dual_warmup_steps": 0.2},
            trials={"algorithm-1": SQUARE},
            levels=LEVELS,
            relative=False,
            evaluate={"most": 1000, "frames": 1},
            each=True,
            seconds=(1000, 0),
        ),
    },
    rows=[
        Row(SEARCH, "DINOv2-exits", ["mnist"], [12], [0.0], DEPTH_ARMS, SEARCH_SEEDS),
        Row("layers", "DINOv2-exits", ["mnist"], [12], [0.0], DEPTH_ARMS, range(5)),
        Row("layers", "DINOv2-exits", ["mnist"], [12], [0.0], ["probe"], range(5), variants={LAST: {}}),
        Row(SEARCH, "MiniLM-exits", ["imdb"], [6], [0.0], DEPTH_ARMS, SEARCH_SEEDS),
        Row("layers", "MiniLM-exits", ["imdb"], [6], [0.0], DEPTH_ARMS, range(5)),
        Row("layers", "MiniLM-exits", ["imdb"], [6], [0.0], ["probe"], range(5), variants={LAST: {}}),
        Row("rates", "MiniLM", ["imdb"], [6], [1.0], ["erm"], SEARCH_SEEDS, variants=RATES),
        Row(SEARCH, "MiniLM", ["imdb"], [6], [1.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["imdb"], [6], [1.0], BOTH, range(5)),
        Row(SEARCH, "MiniLM", ["mnli"], [6], [1.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["mnli"], [6], [1.0], BOTH, range(5)),
        Row(SEARCH, "MiniLM", ["imdb"], [6], [0.4, 0.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["imdb"], [6], [0.4, 0.0], BOTH, range(5)),
        Row(SEARCH, "MiniLM", ["mnli"], [6], [0.4, 0.0], ["algorithm-1"], [SEARCH_SEED]),
        Row("robustness", "MiniLM", ["mnli"], [6], [0.4, 0.0], BOTH, range(5)),
    ],
)
