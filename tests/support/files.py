"""What the files of a run hold, for tests that read and recognise them."""

from descend.results import CertifiedExit, Decisions, Groups, RunConfig, Summary, SweepFile

EXIT = {
    "full": 0.9,
    "depth": 2,
    "confidence": [{"threshold": 0.5, "layers": 1.2, "accuracy": 0.8}],
    "patience": [{"patience": 1, "layers": 1.9, "accuracy": 0.9}],
    "chosen": {"threshold": 0.5, "layers": 1.2, "accuracy": 0.8, "time_ratio": 0.7},
}
SUMMARY = {
    **{"recipe": "text", "method": "constrained", "seed": 0, "model": "BERT", "dataset": "imdb"},
    **{"metric": "accuracy", "higher_is_better": True, "noise": [0.0, 1e-05], "values": [0.9, None], "mean": None},
    **{"auc": None, "train_noise": 1e-05, "layer_losses": {"0.0": [3, 2, 1], "1e-05": [3.0, None, 1.0]}},
    **{"violations": [-0.1, 0.2], "violation_intervals": [[-0.2, 0.0], [None, None]], "bounds": [None, 1.5]},
    **{"feasible": True, "layers_needed": {"noise": 1e-05, "within": {"2": None}}},
    **{"limits": [None, None, 0.5], "settings": {"depth": 2, "data": None}, "exit": EXIT, "energy": {"0.0": [1, 2, 3]}},
}
CONFIG = {
    **{"recipe": "video-ut", "method": "erm", "seed": 1, "model": "UT-2", "sigma": None},
    **{"settings": {"data": "generated", "depth": 2}, "training": {"max_steps": 3}},
}
LAYERS = {"noise": [1.0], "counts": [5], "losses": [[[1.0], [2.0]]], "scores": [[[3.0], [4.0]]]}
GROUPS = {
    **{"noise": [0.0, 1.0], "root": True, "single": False, "counts": [2, 3], "scores": [[1.0, 2.0], [3.0, None]]},
    "layers": LAYERS,
}


CERTIFIED = {"threshold": 0.9, "risk": 0.01, "confidence": 0.95, "noise": 0}
TRIAL = {
    **{"number": 0, "state": "finished", "value": 1.0, "feasible": None, "settings": {"learning_rate": 0.1}},
    "curve": {"steps": [1], "values": [2.0]},
}
SEARCH = {"searched": {}, "best": None, "edges": [], "importance": {}, "trials": [TRIAL]}
SWEEP = {
    **{"descend": "1", "recipe": "video-ut", "model": "UT-2", "metric": "rmse", "higher_is_better": False},
    **{"split": "validation", "levels": [0.0], "given": [], "trials": 1, "seeds": 1, "rule": "the lowest"},
    "methods": {"erm": SEARCH},
}
ANSWER = {"answer": "yes", "confidence": 0.5, "right": True}
FILES = {
    "summary.json": (Summary, SUMMARY),
    "sweep.json": (SweepFile, SWEEP),
    "config.json": (RunConfig, CONFIG),
    "groups.json": (Groups, GROUPS),
    "decisions.json": (Decisions, {"noise": 0.5, "texts": [{"text": "a", "decisions": [ANSWER] * 2}]}),
    "certified_exit.json": (CertifiedExit, CERTIFIED),
}
RECORD = {"run": "a", "step": 1, "split": "train", "layer": 0, "noise": None, "metric": "loss", "value": None}
