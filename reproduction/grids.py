"""The scales: what is run, in the order of worth. The whole grid is on this page."""

from reproduction.cells import PAPER_ARMS, SEARCH, SEARCH_SEED, SEARCHED, Model, Row, Scale
from reproduction.methods_grid import METHODS

BOTH = ("tied", "untied")
CORE = ("erm", *PAPER_ARMS)
OURS = ("linear", "constrained")
ABSOLUTE = (0, 0.5, 1, 1.5, 2)
"""Test noise of texts: the range behind the areas of Table 4, as far as it can be told."""

STEPS = {"eval_strategy": "steps", "save_strategy": "steps", "lr_scheduler_type": "linear", "warmup_steps": 0.1} | {
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
    "calibrate": False,
}
"""The same for all arms, also where the preset says otherwise: evaluations by steps, a learning rate that rises for a
tenth of them and falls to 0, clipping, and no temperature."""

WINDOWS = {**STEPS, "noise_is": "std", "per_device_train_batch_size": 1, "eval_steps": 250, "save_steps": 250} | {
    "logging_steps": 50,
}
"""Of UT and DUST: a window of five frames is a sequence for each of its 100 patch positions."""

TEXTS = {**STEPS, "per_device_train_batch_size": 16, "max_length": 64, "validation_share": 0.1, "logging_steps": 10} | {
    "model": "{models}/minilm",
}

TRIALS = {
    "UT": {
        "erm": [{"learning_rate": rate, "max_steps": steps} for rate in (1e-3, 3e-3, 1e-2) for steps in (1250, 2500)],
        "erm-noisier": [{"noise": 1.0}, {"noise": 1.28}],
        "paper-adam": [
            {"learning_rate": 3e-3, "dual_lr": 1e-3, "resilience": 0.05},
            {"learning_rate": 1e-3, "dual_lr": 1e-3, "resilience": 0.05},
            {"learning_rate": 3e-3, "dual_lr": 3e-3, "resilience": 0.05},
            {"learning_rate": 3e-3, "dual_lr": 1e-3, "resilience": 0.2},
            {"learning_rate": 3e-3, "dual_lr": 3e-3, "resilience": 0.05, "alpha": 0.1},
            {"learning_rate": 3e-3, "dual_lr": 1e-2, "resilience": 0.05, "alpha": 0.05, "cap": 4.5},
        ],
        "algorithm-1": [
            {"learning_rate": 3e-3, "dual_lr": 0.03, "resilience": 0.05},
            {"learning_rate": 1e-3, "dual_lr": 0.03, "resilience": 0.05},
            {"learning_rate": 3e-3, "dual_lr": 0.01, "resilience": 0.05},
            {"learning_rate": 3e-3, "dual_lr": 0.03, "resilience": 0.2},
            {"learning_rate": 3e-3, "dual_lr": 0.03, "resilience": 0.05, "alpha": 0.1},
            {"learning_rate": 3e-3, "dual_lr": 0.03, "resilience": 0.05, "alpha": 0.3, "cap": 4.5},
        ],
    },
    "DUST": {
        "erm": [{"learning_rate": rate, "max_steps": steps} for rate in (1e-3, 2e-3, 4e-3) for steps in (750, 1500)],
        "erm-noisier": [{"noise": 1.0}, {"noise": 1.28}],
        "paper-adam": [
            {"learning_rate": 1e-3, "dual_lr": 1e-3, "resilience": 0.05},
            {"learning_rate": 5e-4, "dual_lr": 1e-3, "resilience": 0.05},
            {"learning_rate": 1e-3, "dual_lr": 3e-3, "resilience": 0.05},
            {"learning_rate": 2e-3, "dual_lr": 1e-3, "resilience": 0.05},
            {"learning_rate": 1e-3, "dual_lr": 3e-3, "resilience": 0.05, "alpha": 0.15},
            {"learning_rate": 1e-3, "dual_lr": 3e-3, "resilience": 0.2, "alpha": 0.1},
        ],
        "algorithm-1": [
            {"learning_rate": 1e-3, "dual_lr": 3e-3, "resilience": 0.05},
            {"learning_rate": 5e-4, "dual_lr": 3e-3, "resilience": 0.05},
            {"learning_rate": 1e-3, "dual_lr": 0.01, "resilience": 0.05},
            {"learning_rate": 2e-3, "dual_lr": 0.03, "resilience": 0.05},
            {"learning_rate": 1e-3, "dual_lr": 3e-3, "resilience": 0.05, "alpha": 0.15},
            {"learning_rate": 1e-3, "dual_lr": 3e-3, "resilience": 0.2, "alpha": 0.1},
        ],
    },
    "MiniLM": {
        "erm": [{"learning_rate": rate} for rate in (5e-5, 1e-4, 2e-4)],
        "erm-noisier": [{"noise": 1.25}, {"noise": 1.6}],
        "paper-adam": [
            {"learning_rate": 1e-4, "dual_lr": 1e-3, "alpha": 0.05},
            {"learning_rate": 1e-4, "dual_lr": 1e-2, "alpha": 0.05},
            {"learning_rate": 2e-4, "dual_lr": 1e-2, "alpha": 0.1},
        ],
        "algorithm-1": [
            {"learning_rate": 1e-4, "dual_lr": 0.03, "alpha": 0.05},
            {"learning_rate": 1e-4, "dual_lr": 0.3, "alpha": 0.05},
            {"learning_rate": 2e-4, "dual_lr": 0.3, "alpha": 0.1},
        ],
    },
}
"""Model → arm → the settings of each trial. UT and DUST have as many for ERM as for each of the paper's arms. In four
of the paper's six trials α and the cap are those that are fixed in advance."""

BLIND = {"split": "validation"}
"""Trials are evaluated on validation data alone."""

ABLATIONS = {
    **{f"alpha={value:g}": {"alpha": value} for value in (0.02, 0.1, 0.226)},
    **{f"dual_lr={value:g}": {"dual_lr": value} for value in (0.01, 1.0)},
    "resilience=0": {"resilience": 0.0},
}
"""Of Figures 5, 14, 15 and 12. The last α is 1 − .774, printed of DistilBERT."""

SMALL = Scale(
    about="few settings, trained long enough; two cores for a day",
    data={
        "ped2": {"data": "{data}/video/ped2"},
        "ped1": {"data": "{data}/video/UCSD_Anomaly_Dataset.v1p2/UCSDped1/Test"},
        "avenue": {"data": "{data}/video/Avenue Dataset"},
        "shanghaitech": {"data": "{data}/video/shanghaitech/testing/videos"},
        "imdb": {"data": "{data}/imdb", "dataset": "imdb"},
        "mnli": {"data": "{data}/mnli/glue_format", "dataset": "mnli"},  # scale paper
        "alpaca": {"data": "{data}/alpaca/alpaca_data.json"},
    },
    models={
        "UT": Model(
            "video-ut",
            {**WINDOWS, "max_steps": 2500, "learning_rate": 3e-3},
            paper={"alpha": 0.22, "cap": 5.5},
            trials=TRIALS["UT"],
            evaluate={"most": 80, "frames": 1},
            seconds=(30, 25),
        ),
        "DUST": Model(
            "video-dust",
            {**WINDOWS, "max_steps": 1500, "learning_rate": 2e-3, "atoms": 400},
            paper={"alpha": 0.25, "cap": 6.5},
            trials=TRIALS["DUST"],
            evaluate={"most": 80, "frames": 1},
            seconds=(35, 33),
        ),
        "ViT": Model(
            "video-vit",
            {**WINDOWS, "max_steps": 200, "learning_rate": 1e-4, "window": 2, "pretrained": "{models}/dinov2"}
            | {"eval_steps": 100, "save_steps": 100, "logging_steps": 10, "readout": "decoder"},
            paper={"alpha": 0.05, "cap": 5.5, "dual_warmup_steps": 0.2},
            evaluate={"most": 24, "frames": 1},
            seconds=(60, 60),
        ),
        "MiniLM": Model(
            "text",
            {**TEXTS, "max_steps": 250, "eval_steps": 125, "save_steps": 125, "head_lr_ratio": 10.0, "pooling": "mean"}
            | {"learning_rate": 1e-4, "exits": "shared"},
            paper={"dual_warmup_steps": 0.2},
            trials=TRIALS["MiniLM"],
            levels=ABSOLUTE,
            relative=False,
            evaluate={"most": 400, "frames": 1},
            seconds=(120, 90),
        ),
        "UT-text": Model(
            "text-ut",
            {**TEXTS, "max_steps": 450, "eval_steps": 225, "save_steps": 225, "learning_rate": 3e-3},
            paper={"alpha": 0.1, "cap": 3.45, "dual_warmup_steps": 0.2},
            levels=ABSOLUTE,
            relative=False,
            evaluate={"most": 400, "frames": 1},
            seconds=(60, 40),
        ),
        "SmolLM2": Model(
            "lm",
            {**STEPS, "max_steps": 40, "per_device_train_batch_size": 4, "max_length": 48, "exit_share": 0.25}
            | {"eval_strategy": "no", "load_best_model_at_end": False, "save_steps": 20, "logging_steps": 5}
            | {"learning_rate": 5e-5, "model": "{models}/smollm2", "validation_share": 0.01}
            | {"exits": "shared", "head_lr_ratio": 1.0},
            paper={"alpha": 0.05, "cap": 12.0, "dual_warmup_steps": 0.2},
            levels=(0, 0.5, 1),
            relative=False,
            evaluate={"most": 32, "frames": 1},
            complete={"prompts": "{here}/prompts.json", "max_new_tokens": 32},
            seconds=(200, 10),
        ),
    },
    rows=[
        Row(SEARCH, "UT", ["ped2"], [5], [0.8], [*CORE, "erm-noisier"], [SEARCH_SEED], BOTH, evaluate=BLIND),
        Row("main", "UT", ["ped2"], [5], [0.8], [*CORE, "erm-noisier"], range(3), BOTH),
        Row("main", "UT", ["ped1"], [5], [0.8], CORE, range(3), BOTH),
        Row(SEARCH, "DUST", ["ped2"], [5], [0.8], [*CORE, "erm-noisier"], [SEARCH_SEED], BOTH, evaluate=BLIND),
        Row("main", "DUST", ["ped2"], [5], [0.8], [*CORE, "erm-noisier"], range(3), BOTH),
        Row(SEARCH, "MiniLM", ["imdb"], [6], [1.0], [*CORE, "erm-noisier"], [SEARCH_SEED], evaluate=BLIND),
        Row("main", "MiniLM", ["imdb"], [6], [1.0], CORE, range(3)),
        Row("main", "UT", ["avenue"], [5], [0.8], CORE, range(3), BOTH),
        Row("main", "UT", ["ped2", "ped1"], [5], [0.8], OURS, range(3), ["tied"]),
        Row("main", "MiniLM", ["imdb"], [6], [1.0], [*OURS, "erm-noisier"], range(3)),
        Row("language", "SmolLM2", ["alpaca"], [30], [0.5], [*CORE, *OURS], [0]),
        Row("ablation", "UT", ["ped2"], [3], [0.8], ["algorithm-1"], [0], ["untied"], {"alpha=0.5": {"alpha": 0.5}}),
        Row("ablation", "MiniLM", ["imdb"], [6], [1.0], ["algorithm-1"], [0], variants=ABLATIONS),
        Row("training noise", "MiniLM", ["imdb"], [6], [0.0, 0.5], ["erm", "algorithm-1"], [0]),
        Row("depth", "UT", ["ped2"], [3, 7], [0.8], CORE, [0], BOTH),
        Row("searched", "UT", ["ped2", "ped1"], [5], [0.8], PAPER_ARMS, range(3), ["untied"], {SEARCHED: {}}),
        Row("searched", "DUST", ["ped2"], [5], [0.8], PAPER_ARMS, range(3), BOTH, {SEARCHED: {}}),
        Row("ablation", "UT", ["ped2"], [5], [0.8], ["algorithm-1"], [0], ["untied"], {"alpha=0.5": {"alpha": 0.5}}),
        Row("text", "UT-text", ["imdb"], [3], [1.0], CORE, [0]),
        Row("vit", "ViT", ["ped2"], [12], [0.8], [*CORE, "constrained"], [0]),
        Row("another camera", "UT", ["shanghaitech"], [5], [0.8], CORE, [0], BOTH),
        Row("weak noise", "UT", ["ped2"], [5], [0.15], CORE, [0], BOTH),
        Row("main", "UT", ["ped2", "avenue"], [5], [0.8], CORE, [3, 4], BOTH),
        Row("main", "MiniLM", ["imdb"], [6], [1.0], CORE, [3, 4]),
        Row("main", "DUST", ["ped2"], [5], [0.8], CORE, [3, 4], BOTH),
        Row("main", "DUST", ["avenue"], [5], [0.8], CORE, [0], BOTH),
        Row("depth", "DUST", ["ped2"], [3], [0.8], CORE, [0], BOTH),
        Row("text", "UT-text", ["imdb"], [3], [1.0], CORE, [1, 2]),
        Row("depth", "UT", ["ped2"], [3, 7], [0.8], CORE, [1, 2], BOTH),
        Row("weak noise", "UT", ["ped2"], [5], [0.15], CORE, [1, 2], BOTH),
        Row("main", "DUST", ["avenue"], [5], [0.8], CORE, [1, 2], BOTH),
        Row("depth", "DUST", ["ped2"], [3], [0.8], CORE, [1, 2], BOTH),
        Row("weak noise", "DUST", ["ped2"], [5], [0.15], CORE, [0], BOTH),
        Row("depth", "UT", ["avenue"], [3, 7], [0.8], CORE, [0], BOTH),
        Row("depth", "DUST", ["avenue"], [3], [0.8], CORE, [0], BOTH),
        Row("main", "UT", ["avenue"], [5], [0.8], OURS, range(3), ["tied"]),
        Row("main", "DUST", ["ped2"], [5], [0.8], OURS, range(3), ["tied"]),
        Row("main", "UT", ["ped2"], [5], [0.8], OURS, [0], ["untied"]),
    ],
    primaries=[
        ("UT", 5, "ped2", 0.8, "untied", "erm", "untied"),
        ("UT", 5, "ped2", 0.8, "untied", "erm", "tied"),
        ("UT", 5, "ped1", 0.8, "untied", "erm", "untied"),
        ("UT", 5, "avenue", 0.8, "untied", "erm", "untied"),
        ("DUST", 5, "ped2", 0.8, "untied", "erm", "tied"),
        ("MiniLM", 6, "imdb", 1.0, "", "erm", ""),
    ],
)

_TINY = {**STEPS, "max_steps": 6, "eval_steps": 3, "save_steps": 3, "logging_steps": 2}
_TINY_VIDEO = {**_TINY, "noise_is": "std", "window": 2, "stride": 20}
_TINY_WARMUP = {"dual_warmup_steps": 0.1}
_TINY_TEXT = {**_TINY, "hidden_size": 16, "max_length": 16, "validation_share": 0.02, "per_device_train_batch_size": 8}

SMOKE = Scale(
    about="generated data and tiny models for six steps: whether everything runs, nothing about the method",
    data={"scenes": {"data": "generated"}, "generated": {"data": "generated"}},
    models={
        "UT": Model(
            "video-ut",
            _TINY_VIDEO,
            paper={"alpha": 0.22, "cap": 5.5, **_TINY_WARMUP},
            trials={
                "erm": [{"learning_rate": 1e-3}, {"learning_rate": 3e-3, "max_steps": 3}],
                "algorithm-1": [{"dual_lr": 0.03}, {"dual_lr": 0.1, "alpha": 0.1}],
            },
            levels=(0, 1, 2),
            evaluate={"frames": 1},
            seconds=(25, 0),
        ),
        "DUST": Model("video-dust", {**_TINY_VIDEO, "atoms": 64}, _TINY_WARMUP, levels=(0, 1, 2), seconds=(25, 0)),
        "MiniLM": Model(
            "text-distilbert",
            {**_TINY_TEXT, "heads": 2},
            _TINY_WARMUP,
            levels=(0, 1),
            relative=False,
            seconds=(25, 0),
        ),
        "SmolLM2": Model(
            "llm-sft",
            {**_TINY, "hidden_size": 16, "heads": 2, "max_length": 60, "validation_share": 0.02},
            paper=_TINY_WARMUP,
            levels=(0, 1.5),
            relative=False,
            complete={"prompts": "{here}/prompts.json", "limit": 2, "max_new_tokens": 4},
            seconds=(40, 0),
        ),
    },
    rows=[
        Row(SEARCH, "UT", ["scenes"], [2], [0.8], ["erm", "algorithm-1"], [SEARCH_SEED], ["untied"], evaluate=BLIND),
        Row("main", "UT", ["scenes"], [2], [0.8], ["erm", "constrained", "algorithm-1"], [0, 1], ["untied"]),
        Row("depth", "UT", ["scenes"], [3], [0.8], ["erm", "algorithm-1"], [0], ["untied"]),
        Row("main", "DUST", ["scenes"], [2], [0.8], ["erm", "algorithm-1"], [0], ["untied"]),
        Row("main", "MiniLM", ["generated"], [2], [1.0], ["erm", "algorithm-1"], [0]),
        Row("language", "SmolLM2", ["generated"], [2], [1.5], ["erm", "algorithm-1"], [0]),
    ],
    primaries=[("UT", 2, "scenes", 0.8, "untied", "erm", "untied")],
)

_EPOCHS = {**STEPS, "eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": -1}
_VIDEO = {**_EPOCHS, "num_train_epochs": 10, "noise_is": "variance", "per_device_train_batch_size": 1} | {
    "logging_steps": 100,
}
_TEXT = {**_EPOCHS, "num_train_epochs": 3, "max_length": 512, "per_device_train_batch_size": 32}
_GAMMAS, _TEXT_GAMMAS = (0.0, 0.09, 0.11, 0.13, 0.15), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_VIDEOS, _TEXTS = ("ped2", "avenue", "shanghaitech"), ("imdb", "mnli")
_VIDEO_LEVELS, _TEXT_LEVELS = (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5), (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)

PAPER = Scale(
    about="every cell of Tables 3 and 4 with the paper's models, epochs and the preset as it is: for a cluster",
    data={**SMALL.data, "shanghaitech": {"data": "{data}/video/shanghaitech"}},
    models={
        "UT": Model("video-ut", {**_VIDEO, "learning_rate": 3e-3}, levels=_VIDEO_LEVELS, relative=False),
        "DUST": Model("video-dust", {**_VIDEO, "learning_rate": 2e-3}, levels=_VIDEO_LEVELS, relative=False),
        "ViT": Model(
            "video-vit",
            {**_VIDEO, "learning_rate": 5e-5, "pretrained": "google/vit-base-patch16-224", "readout": "pixels"},
            levels=_VIDEO_LEVELS,
            relative=False,
        ),
        "UT-text": Model(
            "text-ut",
            {**_TEXT, "learning_rate": 3e-3, "model": "distilbert-base-uncased"},
            levels=_TEXT_LEVELS,
            relative=False,
        ),
        "DistilBERT": Model(
            "text-distilbert",
            {**_TEXT, "learning_rate": 3e-5, "model": "distilbert-base-uncased", "readout": "linear"},
            levels=_TEXT_LEVELS,
            relative=False,
        ),
        "RoBERTa": Model(
            "text-roberta",
            {**_TEXT, "learning_rate": 1e-5, "model": "FacebookAI/roberta-large", "readout": "linear"},
            levels=_TEXT_LEVELS,
            relative=False,
        ),
        "Llama": Model(
            "llm-sft",
            {**_EPOCHS, "num_train_epochs": 2, "max_length": 512, "per_device_train_batch_size": 4}
            | {"learning_rate": 2e-5, "weight_decay": 0.01, "dropout": 0.05, "model": "meta-llama/Llama-3.1-8B"},
            levels=(0, 0.5, 1, 1.5, 2, 2.5, 3),
            relative=False,
            complete={"prompts": "{data}/alpaca_eval/alpaca_eval.json", "max_new_tokens": 256},
        ),
    },
    rows=[
        Row("main", "UT", _VIDEOS, [3, 5, 7], _GAMMAS, CORE, range(3), BOTH),
        Row("main", "DUST", _VIDEOS, [3, 5, 7], _GAMMAS, CORE, range(3), BOTH),
        Row("main", "ViT", _VIDEOS, [12], _GAMMAS, CORE, range(3)),
        Row("main", "UT-text", _TEXTS, [3, 5, 7, 9], _TEXT_GAMMAS, CORE, range(5)),
        Row("main", "DistilBERT", _TEXTS, [6], _TEXT_GAMMAS, CORE, range(5)),
        Row("main", "RoBERTa", ["imdb"], [24], _TEXT_GAMMAS, CORE, range(5)),
        Row("language", "Llama", ["alpaca"], [32], [1.5], CORE, range(3)),
    ],
)

SCALES = {"smoke": SMOKE, "small": SMALL, "methods": METHODS, "paper": PAPER}
