"""An export as an embedding model, a folder that SentenceTransformers reads."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import PreTrainedModel

from descend.declared import SENTENCES, SMALL
from descend.errors import InputError, reason, refuse
from descend.models import LayeredClassifier, refuse_unsafe
from descend.reading import read_json
from descend.results import hub_name
from descend.run.formats import LEAVE_OUT, MOST_TOKENS, Format, check_able, refusal, silent

MODULES_FILE = "modules.json"
"""The file by which SentenceTransformers knows its folders."""

LATER = ("Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")
"""The modules that may follow an encoder: what they do is said by numbers and safetensors alone."""

_TAKES = "encoders of texts"


class SentenceTransformers(Format):
    """The encoder of the first K layers, with the pooling, dense layers, normalization and prompts of its start.

    The start is the model that training, or the fitting of readouts, began with. Where it is no SentenceTransformer,
    the embedding is what the classifier reads: the mean over tokens, or the first token's state. The encoder and the
    tokenizer are Descend's own; nothing is loaded of the start but the modules in `LATER`.
    """

    name = SENTENCES
    metadata = {  # noqa: RUF012  # an embedding model has no accuracy
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "metrics": [],
        "eval_results": [],
    }
    holds = "without their readout."
    timed = " as a classifier"
    instead = f" {LEAVE_OUT}"

    def __init__(self, network: Any, tokenizer: Any, layers: int, start: str | None):
        super().__init__(network, tokenizer, layers, start)
        texts = isinstance(network, LayeredClassifier) and network.main_input_name == "input_ids"
        refuse(
            (not texts or network.is_decoder, refusal(SENTENCES, _TAKES, type(network.saved).__name__)),
            (tokenizer is None, f"--format {SENTENCES} needs the tokenizer: export_model(model, K, out, tokenizer)."),
        )
        self.measured = getattr(tokenizer, "model_max_length", None)
        self.longest, self.later, self.prompts = _beside_encoder(start)
        if self.later is None:
            from sentence_transformers.sentence_transformer.modules import Pooling

            how = getattr(network.config, "classifier_pooling", "cls")
            self.later = [Pooling(network.saved.base_model.config.hidden_size, pooling_mode=how)]
            self.longest = self.measured

    @classmethod
    def check(cls, recipe: str = "", start: str | None = None) -> None:
        """Refuse recipes of no encoder of texts, a start that can't be kept, and a missing package."""
        from descend.recipes.classification import TextRecipe

        check_able(SENTENCES, _TAKES, TextRecipe, "embed", recipe)
        if recipe:
            _beside_encoder(start)

    def expected(self, network: Any, inputs: Any) -> Tensor:
        """The embedding (B, D) that the modules behind the encoder give of layer K."""
        state = network.norm(self.layers)(network.layer_outputs(inputs)[self.layers])
        features = {"token_embeddings": state.float(), "attention_mask": inputs["attention_mask"]}
        for module in self.later or ():
            features = module(features)
        return features["sentence_embedding"]

    def write(self, plain: PreTrainedModel, folder: Path) -> Callable[[Any], Tensor]:
        """Write the SentenceTransformer of the cut encoder, and read it again."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Transformer

        base: Any = plain.base_model
        with silent():
            with TemporaryDirectory() as encoder:
                base.save_pretrained(encoder)
                self.tokenizer.save_pretrained(encoder)
                modules = [Transformer(encoder, max_seq_length=self.longest), *(self.later or ())]
                made = SentenceTransformer(modules=modules, device="cpu", **self.prompts)
            made.save(str(folder), create_model_card=False)
            again = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float().eval()
        return lambda inputs: again(dict(inputs))["sentence_embedding"]

    def note(self, plain: PreTrainedModel) -> str:
        """What the folder holds."""
        parts = ", ".join(["Transformer", *(type(module).__name__ for module in self.later or ())])
        compared = "" if self.measured == self.longest else f"; layers were compared on at most {self.measured}"
        cut = "" if self.longest is None else f" It cuts texts after {self.longest} tokens{compared}."
        return (
            f"Load it with `SentenceTransformer`. It holds {parts}, and no readout: it gives the embeddings of layer "
            f"{self.layers}. The metrics below were measured with readouts, to compare layers.{cut}"
        )

    def serving_line(self, plain: PreTrainedModel, folder: Path) -> str:
        """The line that embeds texts."""
        return f"SentenceTransformer({json.dumps(str(folder))}).encode(texts)"


def _beside_encoder(start: str | None) -> tuple[int | None, list[Any] | None, dict[str, Any]]:
    """What a SentenceTransformer has beside its encoder.

    Args:
        start: A folder, or a name on the Hub.

    Returns:
        Its longest text, the modules behind the encoder (None if it is no SentenceTransformer), and its prompts.

    Raises:
        InputError: If it is gone, or has modules that can't be kept.
    """
    if start in (None, SMALL):
        return None, None, {}
    folder = _folder_of(str(start))
    if not (folder / MODULES_FILE).is_file():
        return None, None, {}
    listed = read_json(folder / MODULES_FILE)
    named = isinstance(listed, list) and all(isinstance(each, dict) for each in listed)
    kinds = [str(each.get("type")) for each in listed] if named else []
    names = [kind.rpartition(".")[2] for kind in kinds]
    wrong = [
        kind
        for kind, name in zip(kinds[1:], names[1:], strict=True)
        if name not in LATER or not kind.startswith("sentence_transformers.")
    ]
    places = [str(each.get("path")) for each in listed[1:]] if named else []
    elsewhere = [place for place in places if not (folder / place).resolve().is_relative_to(folder.resolve())]
    refuse(
        (
            names[:1] != ["Transformer"] or not kinds[0].startswith("sentence_transformers."),
            f"{folder} must begin with one Transformer; its modules are {', '.join(kinds) or 'none'}. {LEAVE_OUT}",
        ),
        (
            bool(wrong),
            f"{folder} has {', '.join(wrong)} behind its encoder; --format {SENTENCES} keeps {', '.join(LATER)}. "
            f"{LEAVE_OUT}",
        ),
        (bool(elsewhere), f"{folder} names modules outside of it: {', '.join(elsewhere)}."),
    )
    longest = _settings(folder / "sentence_bert_config.json").get("max_seq_length")
    longest = longest or _settings(folder / "tokenizer_config.json").get("model_max_length")
    about = _settings(folder / "config_sentence_transformers.json")
    prompts = about.get("prompts") or {}
    texts = isinstance(prompts, dict) and all(isinstance(each, str) for each in [*prompts, *prompts.values()])
    refuse((not texts, f"the prompts of {folder} must be texts by their names; got {prompts!r}."))
    given = {"prompts": prompts, "default_prompt_name": about.get("default_prompt_name")}
    later = [_later(folder, place, name) for place, name in zip(places, names[1:], strict=True)]
    return (longest if isinstance(longest, int) and 0 < longest < MOST_TOKENS else None), later, given


def _later(folder: Path, place: str, name: str) -> Any:
    """A module behind the encoder, in float32."""
    import sentence_transformers.sentence_transformer.modules as modules

    refuse((not (folder / place).is_dir() and name != "Normalize", f"{folder} has no folder {place} of its {name}."))
    if (folder / place).is_dir():
        refuse_unsafe(folder / place)
    activation = str(_settings(folder / place / "config.json").get("activation_function", "torch.nn."))
    refuse((not activation.startswith("torch.nn."), f"{folder / place} asks for {activation}, which is not run."))
    try:
        with silent():
            made = getattr(modules, name).load(str(folder), subfolder=place, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise InputError(f"{folder / place} can't be read as a {name}: {reason(error)}. {LEAVE_OUT}") from error
    return made.float().eval()


def _settings(file: Path) -> dict[str, Any]:
    """The entries of a JSON file; none where it is missing or holds something else."""
    content = read_json(file) if file.is_file() else {}
    return content if isinstance(content, dict) else {}


def _folder_of(start: str) -> Path:
    """A model's folder; for a name on the Hub the folder that its small files are downloaded to."""
    folder = Path(start).expanduser()
    if folder.is_dir():
        return folder
    if hub_name(start) is None:
        raise InputError(
            f"{start} is gone, from which this model was trained: its pooling and prompts can't be kept. Put it back. "
            f"{LEAVE_OUT}"
        )
    files = ["modules.json", "tokenizer_config.json", "*sentence*.json", "[0-9]_*/*.json", "[0-9]_*/*.safetensors"]
    try:
        return Path(snapshot_download(start, allow_patterns=files))
    except (OSError, ValueError) as error:
        raise InputError(
            f"what {start} has beside its encoder can't be read: {reason(error)}. Give its folder. {LEAVE_OUT}"
        ) from error
