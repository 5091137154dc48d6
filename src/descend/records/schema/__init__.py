"""The files of a run as typed objects: ``config.json``, ``summary.json``, ``groups.json``, rows of ``records.jsonl``.

Every writer builds one of these models and every reader gets one, so a key is spelled in one place. A file says which
version of this schema it follows by the key ``schema``. A file without that key is from before it existed and is read
if its entries fit. Keys that this version does not know are kept when a file is written again.
"""

from descend.records.schema.base import (
    CONFIG_FILE,
    ELSEWHERE,
    GROUPS_FILE,
    RECORDS_FILE,
    SCHEMA,
    SUMMARY_FILE,
    ByLevel,
    File,
    Number,
    Numbers,
    OptionalNumbers,
    Part,
    parse,
)
from descend.records.schema.completions import Completion, read_completions
from descend.records.schema.config import MODELS, RunConfig, check_model, read_config
from descend.records.schema.decisions import DECISIONS_FILE, DecidedText, Decision, Decisions, read_decisions
from descend.records.schema.findings import (
    WITHIN,
    AnytimeCurve,
    ChosenExit,
    Drafts,
    ExitPoint,
    Exits,
    Guarantee,
    Histogram,
    Latency,
    Probes,
    Ratios,
    SettledLayer,
    Speculation,
)
from descend.records.schema.groups import Groups, LayerGroups, read_groups
from descend.records.schema.records import Record, read_records
from descend.records.schema.summary import (
    ENOUGH_GROUPS,
    REQUIRED,
    Comparison,
    Measured,
    Provenance,
    Summary,
    anytime_curves,
    parse_summary,
    read_comparison,
    read_summary,
)
from descend.records.schema.tasks import TaskComparison, TaskCurve, TaskResults, TaskRun, read_task_results
from descend.records.schema.train_losses import TRAIN_LOSSES_FILE, TrainLosses, read_train_losses
from descend.records.schema.trained import TRAINED_FILE, TRAINED_KEY, Trained, read_trained

__all__ = [
    "CONFIG_FILE",
    "DECISIONS_FILE",
    "ELSEWHERE",
    "ENOUGH_GROUPS",
    "GROUPS_FILE",
    "MODELS",
    "RECORDS_FILE",
    "REQUIRED",
    "SCHEMA",
    "SUMMARY_FILE",
    "TRAINED_FILE",
    "TRAINED_KEY",
    "TRAIN_LOSSES_FILE",
    "WITHIN",
    "AnytimeCurve",
    "ByLevel",
    "ChosenExit",
    "Comparison",
    "Completion",
    "DecidedText",
    "Decision",
    "Decisions",
    "Drafts",
    "ExitPoint",
    "Exits",
    "File",
    "Groups",
    "Guarantee",
    "Histogram",
    "Latency",
    "LayerGroups",
    "Measured",
    "Number",
    "Numbers",
    "OptionalNumbers",
    "Part",
    "Probes",
    "Provenance",
    "Ratios",
    "Record",
    "RunConfig",
    "SettledLayer",
    "Speculation",
    "Summary",
    "TaskComparison",
    "TaskCurve",
    "TaskResults",
    "TaskRun",
    "TrainLosses",
    "Trained",
    "anytime_curves",
    "check_model",
    "parse",
    "parse_summary",
    "read_comparison",
    "read_completions",
    "read_config",
    "read_decisions",
    "read_groups",
    "read_records",
    "read_summary",
    "read_task_results",
    "read_train_losses",
    "read_trained",
]
