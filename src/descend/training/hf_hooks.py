"""Every private method of Transformers' and TRL's trainers that Descend overrides or calls.

They may change in any release. Public methods that a subclass may not override are listed here;
``tests/training/test_extension_points.py`` names all public methods, and all private ones that this file uses.
"""

import inspect
import json
import logging
import os
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from accelerate.utils import DynamoBackend
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy, has_length

from descend.errors import InputError, NonFiniteLossError, refuse
from descend.models import changed, tied_names
from descend.objective import Objective
from descend.results import CERTIFIED_FILE, Records, merged_folder, of_disk, remove
from descend.seeds import Stream, generator_of
from descend.training.checkpoints import STOPPED, Checkpoints, rotate, step_of, way_on
from descend.training.checks import overriding, tell_idle_heads
from descend.training.config import DescentArguments
from descend.training.loader import Loader
from descend.training.ranks import Ranks
from descend.training.saving import without_prefix
from descend.training.selection import Selection
from descend.training.step import Step

logger = logging.getLogger(__name__)

NEVER_CALLED = {
    "call_model_init": "there is no model_init. Give the trainer a model.",
    "create_optimizer_and_scheduler": "Transformers calls create_optimizer and create_scheduler. Override these.",
    "evaluation_loop": "evaluate measures every layer and does not call it. Override evaluate, and call "
    "super().evaluate(); get_eval_dataloader; or add a callback.",
    "prediction_step": "evaluate measures every layer by the task. Give the loss as task=..., and change the last "
    "layer's predictions in preprocess_logits_for_metrics or compute_metrics.",
}
"""Public methods that a subclass may not override, because they are never called, and what to do instead."""

REPLACED = ("compute_loss", "create_model_card", "evaluate")
"""Public methods that Descend replaces: those of a base class that comes after `TrainerHooks` are never called."""


def refuse_arguments(kind: type, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise an error for what this training loop does not support, and for a method that would never be called.

    Args:
        kind: The trainer's class, perhaps a user's.
        args: The training arguments.
        kwargs: The arguments of Transformers' constructor.
    """
    for name, advice in NEVER_CALLED.items():
        for each in overriding(kind, name):
            raise InputError(f"{each.__name__}.{name} would never be called: {advice}")
    behind = kind.__mro__[kind.__mro__.index(TrainerHooks) :]
    for name in REPLACED:
        for each in set(overriding(kind, name)) & set(behind):
            raise InputError(
                f"{each.__name__}.{name} would never be called, because Descend's comes first. Name that class first: "
                f"class {kind.__name__}({each.__name__}, …)."
            )
    for each in overriding(kind, "compute_loss"):
        taken = inspect.signature(attrgetter("compute_loss")(each), follow_wrapped=False).parameters
        if not ("num_items_in_batch" in taken or any(one.kind is one.VAR_KEYWORD for one in taken.values())):
            raise InputError(
                f"{each.__name__}.compute_loss must take num_items_in_batch, as in Transformers: def "
                "compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None)."
            )
    started = int(os.environ.get("WORLD_SIZE", "1"))
    refuse(
        (
            args.world_size > 1 and bool(overriding(kind, "get_eval_dataloader")),
            "get_eval_dataloader can't be overridden where there are several processes: each one measures all "
            "samples, and a loader may divide them. Give the data as eval_dataset and the batches' data_collator.",
        ),
        (
            kwargs.get("model_init") is not None,
            "expected a model; got model_init, which makes one for each trial. Give the trainer a model: "
            "model=model_init().",
        ),
        (
            kwargs.get("compute_loss_func") is not None,
            "compute_loss_func must be left out: the loss is the task's. Give a task of your own.",
        ),
        (
            "inputs" in (args.include_for_metrics or ()),
            "include_for_metrics can't hold inputs: those of a text differ in length. Leave it out.",
        ),
        (
            started > 1 and args.world_size == 1,
            f"{started} processes were started, and none knows of the others: there is no GPU for each. Add "
            "--use-cpu (use_cpu=True) to train on CPUs.",
        ),
        (
            args.n_gpu > 1,
            f"one process must have one GPU; got {args.n_gpu}. Start one process for each with torchrun, or choose "
            "one by CUDA_VISIBLE_DEVICES=0.",
        ),
    )


class LengthGrouped(LengthGroupedSampler):
    """Groups samples of similar length, with an order from its own generator.

    Transformers draws the order from the global generator, which dropout uses too: a resumed run would have another
    order.
    """

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths)
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch."""
        self.generator = generator_of(Stream.ORDER, self.seed, epoch)


class TrainerHooks(Trainer):
    """Transformers' `Trainer` around the objective, with checkpoints that are atomic and hold the run's full state.

    ``model`` is the user's model throughout. What Accelerate prepares (wraps in DDP, shards by FSDP2, hands to
    DeepSpeed, runs in mixed precision) is the `Objective` around it, which is what ``compute_loss`` calls.
    """

    args: DescentArguments
    objective: Objective
    ranks: Ranks
    step: Step
    loader: Loader
    checkpoints: Checkpoints
    selection: Selection
    records: Records

    @property
    def users_model(self) -> Any:
        """The model that is trained and saved, without the objective around it.

        Under FSDP2 its parameters are shards, which are gathered inside the objective's forward pass and evaluations.
        """
        return self.objective.model.saved

    # --- the user's model, and the objective around it

    def create_accelerator_and_postprocess(self) -> None:
        """As in Transformers, but Accelerate prepares the objective around the model instead of the model."""
        super().create_accelerator_and_postprocess()
        if is_deepspeed_zero3_enabled():
            raise InputError(
                "ZeRO's stage 3 keeps parameters apart outside the modules' own calls, and every layer is read there. "
                "Choose stage 2, or FSDP2."
            )
        accelerator: Any = self.accelerator
        plugin = accelerator.state.dynamo_plugin
        compiles = plugin.backend != DynamoBackend.NO and not plugin.use_regional_compilation
        if compiles:
            self.args.check_compilable()
            self.objective.compile(**plugin.to_kwargs())

        def around(prepare: Callable[..., Any]) -> Callable[..., Any]:
            """Prepare the objective in place of the model, and not compiled as a whole: its weights change."""

            def prepared(*objects: Any, **options: Any) -> Any:
                with changed(plugin, backend=DynamoBackend.NO if compiles else plugin.backend):
                    return prepare(*(self.objective if each is self.model else each for each in objects), **options)

            return prepared

        accelerator.prepare, accelerator.prepare_model = around(accelerator.prepare), around(accelerator.prepare_model)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: DataLoader | None = None) -> Any:
        if not training:
            return self.objective  # evaluation reads the objective directly; nothing to prepare
        # After an earlier `train` without a wrapper `model_wrapped` is the objective: prepare it again.
        return self.model if model is self.objective else super()._wrap_model(model, training, dataloader)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None
    ) -> tuple[nn.Module, DataLoader]:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self._keep_users_model()
        if not self.state.global_step:
            self.begin_run()
        return prepared

    @abstractmethod
    def begin_run(self) -> None:
        """Begin a run that does not resume another."""

    def _keep_users_model(self) -> None:
        """Put the user's model back: under FSDP Transformers sets ``model`` to what Accelerate prepared."""
        self.model = self.callback_handler.model = self.users_model

    # --- the loop

    def _run_epoch(self, **kwargs: Any) -> None:  # type: ignore[override]
        # Resumed after the last step, Transformers would take one step more.
        if self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            super()._run_epoch(**kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Transformers' sampler; one that groups by length is replaced by one that depends on seed and epoch only."""
        sampler = super()._get_train_sampler(train_dataset)
        if not isinstance(sampler, LengthGroupedSampler):
            return sampler
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return LengthGrouped(sampler.batch_size * self.args.world_size, sampler.lengths, seed)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip own exits apart, so that they change no step of the model; returns its norm before."""
        if not self.objective.own:
            return super()._clip_grad_norm(model)
        own = list(self.objective.model.own_exits.parameters())
        apart = {id(parameter) for parameter in own}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in apart]
        norm = self.accelerator.clip_grad_norm_(rest, self.args.max_grad_norm)
        of_own = nn.utils.clip_grad_norm_(own, self.args.max_grad_norm)
        return norm if bool(getattr(of_own, "full_tensor", lambda: of_own)().isfinite()) else of_own

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The gradient's norm, called just before the optimizer's step, which an error stops."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        step = self.state.global_step
        if self.step.fails(norm):
            loader, data = self.callback_handler.train_dataloader, self.train_dataset
            samples = partial(self.loader.samples, loader, data, self.state)
            self.step.stop(step, samples, partial(self._keep_state_before, model))
            return norm
        # DeepSpeed keeps gradients elsewhere; where the last exit has no weight yet, later layers have no gradient.
        looks = not step and self.ranks.is_main and not self.is_deepspeed_enabled
        if looks and self.step.method.weights(step, self.state.max_steps)[-1]:
            tell_idle_heads(self.objective.model)
        return norm

    def _keep_state_before(self, model: nn.Module) -> str:
        """Save the state before a step that failed, if it can be of use, and say what was done."""
        step, folder = self.state.global_step, self.args.folder
        saved = self.ranks.from_main((folder / f"{PREFIX_CHECKPOINT_DIR}-{step}").exists)
        if not self.ranks.all_finite(self.objective.parameters()):
            state = "; they were not all finite before it"
        elif step and self.args.save_strategy != SaveStrategy.NO and not saved:
            # Not saved as a checkpoint: rotation would delete an earlier one, which is a better start after divergence.
            self.write_checkpoint(folder / f"{STOPPED}{step}", model)
            state = f", and the state before it is saved in {STOPPED}{step}"
        else:
            state = ""
        return f"No parameter has moved in this step{state}."

    def _finalize_training(self, *given: Any) -> Any:
        """As in Transformers, which deletes all checkpoints but the best one here, whoever wrote them."""
        self.checkpoints.stop_clock()
        with changed(self.args, save_total_limit=None):  # `rotate` has kept to it, and to the newest
            return super()._finalize_training(*given)

    def on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Move a batch to the model's device."""
        return self._prepare_inputs(batch)

    # --- columns

    def columns(self) -> list[str] | None:
        """The columns of a data set that are used; None for Transformers' choice."""
        return None

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns: Any = self.columns() or self._signature_columns

    def evaluation_columns(self, dataset: Any) -> Any:
        """An evaluation set without unused columns."""
        return self._remove_unused_columns(dataset, "evaluation")

    def evaluation_collator(self) -> Any:
        """The collator for evaluation, which drops unused columns."""
        return self._get_collator_with_removed_columns(self.data_collator, "evaluation")

    # --- writing a checkpoint

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save a checkpoint and delete old ones.

        Raises:
            NonFiniteLossError: If a parameter is not finite; nothing is saved.
        """
        run = self.args.folder
        if not self.ranks.all_finite(self.objective.parameters()):
            raise NonFiniteLossError(
                f"step {self.state.global_step}: parameters are no longer finite, and are not saved. "
                f"{way_on(run, self.ranks)}"
            )
        checkpoint = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self.write_checkpoint(checkpoint, model)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))
        if self.args.should_save:
            rotate(run, self.args.save_total_limit, self.state.best_model_checkpoint)

    def write_checkpoint(self, folder: Path, model: nn.Module) -> None:
        """Write a checkpoint, see `Checkpoints.write`.

        Raises:
            SaveError: On all ranks, if one can't write its part.
        """
        save = partial(super()._save_checkpoint, model, None)
        self.checkpoints.write(folder, self.state, save, self.records.flush)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self.checkpoints.parent is None else str(self.checkpoints.parent)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.checkpoints.parent is None:  # Transformers pushes before the folder is put in place
            super()._push_from_checkpoint(checkpoint_folder)

    @abstractmethod
    def save_pretrained(self, folder: Path, state_dict: dict | None = None) -> None:
        """Write the model in the format of `from_pretrained`."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Save the model in the format of `from_pretrained`, without training_args.bin, which is a pickle."""
        if not self.args.should_save:
            return
        if state_dict is not None:
            state_dict = without_prefix(self.objective, state_dict)
        folder = Path(output_dir or str(self.args.output_dir))
        try:
            if self.checkpoints.parent is not None:
                self.save_pretrained(folder, state_dict)
                return
            with merged_folder(folder) as part:
                self.save_pretrained(part, state_dict)
            remove(folder / CERTIFIED_FILE)  # it belongs to the weights before
        except Exception as error:
            if self.checkpoints.parent is None or not of_disk(error):
                raise
            self.checkpoints.unwritten = error  # the other ranks are on their way to a collective: fail behind it

    # --- reading a checkpoint

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, self.users_model)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise an error if the weights are those of another model; a tied weight may be missing."""
        saved = self.users_model
        left_out = {*(getattr(saved, "all_tied_weights_keys", None) or ()), *tied_names(saved)}
        left_out |= {*(getattr(saved, "_keys_to_ignore_on_save", None) or ())}
        strange = sorted({*load_result.missing_keys, *load_result.unexpected_keys} - left_out)
        if strange:
            raise InputError(f"the checkpoint is that of another model: they do not share {', '.join(strange[:3])}.")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        self._keep_users_model()
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.checkpoints.load(checkpoint)
            self.temperature = 1.0  # a checkpoint's model is not calibrated

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        trained = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is not None:
            # The run's folder may have been moved.
            state = json.loads((Path(resume_from_checkpoint) / TRAINER_STATE_NAME).read_text())
            if name := Path(state["best_model_checkpoint"] or "").name:
                self.state.best_model_checkpoint = str(self.args.folder / name)
            if self.args.load_best_model_at_end and self.state.best_model_checkpoint != resume_from_checkpoint:
                self._forget_damaged_best("The best model is chosen from later ones.")
            if self.ranks.is_main:
                self.records.truncate_after(self.state.global_step)
        return trained

    # --- the best model

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if not self.selection.is_best(metrics, self.state.best_metric):
            return False
        self.state.best_metric = None  # otherwise Transformers would compare again, by the metric only
        return super()._determine_best_metric(metrics, trial)

    def _load_best_model(self) -> None:
        """Load the best model, with its verdict and the multipliers of its checkpoint."""
        self._forget_damaged_best("The last model is used instead.")
        best = self.state.best_model_checkpoint
        if best is not None:
            self._load_from_checkpoint(best)
            self.step.dual.load_state_dict(self.checkpoints.read(best)["dual"])
            self.selection.loaded(step_of(Path(best)))

    def _forget_damaged_best(self, instead: str) -> None:
        """Rename a best checkpoint that is damaged or missing, and warn; the run goes on."""
        best = self.state.best_model_checkpoint
        if best is not None and self.checkpoints.rename_damaged_best(Path(best), instead):
            self.state.best_model_checkpoint = self.state.best_metric = self.state.best_global_step = None
            self.selection.best_meets = False


class SFTHooks:
    """TRL's `SFTTrainer` with public names for its private methods and attributes."""

    def prepared(self: Any, dataset: Any, name: str) -> Any:
        """An evaluation set tokenized (and packed) by TRL; unchanged if the arguments skip TRL's preparation."""
        if self._skip_prepare_dataset:
            return dataset
        packing = self.args.packing if self.args.eval_packing is None else self.args.eval_packing
        return self._prepare_dataset(
            dataset, self.processing_class, self.args, packing, self._formatting_func, name or "eval"
        )

    def _send_telemetry(self: Any) -> None:
        """Tell nobody that somebody trains."""

    def _prepare_dataset(
        self: Any, dataset: Any, processing_class: Any, args: Any, packing: bool, formatting_func: Any, name: str
    ) -> Any:
        """As TRL, but what ``max_length`` cuts off is said, and refused where no row has a target left."""
        found: Any = super()._prepare_dataset(dataset, processing_class, args, packing, formatting_func, name)  # type: ignore[misc]
        longest = args.max_length
        if longest is None or packing or not all(map(has_length, (dataset, found))):
            return found
        rows, without = len(dataset), len(dataset) - len(found)
        if without == rows > 0:
            raise InputError(
                f"max_length={longest} cuts off the answer of all {rows} rows of the {name} data set, so that nothing "
                "is left to learn. Give a larger max_length."
            )
        cut = without + sum(len(ids) >= longest for ids in found["input_ids"])
        if (without or (cut and "input_ids" not in dataset.column_names)) and args.should_log:
            logger.warning(
                "%s data: %d of %d texts reach max_length=%d and are cut there; %d of them lose their whole answer and "
                "are left out.",
                *(name, cut, rows, longest, without),
            )
        return found

    @property
    def text_tokenizer(self: Any) -> Any:
        """The tokenizer; for a processor, the one inside it."""
        return self._tokenizer
