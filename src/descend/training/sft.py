"""DescentSFTTrainer: TRL's SFTTrainer under layerwise descent constraints."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
from trl.trainer.utils import create_model_from_path

from descend.core import LossSums
from descend.errors import InputError, reason, refuse
from descend.evaluation.layers import LayerLosses, WatchRows
from descend.models import LayeredCausalLM, changed, refuse_claims, refuse_unsafe
from descend.noise import Noise
from descend.settings import SFTSettings
from descend.tasks.base import GROUP
from descend.tasks.text import NextToken
from descend.tiles import TargetSample, entropies
from descend.training import DescentMixin
from descend.training.config import DescentArguments
from descend.training.hf_hooks import SFTHooks, refuse_arguments


@dataclass
class DescentSFTConfig(SFTSettings, DescentArguments, SFTConfig):
    """TRL's `SFTConfig` with the settings of the constrained problem.

    Every argument of TRL's trainer keeps its name and meaning.
    """

    library: ClassVar[type] = SFTConfig

    @classmethod
    def of(cls, args: TrainingArguments | None) -> Self:
        """Convert arguments to this class; those of Transformers get TRL's defaults for the rest."""
        if isinstance(args, DescentArguments) and not isinstance(args, SFTConfig):
            raise InputError(
                f"args must be a DescentSFTConfig, or TRL's SFTConfig; got a {type(args).__name__}. DescentSFTConfig "
                "takes the same settings."
            )
        if args is not None and not isinstance(args, SFTConfig):
            args = SFTConfig(**args.to_dict() | {"hub_token": args.hub_token})
        return super().of(args)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check()  # again: `__post_init__` has parsed JSON values since the first check

    def _check(self) -> None:
        super()._check()
        checkpointing = self.gradient_checkpointing_kwargs
        refuse(
            (
                self.loss_type not in ("nll", "chunked_nll"),  # the same loss, by TRL's older name
                f"loss_type must be nll, the same loss at every layer; got {self.loss_type!r}.",
            ),
            (self.trust_remote_code, "trust_remote_code must be off: no code of a model or a tokenizer is run."),
            (
                isinstance(checkpointing, dict) and bool(checkpointing.get("use_reentrant")),
                "gradient_checkpointing_kwargs must leave use_reentrant off: no gradient would reach the inner exits.",
            ),
        )


class DescentSFTTrainer(DescentMixin, SFTHooks, SFTTrainer):
    """TRL's `SFTTrainer` under layerwise descent constraints.

    Data sets, chat templates, packing and adapters work as in TRL. Every layer's output is read by the model's final
    norm and head, one tile of logits at a time. λ, slack, layer losses and violations are logged, and written to
    ``records.jsonl`` in the output folder. `evaluate` measures every layer at the training noise.

    Args:
        model: A causal language model, with or without PEFT adapters, or its name or folder.
        args: A `DescentSFTConfig`, or TRL's `SFTConfig` for the default problem.
        *others: Further positional arguments of `SFTTrainer`.
        noise: Noise on the word embeddings; a number is the level γ of Gaussian noise. None for no noise.
        **kwargs: Further arguments of `SFTTrainer`: ``train_dataset``, ``eval_dataset``, ``processing_class``,
            ``peft_config`` …

    Raises:
        InputError: If the model, the arguments or a sample can't be used.
        NonFiniteLossError: During training, before the optimizer step, if a layer's loss is NaN or infinite.
    """

    args: DescentSFTConfig
    other_sums = 4
    other_metrics = ("entropy", "mean_token_accuracy", "num_tokens")

    def _other_logs(self, sums: LossSums) -> dict[str, float]:
        """TRL's log entries: the last exit's mean token accuracy and entropy, and the tokens since training began."""
        right, entropy, targets, _ = sums.others.tolist()  # the losses' own counts begin again after a warm-up
        return _of_trl(right / max(targets, 1), entropy / max(targets, 1), self.step.logged.others[3].item())

    def _watch_rows(self) -> WatchRows | None:
        """Keep the entropy of the last exit."""
        self._entropy: list[Tensor] = []
        return lambda logits: self._entropy.append(entropies(logits).cpu().double())

    def _further_metrics(self, layers: LayerLosses) -> dict[str, float]:
        entropy = torch.cat(self._entropy).mean().item()
        tokens = (self.step.logged.others + self.ranks.sum(self.step.since_log.others))[3].item()
        return _of_trl(layers.metrics[-1], entropy, tokens)

    def __init__(
        self,
        model: nn.Module | str | None = None,
        args: TrainingArguments | None = None,
        *others: Any,
        noise: Noise | float | None = None,
        **kwargs: Any,
    ):
        args = DescentSFTConfig.of(args)
        refuse_arguments(type(self), args, kwargs)
        if model is None:
            raise InputError("expected a model, or its name or folder; got None.")
        if args.eval_packing is None:  # off by default: a text's noise must not depend on its neighbours in a row
            args.eval_packing = False
        if isinstance(model, str):
            model = _loaded(model, args)
            args.model_init_kwargs = None
        given: Any = getattr(model, "saved", model)  # a layered model's own module
        layered = LayeredCausalLM(given)  # raises if the model is not supported
        model, base = layered.saved, layered.library
        head = base.get_output_embeddings()
        forward = {name: value for name, value in vars(base).items() if name == "forward"}
        # TRL refuses an adapter on the head, which its fused loss can't apply; ours calls the head.
        with changed(base, get_output_embeddings=lambda: getattr(head, "base_layer", head)):
            try:
                super(DescentMixin, self).__init__(model, args, *others, **kwargs)  # type: ignore[arg-type]
            except (ValueError, TypeError) as error:
                raise error if isinstance(error, InputError) else InputError(reason(error)) from error
        # TRL replaces the model's forward pass by a fused loss of the last layer: restore the original.
        vars(base).pop("forward", None)
        vars(base).update(forward)
        sample = TargetSample(args.exit_share, args.seed) if args.exit_share < 1 else None
        self._constrain(args, self.model, None, noise, sample)  # type: ignore[arg-type]
        self.objective.watches_tokens = True
        self._ready()

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """As `DescentTrainer.evaluate`; TRL prepares the data sets as in training."""
        if eval_dataset is not None and not isinstance(eval_dataset, str):
            prepared = {name: self.prepared(data, name) for name, data in self.evaluated(eval_dataset).items()}
            eval_dataset = prepared if isinstance(eval_dataset, dict) else prepared[""]
        return DescentMixin.evaluate(self, eval_dataset, ignore_keys, metric_key_prefix)

    def evaluation_columns(self, dataset: Any) -> Any:
        """An evaluation set without unused columns; rows without tokens, such as prompts, are prepared by TRL first."""
        prepared = dataset if "input_ids" in dataset.column_names else self.prepared(dataset, "")
        return super().evaluation_columns(prepared)

    def evaluation_collator(self) -> Any:
        """As in training, with groups, and padded if training is padding-free: each text is a row with own noise."""
        if self.padding_free and not self.args.eval_packing:
            collate: Any = DataCollatorForLanguageModeling(pad_token_id=self.text_tokenizer.pad_token_id)
        else:
            collate = super().evaluation_collator()
        return partial(NextToken.grouped, collate)

    def columns(self) -> list[str] | None:
        """TRL's, and groups."""
        return ["input_ids", "labels", "seq_lengths", GROUP]


def _loaded(name: str, args: DescentSFTConfig) -> nn.Module:
    given: dict[str, Any] = dict(args.model_init_kwargs or {})  # type: ignore[arg-type]
    if given.get("trust_remote_code"):
        raise InputError("model_init_kwargs must leave trust_remote_code off: no model's own code is run.")
    try:
        refuse_unsafe(name)
        refuse_claims(AutoModelForCausalLM, name)
        return create_model_from_path(name, **given | {"trust_remote_code": False, "use_safetensors": True})
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"can't load a model from {name!r}: expected a folder with config.json and model.safetensors, or a name on "
            f"the Hub, which needs a network at first. {reason(error)}"
        ) from None


def _of_trl(accuracy: float, entropy: float, tokens: float) -> dict[str, float]:
    return {"mean_token_accuracy": accuracy, "entropy": entropy, "num_tokens": tokens}
