"""The base recipe of instruction tuning of causal language models."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from descend.declared import SMALL, Allowed, Count, PromptLength, setting
from descend.errors import InputError, reason
from descend.recipes.base import Collate, Data, Recipe, check_words, config_of, load_pretrained, tell
from descend.settings import PRETRAINED_DUAL, SFTSettings

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

    from descend.models import LayeredCausalLM, LayeredModel
    from descend.run.run import Run
    from descend.tasks.text import NextToken
    from descend.training.sft import DescentSFTConfig, DescentSFTTrainer


# TRL's settings for preparing the data, which the recipe does itself.
_PREPARED = {
    *("completion_only_loss", "assistant_only_loss", "dataset_text_field", "dataset_kwargs", "dataset_num_proc"),
    *("eos_token", "pad_token", "chat_template_path", "model_init_kwargs", "truncation_mode"),
}


@dataclass(frozen=True)
class LanguageRecipe(Recipe):
    """The base recipe of instruction tuning: a language model learns the answers to prompts, token by token.

    With ``lora``, such as ``q_proj,v_proj,lm_head``, adapters on these modules are trained and nothing else.
    """

    in_paper = True
    data_help = "FILE, .json or .jsonl in Alpaca's form"
    packages = ("trl", "peft")

    data: str = field(kw_only=True, metadata={"help": "Alpaca's .json or .jsonl, or: generated"})
    tokenizer: str | None = setting(None, "folder or Hub name [the model's, or learned]")
    max_length: PromptLength = setting(256, "longest prompt with its answer, in tokens")
    lora: str | None = setting(None, "modules of adapters: q_proj,v_proj [all weights]")
    lora_rank: Count = setting(8, "rank of the adapters")
    validation_share: Annotated[float, Allowed("lie between 0 and 0.5", lambda value: 0 < value < 0.5)] = setting(
        0.1, "share to validate on, as much to test on"
    )

    model: ClassVar[str]
    """Its model; a setting of each recipe."""

    arguments_kind = SFTSettings
    training = Recipe.training | {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "bf16": False,
        "activation_checkpointing": False,
    }
    pretrained: ClassVar[dict[str, Any]] = training | {"learning_rate": 2e-5, "dual_optim_args": PRETRAINED_DUAL}

    @classmethod
    def arguments(cls) -> type[DescentSFTConfig]:
        """TRL's, and the problem."""
        from descend.training.sft import DescentSFTConfig

        return DescentSFTConfig

    def _config(self) -> PreTrainedConfig:
        """The configuration of the pretrained model, which takes texts as long as they may be."""
        from descend.models import causal, check_family

        config = config_of(self.model)
        check_family(config, causal.FAMILIES)
        if self.max_length > config.max_position_embeddings:
            raise InputError(
                f"{self.model} takes texts of at most {config.max_position_embeddings} tokens; got --max-length "
                f"{self.max_length}."
            )
        return config

    @property
    def label(self) -> str:
        """The model's name in tables, such as Llama-6; a pretrained model's is that of its architecture."""
        if self.model == SMALL:
            return super().label
        return f"{type(self._config()).__name__.removesuffix('Config')}-{self.depth}"

    @property
    def defaults(self) -> dict[str, Any]:
        """Training arguments of these settings: small steps for a pretrained model, larger ones for adapters.

        Adapters share one readout, because own exits would not be saved beside them.
        """
        if self.model == SMALL:
            return self.training
        return LanguageRecipe.pretrained | {"learning_rate": 2e-4} if self.lora else self.pretrained

    def load(self, model: LayeredModel | None = None, tokenizer: Any = None) -> Data:
        """Load and tokenize the instructions and answers."""
        from descend.tasks.splits import split_groups
        from descend.tasks.text import (
            Instructions,
            by_prompt,
            generate_instructions,
            read_instructions,
            tokenize_instructions,
        )

        given = read_instructions(self.source) if self.source is not None else generate_instructions()
        rows = given.rows
        count = round(len(rows) * self.validation_share)
        prompts = list(zip(rows["instruction"], rows["input"], strict=True))
        parts = dict(zip(("validation", "test", "train"), split_groups(prompts, [count, count]), strict=True))
        if count < 2 or min(map(len, parts.values())) < 2:
            raise InputError(
                f"validation and test need at least 2 rows each, and training others; got {count} of {len(rows)} rows "
                f"with {len(set(prompts))} different prompts. Give more."
            )
        sides = {side: rows.select(parts[side]) for side in ("train", "validation", "test")}
        tokenizer = tokenizer if model is not None else self._tokenizer(sides["train"])
        skipped, tokenized, cut = Counter(given.skipped), {}, 0
        for side, part in sides.items():
            encoded = tokenize_instructions(by_prompt(Instructions(part, {})), tokenizer, self.max_length)
            tokenized[side] = encoded.rows
            skipped.update(encoded.skipped)
            cut += encoded.cut
            if len(tokenized[side]) < 2:
                raise InputError(f"no two prompts of the {side} rows leave room for an answer. Raise --max-length.")
        name = "generated instructions" if self.source is None else Path(self.source).stem
        return Data(
            **tokenized,
            name=name,
            tokenizer=tokenizer,
            notes=self._notes(skipped, cut, sum(map(len, tokenized.values()))),
        )

    def load_test(self, data: str, model: LayeredModel, tokenizer: Any) -> tuple[Dataset, str]:
        """Load all rows of another file, and its name."""
        from descend.tasks.text import by_prompt, read_instructions, tokenize_instructions

        rows, skipped, cut = tokenize_instructions(by_prompt(read_instructions(data)), tokenizer, self.max_length)
        if len(rows) < 2:
            raise InputError(f"{data} has no two prompts that leave room for an answer in {self.max_length} tokens.")
        name = " ".join([Path(data).stem, *(f"({note})" for note in self._notes(skipped, 0, 0))])
        tell(name, *self._notes({}, cut, len(rows)))
        return rows, name

    def _notes(self, skipped: dict[str, int], cut: int, rows: int) -> tuple[str, ...]:
        """Which rows are left out, and of how many others the answer is cut."""
        notes = [f"{count} row{'s' if count > 1 else ''} left out: {why}" for why, count in skipped.items()]
        if cut:
            notes.append(
                f"{cut:,} of {rows:,} answers are cut, as texts end at {self.max_length} tokens (--max-length)"
            )
        return tuple(notes)

    def _tokenizer(self, rows: Dataset) -> PreTrainedTokenizerBase:
        from descend.tasks.text import learn_tokenizer, load_tokenizer

        source = self.tokenizer or (None if self.model == SMALL else self.model)
        if source is not None:
            return load_tokenizer(source)
        tokenizer = learn_tokenizer(
            text for row in rows for text in (*row.values(), "### Instruction : Input : Response :")
        )
        tokenizer.eos_token = tokenizer.sep_token
        return tokenizer

    def collate(self, tokenizer: Any) -> Collate:
        """Pad texts to the longest of their batch."""
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        from descend.tasks.text import NextToken

        return partial(NextToken.grouped, DataCollatorForLanguageModeling(pad_token_id=tokenizer.pad_token_id))

    def task(self) -> NextToken:
        """Cross-entropy and accuracy of the next token."""
        from descend.tasks.text import NextToken

        return NextToken()

    def network(self, data: Data) -> LayeredCausalLM:
        """The model to train, with adapters where ``lora`` names modules."""
        from peft import LoraConfig, get_peft_model

        from descend.models import LayeredCausalLM

        network: Any = self._network(data.tokenizer)
        if self.lora is not None:
            targets = [name.strip() for name in self.lora.split(",") if name.strip()]
            settings = LoraConfig(task_type="CAUSAL_LM", r=self.lora_rank, target_modules=targets)
            try:
                network = get_peft_model(network, settings)
            except ValueError as error:
                names = sorted(
                    {name.split(".")[-1] for name, module in network.named_modules() if hasattr(module, "in_features")}
                )
                raise InputError(
                    f"--lora must name modules of the model: {', '.join(names)}; got {self.lora}. {reason(error)}"
                ) from None
        return LayeredCausalLM(network)

    @abstractmethod
    def _network(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        """The model without adapters."""

    def _pretrained(self, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> PreTrainedModel:
        """The pretrained model, in float32, with some settings of its configuration changed."""
        from transformers import AutoModelForCausalLM

        network = load_pretrained(AutoModelForCausalLM, self.model, dtype="float32", **settings)
        check_words(len(tokenizer), network.get_input_embeddings().num_embeddings, self.model)
        return network

    def trainer(self, run: Run, callbacks: Sequence[TrainerCallback]) -> DescentSFTTrainer:
        """TRL's trainer under the constraints."""
        from descend.training.sft import DescentSFTTrainer

        for each in fields(run.arguments):
            if each.name in _PREPARED and getattr(run.arguments, each.name) != each.default:
                raise InputError(
                    f"--{each.name.replace('_', '-')} has no effect: the recipe prepares the data itself. Leave it out "
                    "or use DescentSFTTrainer in a script."
                )
        return DescentSFTTrainer(
            run.model.saved,
            run.arguments,
            noise=run.noise,
            train_dataset=run.data.train,
            eval_dataset=run.data.validation,
            processing_class=run.tokenizer,
            callbacks=list(callbacks),
        )

    def restore(self, folder: str) -> tuple[LayeredModel, Any]:
        """Load a model that `save_pretrained` wrote, and its tokenizer."""
        from peft import AutoPeftModelForCausalLM
        from transformers import AutoModelForCausalLM

        from descend.models import LayeredCausalLM
        from descend.results import ADAPTERS_FILE
        from descend.tasks.text import load_tokenizer

        auto_class = AutoPeftModelForCausalLM if (Path(folder) / ADAPTERS_FILE).is_file() else AutoModelForCausalLM
        network = LayeredCausalLM(load_pretrained(auto_class, folder, dtype="float32"))
        return network, load_tokenizer(folder)
