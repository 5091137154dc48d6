"""The private methods of Transformers' and TRL's trainers that Descend overrides or calls, each in this file alone.

Transformers promises nothing about them. ``tests/training/test_hf_hooks.py`` freezes their signatures and says for
which versions; a release that changes one fails there, by name, before it fails anywhere else.
"""

from typing import Any

from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer

from descend.objective import Objective


class TrainerHooks(Trainer):
    """Transformers' `Trainer`, its private methods called and overridden under public names.

    ``model`` is the user's model throughout. What Accelerate prepares (wraps in DDP, shards by FSDP2, hands to
    DeepSpeed, runs in mixed precision) is the `Objective` around it, which is what ``compute_loss`` calls.
    """

    objective: Objective

    @property
    def users_model(self) -> Any:
        """The model that is trained and saved, without the objective around it."""
        return self.objective.model.saved

    def create_accelerator_and_postprocess(self) -> None:
        """As in Transformers; where Accelerate is given the model, it prepares the objective around it."""
        super().create_accelerator_and_postprocess()
        accelerator: Any = self.accelerator
        prepare, prepare_model = accelerator.prepare, accelerator.prepare_model

        def around(each: Any) -> Any:
            return self.objective if each is self.model else each

        accelerator.prepare = lambda *objects, **options: prepare(*map(around, objects), **options)
        accelerator.prepare_model = lambda model, **options: prepare_model(around(model), **options)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: DataLoader | None = None) -> Any:
        if not training:
            return self.objective  # predictions are read from it; there is nothing to prepare
        # What is not prepared yet, or was in an earlier `train` without a wrapper, is to be prepared.
        return self.model if model is self.objective else super()._wrap_model(model, training, dataloader)

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None
    ) -> tuple[nn.Module, DataLoader]:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self._keep_users_model()
        return prepared

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        self._keep_users_model()
        super()._load_optimizer_and_scheduler(checkpoint)

    def _keep_users_model(self) -> None:
        """Under FSDP Transformers replaces ``model`` by what Accelerate prepared: put the user's back."""
        self.model = self.callback_handler.model = self.users_model
