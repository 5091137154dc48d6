"""Every private method of Transformers' and TRL's trainers that Descend overrides or calls.

They may change in any release. ``tests/training/test_hf_hooks.py`` compares their signatures with those of the
supported versions, and names a method that changed. Public methods that a subclass may not override are listed here;
``tests/training/test_extension_points.py`` names all public methods.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import DynamoBackend
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer

from descend.errors import InputError
from descend.objective import Objective
from descend.training.config import DescentArguments

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


def overriding(kind: type, name: str) -> list[type]:
    """The classes of a user's trainer that define a method, those first that Python looks at first."""
    packages = ("descend", "transformers", "trl")
    return [each for each in kind.__mro__ if name in vars(each) and each.__module__.partition(".")[0] not in packages]


def refuse_overrides(kind: type) -> None:
    """Raise an error for a user's trainer with a method that would never be called.

    Args:
        kind: The trainer's class.
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


class TrainerHooks(Trainer):
    """Transformers' `Trainer` with public names for its private methods; subclasses call and override these.

    ``model`` is the user's model throughout. What Accelerate prepares (wraps in DDP, shards by FSDP2, hands to
    DeepSpeed, runs in mixed precision) is the `Objective` around it, which is what ``compute_loss`` calls.
    """

    objective: Objective
    args: DescentArguments
    checkpoint_parent: Path | None = None
    """The temporary folder of the checkpoint that is being written; None otherwise."""

    # --- the user's model, and the objective around it

    @property
    def users_model(self) -> Any:
        """The model that is trained and saved, without the objective around it.

        Under FSDP2 its parameters are shards, which are gathered inside the objective's forward pass and evaluations.
        """
        return self.objective.model.saved

    def create_accelerator_and_postprocess(self) -> None:
        """As in Transformers, but Accelerate prepares the objective around the model instead of the model."""
        super().create_accelerator_and_postprocess()
        accelerator: Any = self.accelerator
        prepare, prepare_model = accelerator.prepare, accelerator.prepare_model

        def around(each: Any) -> Any:
            return self.objective if each is self.model else each

        plugin = accelerator.state.dynamo_plugin
        compiles = plugin.backend != DynamoBackend.NO and not plugin.use_regional_compilation
        if compiles:
            self.args.check_compilable()
            self.objective.compile(**plugin.to_kwargs())

        @contextmanager
        def uncompiled() -> Iterator[None]:
            """Keep Accelerate from compiling the whole objective, whose weights change at every step."""
            backend = plugin.backend
            plugin.backend = DynamoBackend.NO if compiles else backend
            try:
                yield
            finally:
                plugin.backend = backend

        def prepare_objects(*objects: Any, **options: Any) -> Any:
            with uncompiled():
                return prepare(*map(around, objects), **options)

        def prepare_around(model: nn.Module, **options: Any) -> Any:
            with uncompiled():
                return prepare_model(around(model), **options)

        accelerator.prepare, accelerator.prepare_model = prepare_objects, prepare_around

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
        return prepared

    def _keep_users_model(self) -> None:
        """Put the user's model back: under FSDP Transformers sets ``model`` to what Accelerate prepared."""
        self.model = self.callback_handler.model = self.users_model

    # --- the loop

    def has_steps_left(self) -> bool:
        """Whether another epoch is to begin."""
        raise NotImplementedError

    def _run_epoch(self, **kwargs: Any) -> None:  # type: ignore[override]
        if self.has_steps_left():
            super()._run_epoch(**kwargs)

    def ordered(self, sampler: Any) -> Any:
        """The training sampler to use in place of Transformers'."""
        raise NotImplementedError

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self.ordered(super()._get_train_sampler(train_dataset))

    def check_step(self, model: nn.Module, norm: Any) -> None:
        """Look at the gradient's norm before the optimizer's step; an exception stops it."""
        raise NotImplementedError

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.check_step(model, norm)
        return norm

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

    # --- the choice of the best model

    def is_best(self, metrics: dict[str, float]) -> bool:
        """Whether an evaluated model is the best so far."""
        raise NotImplementedError

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if not self.is_best(metrics):
            return False
        self.state.best_metric = None  # otherwise Transformers would compare again, by the metric only
        return super()._determine_best_metric(metrics, trial)

    def load_best(self) -> None:
        """Load the best model at the end of training."""
        raise NotImplementedError

    def _load_best_model(self) -> None:
        self.load_best()

    # --- writing a checkpoint

    def save_checkpoint(self, model: nn.Module) -> None:
        """Save a checkpoint of this step."""
        raise NotImplementedError

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.save_checkpoint(model)

    def write_checkpoint_files(self, model: nn.Module) -> None:
        """Write Transformers' files of a checkpoint, below `checkpoint_parent`."""
        super()._save_checkpoint(model, None)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self.checkpoint_parent is None else str(self.checkpoint_parent)

    def push_checkpoint(self, folder: Path) -> None:
        """Push a checkpoint to the Hub."""
        super()._push_from_checkpoint(str(folder))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Does nothing: `push_checkpoint` is called after the checkpoint is renamed."""

    def save_weights(self, folder: Path, state_dict: dict[str, Tensor] | None) -> None:
        """Write the model; ``state_dict`` holds its weights if they were gathered already."""
        raise NotImplementedError

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        self.save_weights(Path(output_dir or str(self.args.output_dir)), state_dict)

    def save_run_state(self, folder: Path) -> None:
        """Write Descend's files of a checkpoint."""
        raise NotImplementedError

    def io_deferred(self) -> AbstractContextManager[None]:
        """Defer I/O errors inside the ``with`` block to the next collective, so that all ranks fail together."""
        raise NotImplementedError

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self.io_deferred():
            self.save_run_state(Path(output_dir))
        with self.io_deferred():
            super()._save_optimizer_and_scheduler(output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        with self.io_deferred():
            super()._save_rng_state(output_dir)

    # --- reading a checkpoint

    def load_weights(self, checkpoint: str) -> None:
        """Load the model's weights from a checkpoint."""
        super()._load_from_checkpoint(checkpoint, self.users_model)

    def weights_loaded(self, checkpoint: str) -> None:
        """Called after training has loaded the weights that it resumes from."""
        raise NotImplementedError

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.load_weights(resume_from_checkpoint)
        self.weights_loaded(resume_from_checkpoint)

    def check_loaded(self, missing: list[str], unexpected: list[str]) -> None:
        """Check the names of weights that only the checkpoint or only the model has."""
        raise NotImplementedError

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        self.check_loaded(load_result.missing_keys, load_result.unexpected_keys)

    def state_restored(self, checkpoint: str) -> None:
        """Called when Transformers has read its state from the checkpoint that training resumes from."""
        raise NotImplementedError

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
            self.state_restored(resume_from_checkpoint)
        return trained

    def load_run_state(self, checkpoint: str) -> None:
        """Restore the state that `save_run_state` wrote."""
        raise NotImplementedError

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        self._keep_users_model()
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.load_run_state(checkpoint)


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

    @property
    def text_tokenizer(self: Any) -> Any:
        """The tokenizer; for a processor, the one inside it."""
        return self._tokenizer
