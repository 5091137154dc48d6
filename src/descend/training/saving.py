"""What a trainer saves: the model with what it was trained with, its card, and the state of the run."""

import json
import math
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import PreTrainedModel, Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from descend.core import DescentProblem, LossSums, PrimalDual
from descend.errors import InputError
from descend.methods import Method
from descend.models import save_module
from descend.objective import Objective
from descend.results import (
    CARD_FILE,
    FEASIBLE_FOLDER,
    RECORDS_FILE,
    TRAINED_KEY,
    Records,
    Summary,
    Trained,
    Verdict,
    card_of_model,
    hub_name,
    refuse_foreign,
    verdict_sentence,
    without_adapters,
    write_card,
)
from descend.training.checkpoints import any_checkpoints, newest_whole, step_of
from descend.training.config import DescentArguments
from descend.training.outlook import Outlook


class Saving(Trainer):
    """A trainer that saves the user's model, without the objective around it."""

    args: DescentArguments
    objective: Objective
    dual: PrimalDual[DescentProblem]
    records: Records
    method: Method
    verdict: Verdict | None
    sums: LossSums
    """Of the current step, on this rank."""
    other_sums = 0
    """K, the number of further sums in a batch's `LossSums`."""
    checkpoint_parent: Path | None = None
    """The temporary folder of the checkpoint that is being written; None otherwise."""

    @property
    def users_model(self) -> Any:
        """The model that is trained and saved, without the objective around it.

        Under FSDP2 its parameters are shards, which are gathered inside the objective's forward pass and evaluations.
        """
        return self.objective.model.saved

    # --- ranks

    def _from_main(self, look: Callable[[], Any]) -> Any:
        """Call ``look`` on the main process only and return its result on all ranks, so that files are read once."""
        return self._broadcast(look() if self.is_world_process_zero() else None)

    @staticmethod
    def _broadcast(value: Any) -> Any:
        """Return the main process's value on all ranks."""
        return broadcast_object_list([value])[0]

    @property
    def _rank(self) -> str:
        """The prefix of a rank's message; empty with a single process."""
        return f"process {self.args.process_index}: " if self.args.world_size > 1 else ""

    def _over_ranks(self, local: Tensor) -> Tensor:
        """A tensor summed over the ranks, on the host."""
        if self.args.world_size == 1:
            return local.cpu()
        return self.accelerator.reduce(local.to(self.args.device)).cpu()

    def _broken(self) -> bool:
        """Whether a parameter is not finite on any rank."""
        parameters = [each for each in self.objective.parameters() if each.requires_grad]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in parameters]
        fault = not all(bool(each.detach().isfinite().all()) for each in local)
        return bool(self.accelerator.reduce(torch.tensor(float(fault), device=self.args.device)))

    def _way_on(self) -> str:
        """What the user can do after training diverged, as a sentence; the same on all ranks."""
        newest = self._from_main(lambda: newest_whole(self.args.folder)[0])
        goes_on = "there is no checkpoint to go on from" if newest is None else f"--resume goes on from {newest.name}"
        return f"Lower learning_rate or dual_lr and train into another folder; {goes_on}."

    # --- the folder

    def refuse_foreign_files(self, checkpoint: str | None = None, *, trains: bool = False) -> None:
        """Raise an error on all ranks if the folder holds files that this run would replace and Descend did not write.

        Args:
            checkpoint: The checkpoint that training resumes from; None for a run from the start.
            trains: Whether checkpoints would be replaced too.
        """
        folder = self.args.folder

        def look() -> str | None:
            paths, step = [folder / RECORDS_FILE], -1
            if checkpoint is not None:
                step = json.loads((Path(checkpoint) / TRAINER_STATE_NAME).read_text())["global_step"]
            elif self.method.asks:
                paths.append(folder / FEASIBLE_FOLDER)
            if trains and self.args.save_strategy != SaveStrategy.NO:
                paths += [path for path in any_checkpoints(folder) if step_of(path) > step]
            try:
                refuse_foreign(paths, "another output_dir")
            except InputError as error:
                return str(error)
            return None

        if fault := self._from_main(look):
            raise InputError(fault)

    # --- the model

    def save_pretrained(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model and its tokenizer, if there is one, in the format of `from_pretrained`.

        All ranks must call this, because each may hold a shard; the main process writes.
        """
        if state_dict is None and hasattr(self.objective, "reshard"):
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            state_dict = get_model_state_dict(
                self.users_model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
            )
        if not self.args.should_save:
            return
        saved, names = self.users_model, {}
        self.mark_model()
        if self.checkpoint_parent is not None and isinstance(saved, PreTrainedModel):
            # A checkpoint uses the names of weights in the model, for resuming; other folders use those of the Hub.
            names = {"save_original_format": False}
        save_module(saved, folder, state_dict, **names)
        if not isinstance(saved, PreTrainedModel):
            self.trained.write(Path(folder))
        if (tokenizer := self.tokenizer_to_save) is not None:
            tokenizer.save_pretrained(folder)
        if self.checkpoint_parent is None:
            (Path(folder) / CARD_FILE).unlink(missing_ok=True)  # PEFT's
            write_card(Path(folder), self._card())

    @property
    def trained(self) -> Trained:
        """What the model is trained with, which is saved with it."""
        args, noise = self.args, self.objective.noise
        of_noise: dict[str, Any] = {}
        if noise is not None:
            of_noise = {"noise": noise.level, "noise_is": noise.noise_is, "shift": noise.kind}
        return Trained(
            version=version("descend"),
            method=args.method,
            seed=args.seed,
            problem=args.constraints,
            temperature=self.temperature,
            **of_noise,
        )

    def mark_model(self) -> None:
        """Note in the configuration of a Transformers model what it is trained with."""
        if isinstance(self.users_model, PreTrainedModel):
            setattr(self.users_model.config, TRAINED_KEY, self.trained.content())

    @property
    def tokenizer_to_save(self) -> Any:
        """The tokenizer, or a processor of another kind, that belongs to the model; None without one."""
        return self.processing_class or getattr(self.data_collator, "tokenizer", None)

    # --- its card

    def create_model_card(self, *_: Any, **given: Any) -> None:
        """Write our model card in place of Transformers' or TRL's, unless a user has edited it.

        Args:
            **given: Of the arguments of both libraries ``model_name``, ``finetuned_from`` (the name on the Hub of the
                model that training started from), ``language``, ``license``, ``tags`` and ``dataset_tags``.
        """
        # TRL calls this for every checkpoint.
        if not self.is_world_process_zero() or (self.checkpoint_parent is not None and not self.args.push_to_hub):
            return
        card = self._card(
            given.get("model_name"),
            given.get("finetuned_from"),
            language=given.get("language"),
            license=given.get("license"),
            tags=given.get("tags"),
            datasets=given.get("dataset_tags"),
        )
        self.args.folder.mkdir(parents=True, exist_ok=True)
        write_card(self.args.folder, card)

    def _card(self, name: str | None = None, base_model: str | None = None, **metadata: Any) -> str:
        """The card of a model without a recipe: how it was trained, its verdict, and its evaluation if there was one.

        Args:
            name: The model's name; by default that of the output folder.
            base_model: The name on the Hub of the model that training started from; by default as its configuration
                says.
            **metadata: Further metadata of the card, such as ``license``.
        """
        source = getattr(getattr(without_adapters(self.users_model), "config", None), "_name_or_path", None)
        kind, depth = type(without_adapters(self.users_model)).__name__, self.objective.model.depth
        return card_of_model(
            self.users_model,
            name or self.args.folder.absolute().name,
            f"{kind} with {depth} layers, trained by `{type(self).__name__}`. The prediction can be read after every "
            "layer.",
            self.trained,
            verdict="" if self.verdict is None else verdict_sentence(self.verdict, "the evaluation data"),
            summary=self.summary,
            base_model=base_model or (hub_name(source) if source else None),
            metadata=metadata,
        )

    # --- the state of the run

    def begin_run(self) -> None:
        """Reset logs, model selection and calibration for a new run; multipliers keep their state."""
        self.outlook, depth = Outlook(self.dual.problem), self.dual.problem.depth
        self.since_log = LossSums(depth, self.other_sums)  # of the steps since the last log, on this rank
        self.logged = LossSums(depth, self.other_sums)  # of all logs so far, over all ranks
        self.sums.clear()
        self._best = math.inf  # the lowest loss of a feasible model
        self._verdicts: dict[int, Verdict] = {}  # by step, of this process's evaluations
        self._best_meets = False  # whether the best model so far is feasible
        self.temperature = 1.0  # by which `calibrate` has divided a classifier's logits
        self.summary: Summary | None = None  # set by `descend.evaluate`, for the model card
        self._began, self._earlier = time.monotonic(), 0.0

    def end_run(self) -> None:
        """Stop the clock."""
        self._began, self._earlier = math.inf, self.seconds

    def run_state(self) -> dict[str, Any]:
        """This rank's state that Transformers does not save: multipliers, sums since the last log, the best result."""
        return {
            "dual": self.dual.state_dict(),
            "since_log": self.since_log.numbers,
            "logged": self.logged.numbers,
            "outlook": self.outlook.state_dict(),
            "best": self._best,
            "best_meets": self._best_meets,
            "seconds": self.seconds,
            "processes": self.args.world_size,
        }

    def load_run_state(self, state: dict[str, Any]) -> None:
        """Restore what `run_state` gave, or its JSON."""
        self.dual.load_state_dict(state["dual"])
        self.sums.clear()
        self.since_log = self.since_log.with_numbers(state["since_log"])
        self.logged = self.logged.with_numbers(state["logged"])
        self.outlook.load_state_dict(state["outlook"])
        self._best, self._best_meets = state["best"], state["best_meets"]
        self._began, self._earlier = time.monotonic(), state["seconds"]
        self.temperature = 1.0  # a checkpoint's model is not calibrated

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before an interruption."""
        return self._earlier + max(time.monotonic() - self._began, 0.0)
