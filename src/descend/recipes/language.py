"""Instruction tuning of causal language models."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from datasets import Dataset, DatasetDict
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from descend.errors import InputError, reason
from descend.models import LayeredCausalLM
from descend.models.causal import LOGITS
from descend.noise import Noise
from descend.recipes.base import GENTLE, Recipe, absolute, setting
from descend.recipes.text import SMALL, library_config, loaded
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

# Of TRL's settings, those of a preparation that the recipe does itself.
_PREPARED = {
    *("completion_only_loss", "assistant_only_loss", "dataset_text_field", "dataset_kwargs", "dataset_num_proc"),
    *("eos_token", "pad_token", "chat_template_path", "model_init_kwargs", "truncation_mode"),
}


@dataclass(frozen=True)
class InstructionData:
    """Tokenized instructions and answers, not padded.

    Attributes:
        train: To train on.
        validation: Others, to choose settings on.
        test: Held out.
        name: The data set's name, for records and reports.
        notes: What was left out, in words.
        sigma: None: σ_x is that of a model's embedding.
    """

    train: Dataset
    validation: Dataset
    test: Dataset
    name: str
    notes: tuple[str, ...]
    sigma: None = None


@dataclass
class InstructionRecipe(Recipe):
    """Instruction tuning: prompts and answers, of which the answer is told token by token."""

    data: str | None = setting(None, "Instructions in Alpaca's form, .json or .jsonl; generated ones unless given.")
    model: str = setting(SMALL, "small: a new small model. Or a pretrained one, by folder or by its name on the Hub.")
    tokenizer: str | None = setting(
        None,
        "Folder of a tokenizer or its name on the Hub; the model's own, or one learned from the texts, unless given.",
    )
    max_length: int = setting(256, "Longest prompt with its answer, in tokens.")
    depth: int = setting(6, "L, the number of layers of the small model; a pretrained model has its own.")
    hidden_size: int = setting(128, "Width of the small model.")
    heads: int = setting(4, "Attention heads of the small model.")
    dropout: float = setting(0.0, "Dropout of the attention's weights; 0 leaves a pretrained model's own.")
    lora: str | None = setting(
        None, "Train adapters on these modules, as q_proj,v_proj,lm_head, and nothing else; all weights unless given."
    )
    lora_rank: int = setting(8, "Rank of the adapters.")
    noise: float = setting(1.5, "Training noise γ on the word embeddings, of their std σ_x, as --noise-is says.")
    validation_share: float = setting(0.1, "Share of the data kept for validation, and as much for the test.")

    family: ClassVar[str] = "Llama"
    usual_noise = 1.5
    about = "instruction tuning of a Llama-like language model, small from scratch or pretrained"
    training: ClassVar[dict[str, Any]] = Recipe.training | {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "merit",
        "bf16": False,
        "activation_checkpointing": False,
        "max_length": 256,
    }

    @classmethod
    def arguments(cls) -> type[DescentSFTConfig]:
        """TRL's, and the problem."""
        return DescentSFTConfig

    def check(self) -> None:
        """Refuse what can't be, before any work is done."""
        super().check()
        self.data = absolute(self.data)
        for name in ("depth", "hidden_size", "heads", "lora_rank"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.hidden_size % self.heads:
            raise InputError(f"hidden_size must be a multiple of heads; got {self.hidden_size} and {self.heads}.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must lie in [0, 1); got {self.dropout}.")
        if self.max_length < 8:
            raise InputError(f"max_length must leave room for a prompt and an answer; got {self.max_length}.")
        if not 0 < self.validation_share < 0.5:
            raise InputError(f"validation_share must lie between 0 and 0.5; got {self.validation_share}.")
        if self.model == SMALL:
            if self.lora is not None:
                raise InputError(
                    "--lora needs a pretrained --model: adapters alone are saved, and a new model's weights lost."
                )
            return
        config = library_config(self.model)
        if config.model_type not in LOGITS:
            raise InputError(f"model_type must be one of {', '.join(LOGITS)}; {self.model} is {config.model_type!r}.")
        if self.max_length > config.max_position_embeddings:
            raise InputError(
                f"{self.model} takes texts of at most {config.max_position_embeddings} tokens; got --max-length "
                f"{self.max_length}."
            )
        if Path(self.model).expanduser().is_dir():
            self.model = str(absolute(self.model))
        # A pretrained model has its own sizes, and its own name.
        self.depth, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.family = type(config).__name__.removesuffix("Config")  # type: ignore[misc]

    @property
    def otherwise(self) -> dict[str, Any]:
        """A pretrained model is changed with care; adapters less so."""
        return {} if self.model == SMALL else {"learning_rate": 2e-4 if self.lora else 2e-5, **GENTLE}

    def load(self) -> InstructionData:
        """The data set; it does not depend on the run's seed, so that seeds are compared on the same data."""
        given = read_instructions(self.data) if self.data is not None else generate_instructions()
        rows = given.rows
        kept = round(len(rows) * self.validation_share)
        if kept < 2:
            raise InputError(f"validation and test need at least 2 rows each; got {kept} of {len(rows)}. Give more.")
        held = rows.train_test_split(2 * kept, seed=0)
        sides = DatasetDict(
            {
                "train": held["train"],
                "validation": held["test"].select(range(kept)),
                "test": held["test"].select(range(kept, 2 * kept)),
            }
        )
        if "_words" not in vars(self):
            self._words = self._tokenizer(sides["train"])
        skipped = dict(given.skipped)
        tokenized = {}
        for side, part in sides.items():
            tokenized[side], left = tokenize_instructions(Instructions(part, {}), self._words, self.max_length)
            for why, count in left.items():
                skipped[why] = skipped.get(why, 0) + count
            if len(tokenized[side]) < 2:
                raise InputError(f"no two prompts of the {side} rows leave room for an answer. Raise --max-length.")
        return InstructionData(**tokenized, name=self._name, notes=_notes(skipped))

    def load_test(self) -> tuple[Dataset, str]:
        """All of other data."""
        rows, skipped = tokenize_instructions(read_instructions(str(self.data)), self._words, self.max_length)
        if len(rows) < 2:
            raise InputError(
                f"{self.data} has no two prompts that leave room for an answer in {self.max_length} tokens."
            )
        return rows, " ".join([self._name, *(f"({note})" for note in _notes(skipped))])

    @property
    def _name(self) -> str:
        return "generated instructions" if self.data is None else Path(self.data).stem

    def _tokenizer(self, rows: Dataset) -> PreTrainedTokenizerBase:
        source = self.tokenizer or (None if self.model == SMALL else self.model)
        tokenizer: PreTrainedTokenizerBase
        if source is None:
            tokenizer = learn_tokenizer(
                text for row in rows for text in (*row.values(), "### Instruction : Input : Response :")
            )
            tokenizer.eos_token = tokenizer.sep_token
        else:
            tokenizer = load_tokenizer(source, padding=False)
            tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        return tokenizer

    @property
    def words(self) -> PreTrainedTokenizerBase:
        """The tokenizer, known once the data or a model are loaded; it is saved with the model."""
        return self._words

    @property
    def collate(self) -> DataCollatorForLanguageModeling:
        """Texts are padded to the longest of their batch."""
        return DataCollatorForLanguageModeling(pad_token_id=self.words.pad_token_id)

    def task(self) -> NextToken:
        """The loss and the metric."""
        return NextToken()

    def network(self, data: Any) -> LayeredCausalLM:
        """A small new model, or a pretrained one; with adapters if they are asked for."""
        network: Any = self._new() if self.model == SMALL else self._pretrained()
        if self.lora is not None:
            targets = [name.strip() for name in self.lora.split(",") if name.strip()]
            settings = LoraConfig(task_type="CAUSAL_LM", r=self.lora_rank, target_modules=targets)
            try:
                network = get_peft_model(network, settings)
            except ValueError as error:
                names = sorted({name.split(".")[-1] for name, module in network.named_modules() if _linear(module)})
                raise InputError(
                    f"--lora must name modules of the model: {', '.join(names)}; got {self.lora}. {reason(error)}"
                ) from None
        return LayeredCausalLM(network)

    def _new(self) -> PreTrainedModel:
        config = LlamaConfig(
            vocab_size=len(self.words),
            hidden_size=self.hidden_size,
            intermediate_size=4 * self.hidden_size,
            num_hidden_layers=self.depth,
            num_attention_heads=self.heads,
            max_position_embeddings=max(512, self.max_length),
            attention_dropout=self.dropout,
            tie_word_embeddings=True,
            pad_token_id=self.words.pad_token_id,
            bos_token_id=self.words.bos_token_id or self.words.cls_token_id,
            eos_token_id=self.words.eos_token_id,
        )
        return LlamaForCausalLM(config)

    def _pretrained(self) -> PreTrainedModel:
        dropped = {"attention_dropout": self.dropout} if self.dropout else {}
        network = loaded(AutoModelForCausalLM, self.model, dtype="float32", **dropped)
        words = network.get_input_embeddings().num_embeddings
        if len(self.words) > words:
            raise InputError(
                f"the tokenizer has {len(self.words)} words, the word embedding of {self.model} "
                f"{words}. Give the model's own tokenizer."
            )
        return network

    def trainer(self, model: Any, args: Any, noise: Noise, data: Any, callbacks: list[Any]) -> DescentSFTTrainer:
        """TRL's trainer under the constraints."""
        for one in fields(args):
            if one.name in _PREPARED and getattr(args, one.name) != one.default:
                raise InputError(
                    f"--{one.name.replace('_', '-')} has no effect: the recipe prepares the data itself. Leave it out "
                    "or use DescentSFTTrainer in a script."
                )
        return DescentSFTTrainer(
            model.saved,
            args,
            noise=noise,
            train_dataset=data.train,
            eval_dataset=data.validation,
            processing_class=self.words,
            callbacks=callbacks,
        )

    def restore(self, folder: str) -> LayeredCausalLM:
        """The model that `save_pretrained` put into a folder, and its tokenizer."""
        kind = AutoPeftModelForCausalLM if (Path(folder) / ADAPTERS).is_file() else AutoModelForCausalLM
        self._words = load_tokenizer(folder, padding=False)
        return LayeredCausalLM(loaded(kind, folder, dtype="float32"))


def _notes(skipped: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"{count} row{'s' if count > 1 else ''} left out: {why}" for why, count in skipped.items())


def _linear(module: Any) -> bool:
    return hasattr(module, "in_features")
