"""Instruction tuning of causal language models."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

from datasets import Dataset
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from descend.declared import SMALL
from descend.errors import InputError, reason
from descend.models import LayeredCausalLM, causal, check_family, keep_first
from descend.recipes.base import (
    Data,
    Recipe,
    Restored,
    Setup,
    absolute,
    absolute_or_name,
    check_heads,
    check_words,
    config_of,
    load_pretrained,
    tell,
)
from descend.settings import InstructionSettings, LanguageModelSettings, LanguageSettings
from descend.tasks.splits import split_groups
from descend.tasks.text import (
    Instructions,
    NextToken,
    generate_instructions,
    learn_tokenizer,
    load_tokenizer,
    read_instructions,
    tokenize_instructions,
)
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer

ADAPTERS = "adapter_config.json"

# TRL's settings for preparing the data, which the recipe does itself.
_PREPARED = {
    *("completion_only_loss", "assistant_only_loss", "dataset_text_field", "dataset_kwargs", "dataset_num_proc"),
    *("eos_token", "pad_token", "chat_template_path", "model_init_kwargs", "truncation_mode"),
}


class LanguageRecipe(LanguageSettings, Recipe):
    """The base recipe of instruction tuning: a language model learns the answers to prompts, token by token.

    With ``lora``, such as ``q_proj,v_proj,lm_head``, adapters on these modules are trained and nothing else.
    """

    model: str

    @classmethod
    def arguments(cls) -> type[DescentSFTConfig]:
        """TRL's, and the problem."""
        return DescentSFTConfig

    def _config(self) -> PreTrainedConfig:
        """The configuration of the pretrained model, which takes texts as long as they may be."""
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
        return LanguageSettings.pretrained | {"learning_rate": 2e-4} if self.lora else self.pretrained

    def load(self, restored: Restored | None = None) -> Data:
        """Load and tokenize the instructions and answers."""
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
        tokenizer = restored.tokenizer if restored else self._tokenizer(sides["train"])
        skipped, tokenized, cut = Counter(given.skipped), {}, 0
        for side, part in sides.items():
            encoded = tokenize_instructions(Instructions(part, {}), tokenizer, self.max_length)
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

    def load_test(self, data: str, restored: Restored) -> tuple[Dataset, str]:
        """Load all rows of another file, and its name."""
        rows, skipped, cut = tokenize_instructions(read_instructions(data), restored.tokenizer, self.max_length)
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
        source = self.tokenizer or (None if self.model == SMALL else self.model)
        if source is not None:
            return load_tokenizer(source)
        tokenizer = learn_tokenizer(
            text for row in rows for text in (*row.values(), "### Instruction : Input : Response :")
        )
        tokenizer.eos_token = tokenizer.sep_token
        return tokenizer

    def collate(self, tokenizer: Any) -> DataCollatorForLanguageModeling:
        """Pad texts to the longest of their batch."""
        return DataCollatorForLanguageModeling(pad_token_id=tokenizer.pad_token_id)

    def task(self) -> NextToken:
        """Cross-entropy and accuracy of the next token."""
        return NextToken()

    def network(self, data: Data) -> LayeredCausalLM:
        """The model to train, with adapters where ``lora`` names modules."""
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
        network = load_pretrained(AutoModelForCausalLM, self.model, dtype="float32", **settings)
        check_words(len(tokenizer), network.get_input_embeddings().num_embeddings, self.model)
        return network

    def trainer(self, setup: Setup, callbacks: Sequence[TrainerCallback]) -> DescentSFTTrainer:
        """TRL's trainer under the constraints."""
        for each in fields(setup.arguments):
            if each.name in _PREPARED and getattr(setup.arguments, each.name) != each.default:
                raise InputError(
                    f"--{each.name.replace('_', '-')} has no effect: the recipe prepares the data itself. Leave it out "
                    "or use DescentSFTTrainer in a script."
                )
        return DescentSFTTrainer(
            setup.model.saved,
            setup.arguments,
            noise=setup.noise,
            train_dataset=setup.data.train,
            eval_dataset=setup.data.validation,
            processing_class=setup.data.tokenizer,
            callbacks=list(callbacks),
        )

    def restore(self, folder: str) -> Restored:
        """Load a model that `save_pretrained` wrote, and its tokenizer."""
        auto_class = AutoPeftModelForCausalLM if (Path(folder) / ADAPTERS).is_file() else AutoModelForCausalLM
        network = LayeredCausalLM(load_pretrained(auto_class, folder, dtype="float32"))
        return Restored(network, load_tokenizer(folder))


class LanguageModelRecipe(LanguageModelSettings, LanguageRecipe):
    """Instruction tuning of a pretrained language model, plain unless a method is given."""

    @property
    def defaults(self) -> dict[str, Any]:
        """Plain training, with adapters too."""
        return super().defaults | {"method": "erm"}

    def completed(self) -> Self:
        """The recipe with absolute paths and the number of blocks.

        Raises:
            InputError: If it has adapters on a cut model.
        """
        config = self._config()
        layers = self.keep_layers or config.num_hidden_layers
        if self.lora is not None and layers < config.num_hidden_layers:
            raise InputError(
                "--keep-layers and --lora exclude each other: only the adapters are saved, and the cut model would be "
                "lost. Leave one out."
            )
        return replace(self, data=absolute(self.data), model=absolute_or_name(self.model), keep_layers=layers)

    def _network(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        network = self._pretrained(tokenizer)
        keep_first(LayeredCausalLM(network), self.depth)
        return network


class InstructionRecipe(InstructionSettings, LanguageRecipe):
    """Instruction tuning of a small new model, or of a pretrained one with its own depth, width and heads."""

    family = "Llama"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)
        if self.model == SMALL and self.lora is not None:
            raise InputError(
                "--lora needs a pretrained --model: only the adapters are saved, and a new model's weights would be "
                "lost. Leave out --lora."
            )

    def completed(self) -> Self:
        """The recipe with absolute paths and, for a pretrained model, that model's own depth and width."""
        recipe = replace(self, data=absolute(self.data))
        if self.model == SMALL:
            return recipe
        config, model = self._config(), absolute_or_name(self.model)
        return replace(recipe, model=model, depth=config.num_hidden_layers, hidden_size=config.hidden_size)

    def _network(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        if self.model != SMALL:
            return self._pretrained(tokenizer, **({"attention_dropout": self.dropout} if self.dropout else {}))
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=self.hidden_size,
                intermediate_size=4 * self.hidden_size,
                num_hidden_layers=self.depth,
                num_attention_heads=self.heads,
                max_position_embeddings=max(512, self.max_length),
                attention_dropout=self.dropout,
                tie_word_embeddings=True,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id or tokenizer.cls_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
