"""Write checkpoints atomically."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from descend.core import LossSums, Outlook, PrimalDual
from descend.errors import NonFiniteLossError, SaveError
from descend.models.modules import save_module
from descend.results import CERTIFIED_FILE, PART, TRAINED_KEY, Summary, Trained, of_disk
from descend.results.card import edited_card, put_card, write_card
from descend.results.ownership import atomic_folder, remove
from descend.results.records import Records
from descend.training.checkpoints import newest_whole, rotate, save_state, seal, step_of
from descend.training.config import DescentArguments
from descend.training.hf_hooks import TrainerHooks
from descend.training.methods import Method
from descend.training.trainer_card import trainer_card

logger = logging.getLogger(__name__)

STATE_FILE = "descent_{}.safetensors"  # one for each rank: its noise and its losses since the last dual step


class Saving(TrainerHooks):
    """A trainer whose checkpoints are atomic and hold the full state of a run: model, multipliers, noise and sums."""

    args: DescentArguments
    dual: PrimalDual
    records: Records
    sums: LossSums
    """Of the current step, on this rank."""
    since_log: LossSums
    """Of the steps since the last log, on this rank."""
    logged: LossSums
    """Of all logs so far, over all ranks."""
    _outlook: Outlook
    _best: float
    _best_meets: bool
    _began: float
    _earlier: float
    temperature: float
    summary: Summary | None
    _unwritten: Exception | None
    method: Method

    def _from_main(self, look: Callable[[], Any]) -> Any:
        """Call ``look`` on the main process only and return its result on all ranks, so that files are read once."""
        return self._broadcast(look() if self.is_world_process_zero() else None)

    @staticmethod
    def _broadcast(value: Any) -> Any:
        """Return the main process's value on all ranks."""
        values = [value]
        broadcast_object_list(values)
        return values[0]

    def _gather(self, values: list[Any]) -> list[Any]:
        """Return all ranks' values as one list, on each rank."""
        return gather_object(values) if self.args.world_size > 1 else values

    @property
    def _rank(self) -> str:
        """The prefix of a rank's message; empty with a single process."""
        return f"process {self.args.process_index}: " if self.args.world_size > 1 else ""

    def save_checkpoint(self, model: nn.Module) -> None:
        """Save a checkpoint and delete old ones.

        Raises:
            NonFiniteLossError: If a parameter is not finite; nothing is saved.
        """
        if self._broken():
            raise NonFiniteLossError(
                f"step {self.state.global_step}: parameters are no longer finite, and are not saved. {self._way_on()}"
            )
        run = self.args.folder
        checkpoint = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self._write_checkpoint(checkpoint, model)
        if self.args.push_to_hub:
            self.push_checkpoint(checkpoint)
        if self.args.should_save:
            rotate(run, self.args.save_total_limit, self.state.best_model_checkpoint)

    def _write_checkpoint(self, folder: Path, model: nn.Module) -> None:
        """Write a checkpoint with its manifest, atomically: all ranks write into a temporary folder that is renamed."""
        writes, temporary = self.args.should_save, folder.parent / PART
        with ExitStack() as stack:
            self._all_or_none(folder, lambda: stack.enter_context(atomic_folder(folder)) if writes else None)
            self._all_or_none(folder, lambda: self._write_files(temporary, model))
            part = temporary / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"  # Transformers' name for it
            if self.state.best_model_checkpoint == str(part):
                self.state.best_model_checkpoint = str(folder)  # its path after the rename

            def finish() -> None:
                self.state.save_to_json(str(part / TRAINER_STATE_NAME))
                self.records.flush()
                seal(part)
                part.rename(temporary / folder.name)
                stack.close()

            self._all_or_none(folder, finish if writes else lambda: None)

    def _write_files(self, place: Path, model: nn.Module) -> None:
        self.checkpoint_parent, self._unwritten = place, None
        try:
            self.write_checkpoint_files(model)
        finally:
            self.checkpoint_parent = None
        if self._unwritten is not None:
            raise self._unwritten

    @contextmanager
    def io_deferred(self) -> Iterator[None]:
        """Defer I/O errors to the next collective, so that all ranks fail together."""
        try:
            yield
        except Exception as error:
            if not of_disk(error):
                raise
            self._unwritten = self._unwritten or error

    def _all_or_none(self, folder: Path, work: Callable[[], Any]) -> None:
        """Do this rank's part in writing a folder, and wait for the others; an I/O error is raised on all ranks."""
        errors = []
        try:
            work()
        except Exception as error:
            if not (isinstance(error, SaveError) or of_disk(error)):
                raise
            errors = [f"{self._rank}{error if isinstance(error, SaveError) else SaveError.at(folder, error)}"]
        if errors := self._gather(errors):
            raise SaveError(" ".join(errors))

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

    def save_weights(self, folder: Path, state_dict: dict[str, Tensor] | None) -> None:
        """Save the model in the format of `from_pretrained`, without the objective around it.

        Args:
            folder: The folder to write.
            state_dict: The weights, if they were gathered already.
        """
        if not self.args.should_save:
            return
        if state_dict is not None:
            # DeepSpeed gathers the weights under their names in the objective.
            (place,) = (name for name, module in self.objective.named_modules() if module is self.users_model)
            if all(name.startswith(f"{place}.") for name in state_dict):
                state_dict = {name.removeprefix(f"{place}."): value for name, value in state_dict.items()}
        with self.io_deferred() if self.checkpoint_parent else nullcontext():
            self.save_pretrained(folder, state_dict)  # does not write training_args.bin, which is a pickle

    def save_pretrained(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model and its tokenizer, if there is one, in the format of `from_pretrained`.

        All ranks must call this, because each may hold a shard; the main process writes.
        """
        if state_dict is None and hasattr(self.objective, "reshard"):
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state_dict = get_model_state_dict(self.users_model, options=whole)
        if not self.args.should_save:
            return
        saved, names = self.users_model, {}
        self.mark_model()
        if self.checkpoint_parent is not None and isinstance(saved, PreTrainedModel):
            # A checkpoint uses the names of weights in the model, for resuming; other folders use those of the Hub.
            names = {"save_original_format": False}
        edited = edited_card(Path(folder))  # PEFT writes a README.md of its own
        save_module(saved, folder, state_dict, **names)
        if not isinstance(saved, PreTrainedModel):
            self.trained.write(Path(folder))
        if (tokenizer := self._tokenizer_to_save) is not None:
            tokenizer.save_pretrained(folder)
        if self.checkpoint_parent is None:
            remove(Path(folder) / CERTIFIED_FILE)  # it belongs to the weights before
            put_card(Path(folder), trainer_card(self).text(), edited)

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
    def _tokenizer_to_save(self) -> Any:
        """The tokenizer, or a processor of another kind, that belongs to the model; None without one."""
        return self.processing_class or getattr(self.data_collator, "tokenizer", None)

    def create_model_card(self, *_: Any, **given: Any) -> None:
        """Write our model card in place of Transformers' or TRL's, unless a user has edited it.

        Args:
            **given: Of the arguments of both libraries ``model_name``, ``finetuned_from`` (the name on the Hub of the
                model that training started from), ``language``, ``license``, ``tags`` and ``dataset_tags``.
        """
        # TRL calls this for every checkpoint.
        if not self.is_world_process_zero() or (self.checkpoint_parent is not None and not self.args.push_to_hub):
            return
        known = {"language": given.get("language"), "license": given.get("license")}
        known |= {"tags": given.get("tags"), "datasets": given.get("dataset_tags")}
        card = trainer_card(self, given.get("model_name"), given.get("finetuned_from"), **known)
        self.args.folder.mkdir(parents=True, exist_ok=True)
        write_card(self.args.folder, card.text())

    @property
    def kept_step(self) -> int:
        """The step of the final model: that of the best checkpoint if it was loaded at the end, else the last step."""
        best = self.state.best_model_checkpoint
        if not self.args.load_best_model_at_end or best is None:
            return self.state.global_step
        return step_of(Path(best))

    def save_run_state(self, folder: Path) -> None:
        """Write this rank's state: multipliers, sums since the last log, generators and the best result so far."""
        state: dict[str, Any] = {
            "dual": self.dual.state_dict(),
            "since_log": self.since_log.numbers,
            "logged": self.logged.numbers,
            "best": self._best,
            "best_meets": self._best_meets,
            "seconds": self.seconds,
            "outlook": self._outlook.state_dict(),
            "processes": self.args.world_size,
        }
        for name, drawn in self._drawn.items():
            state[name] = drawn.state_dict()
        folder.mkdir(parents=True, exist_ok=True)
        save_state(folder / STATE_FILE.format(self.args.process_index), state)

    @property
    def _drawn(self) -> dict[str, Any]:
        """Name → the objects with their own random generator, whose state belongs to a checkpoint."""
        drawn = {"noise": self.objective.noise, "sample": self.objective.sample, "layer_skip": self.method.drawn}
        return {name: each for name, each in drawn.items() if each is not None}

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before an interruption."""
        return self._earlier + time.monotonic() - self._began
