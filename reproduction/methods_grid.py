"""The study of what each method gives: depth and robustness, in the order of worth. Its plan is methods_plan.md."""

from typing import Any

from reproduction.cells import LAST, SEARCH, Model, Options, Row, Scale

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


def rates(*values: float) -> dict[str, list[dict[str, Any]]]:
    """The search of learning rates for depth, the same for every arm."""
    return {arm: [{"learning_rate": value} for value in values] for arm in DEPTH_ARMS}


METHODS = Scale(
    about="what each method gives: layers that suffice, and accuracy or RMSE over noise",
    data={
        "imdb": {"data": "{data}/imdb", "dataset": "imdb"},
        "mnist": {"data": "{data}/mnist"},
    },
    models={
        "MiniLM": Model(
            "text",
            {**STEPS, "model": "{models}/minilm", "max_steps": 150, "per_device_train_batch_size": 16}
            | {"max_length": 96},
            trials=rates(5e-5, 1e-4, 2e-4),
            levels=(0,),
            relative=False,
            evaluate={"most": 1000, "frames": 1},
            by_layers=True,
            seconds=(520, 0),
        ),
        "DINOv2": Model(
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
    },
    rows=[
        Row(SEARCH, "DINOv2", ["mnist"], [12], [0.0], DEPTH_ARMS, SEARCH_SEEDS),
        Row("layers", "DINOv2", ["mnist"], [12], [0.0], DEPTH_ARMS, range(5)),
        Row("layers", "DINOv2", ["mnist"], [12], [0.0], ["probe"], range(5), variants={LAST: {}}),
        Row(SEARCH, "MiniLM", ["imdb"], [6], [0.0], DEPTH_ARMS, SEARCH_SEEDS),
        Row("layers", "MiniLM", ["imdb"], [6], [0.0], DEPTH_ARMS, range(5)),
        Row("layers", "MiniLM", ["imdb"], [6], [0.0], ["probe"], range(5), variants={LAST: {}}),
    ],
)
