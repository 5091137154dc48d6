"""A run's language model as a model type of lm-eval, with noise on its word embedding and an exit layer.

The noise is drawn by the prefix: whoever reads the same tokens gets the same draws.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tokenizers import processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from descend.declared import GENERATED
from descend.errors import InputError, refuse
from descend.models import LayeredCausalLM, changed, keep_first
from descend.noise import Noise, SampleDraws
from descend.progress import is_quiet
from descend.results import MODELS, Trained, check_language_run, read_trained
from descend.run.loading import of_model
from descend.run.run import Run
from descend.seeds import Stream, derived

WIDTH = 8
"""Bytes of a token, and of a prefix's hash."""


@register_model("descend")
class DescendLM(HFLM):
    """A run's language model in lm-eval.

    At γ = 0 and full depth it gives what lm-eval's ``hf`` gives for the same model and tokenizer. Noise is drawn by
    the prefix, see `PrefixDraws`, so all levels and all models of one width share their draws.

    On a CPU texts run one at a time, whatever the batch size: a matrix product rounds differently in batches of other
    shapes, and small models gain little from batches there. On other devices the batch size counts; the draws stay
    the same, the log-likelihoods agree up to rounding.

    Args:
        pretrained: The folder of a run, or of an export of one.
        noise: γ ≥ 0, in units of the run's σ_x.
        layer: K from 1 to L: the final norm and the head read block K's output, and later blocks do not run. All
            blocks by default.
        checkpoint: The run's model: ``model`` or ``best_feasible``.
        seed: The seed of the noise.
        device: Such as ``cuda:0``; by default, and where there is no CUDA, that which Transformers' Trainer takes.
        batch_size: Texts at a time, unless on a CPU.
        **settings: Further arguments of `HFLM`.

    Raises:
        InputError: If the folder is no run of a language model and no export, or a value is out of range.
    """

    def __init__(
        self,
        pretrained: str,
        noise: float = 0.0,
        layer: int | None = None,
        checkpoint: str = "model",
        seed: int = 0,
        device: str | None = None,
        batch_size: int | str | None = 1,
        **settings: Any,
    ):
        folder = Path(pretrained)
        trained = check_source(folder, checkpoint, layer, noise)
        exported = partial(of_model, folder, "lm", GENERATED)
        self.run = Run(folder, exported) if trained else Run.read(folder, model=checkpoint)
        model, tokenizer = self.run.model, self.run.tokenizer
        assert isinstance(model, LayeredCausalLM) and tokenizer is not None
        self._layered, self.depth = model, model.depth
        if layer is not None:
            keep_first(model, layer)
        if device is None or (device.startswith("cuda") and not torch.cuda.is_available()):
            device = str(self.run.batches.device)  # lm-eval's command asks for CUDA unless told otherwise
        model.to(device)
        super().__init__(pretrained=model.saved, tokenizer=without_end(tokenizer), batch_size=batch_size, **settings)
        if self.device.type == "cpu":
            self.batch_size_per_gpu = 1
        hidden = not sys.stderr.isatty() or is_quiet()  # lm-eval's bars are for a terminal
        for asks in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
            setattr(self, asks, partial(getattr(self, asks), disable_tqdm=hidden))
        self.noise = self.run.noise.at(noise, seed=seed)
        """The noise; another level of it can be set between evaluations."""
        self._draws = PrefixDraws()

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        # `loglikelihood_rolling` fixes the batch size, calls this for each batch, and shows its own progress bar.
        return super()._loglikelihood_tokens(requests, disable_tqdm or override_bs is not None, override_bs)

    def _model_call(self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        self._draws.follow(inps)
        with self.noise.on(self.model, indices=self._draws):
            return super()._model_call(inps, attn_mask, labels)

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **generation_kwargs: Any) -> Tensor:
        with self.noise.on(self.model, indices=self._draws), self._draws.following(self._layered.library):
            return super()._model_generate(context, max_length, stop, **generation_kwargs)


def check_source(folder: Path, checkpoint: str, layer: int | None, noise: float) -> Trained | None:
    """Refuse a folder without a language model, or without the wanted layer or noise, before the model is loaded.

    Args:
        folder: A run, or an export of one.
        checkpoint: The run's model.
        layer: K, an exit; None for full depth.
        noise: The highest level γ.

    Returns:
        What an export was last trained with; None for a run.

    Raises:
        InputError: If there is no such model, or an export is asked for noise or for a model by name.
    """
    trained = read_trained(folder)
    if trained is None:
        check_language_run(folder, checkpoint, layer)
    elif noise or checkpoint != MODELS[0]:
        raise InputError(
            f"{folder} is an export: one model, without σ_x, of which noise is a multiple. Leave out --noise and "
            "--model, or give the run."
        )
    return trained


def without_end(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer, changed in place so that it closes no text with a special token.

    An answer follows a prompt, and lm-eval cuts texts where their prompts end: a token at the end of a prompt would
    be scored in place of the answer. Training leaves it out of prompts too.

    Raises:
        InputError: If it closes texts and its template can't be replaced.
    """
    plain, given = (tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
    start = next((place for place in range(len(given)) if given[place : place + len(plain)] == plain), len(given))
    if start + len(plain) >= len(given):
        return tokenizer
    refuse(
        (
            not tokenizer.is_fast,
            f"{type(tokenizer).__name__} ends every text with {tokenizer.decode(given[-1:])}, so no answer can follow "
            "a prompt. Save the model with a fast tokenizer.",
        )
    )
    opening = tokenizer.convert_ids_to_tokens(given[:start])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[attr-defined]
        single=[*opening, "$A"],
        pair=[*opening, "$A", "$B:1"],
        special_tokens=list(dict(zip(opening, given[:start], strict=True)).items()),
    )
    return tokenizer


class PrefixDraws(SampleDraws):
    """Draws for a causal language model: that of a token depends on the tokens up to it and on the seed alone.

    Answer options therefore share the draws of their common context, and a batch's size, order and padding change
    nothing, nor does the KV cache. The level only scales a draw. A draw's seed is the prefix's hash, of which torch's
    CPU generator uses 32 bits: two of n different prefixes get the same draw with a probability of about n² / 2³³.

    Give it to `Noise.on` as ``indices``, and tell it by `follow` which tokens the next forward pass reads.
    """

    def __init__(self) -> None:
        super().__init__(())
        self._ids: Tensor | None = None
        self._mask: Tensor | None = None

    def __len__(self) -> int:
        """B, the number of texts that are read."""
        return 0 if self._ids is None else len(self._ids)

    def follow(self, ids: Tensor, mask: Tensor | None = None) -> None:
        """The tokens of the next forward pass.

        Args:
            ids: The tokens from the start of each text, (B, S). A forward pass with a KV cache embeds the last ones.
            mask: 0 for padding, (B, S); None if it is all on the right, where no other token sees it.
        """
        self._ids, self._mask = ids.cpu(), None if mask is None else mask.cpu().bool()

    @contextmanager
    def following(self, network: nn.Module) -> Iterator[None]:
        """Follow a Hugging Face model's ``generate`` inside the ``with`` block."""
        prepare: Callable[..., Any] = network.prepare_inputs_for_generation  # type: ignore[assignment]

        @wraps(prepare)
        def prepared(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.follow(input_ids, kwargs.get("attention_mask"))
            return prepare(input_ids, *args, **kwargs)

        with changed(network, prepare_inputs_for_generation=prepared):
            yield

    def tensor(self, noise: Noise, clean: Tensor, keep: Tensor | None) -> Tensor:
        """The draws (B, T, …) in single precision on the device of x, with 0 at padding that the mask shows.

        Args:
            noise: Draws them, by its seed.
            clean: x, (B, T, H), the embeddings of the last T tokens.
            keep: Where noise goes; not used, since the mask of all tokens says it.
        """
        assert self._ids is not None, "follow() tells which tokens are read"
        key = derived(Stream.PREFIX_NOISE, noise.seed).to_bytes(WIDTH, "little")
        start = self._ids.shape[1] - clean.shape[1]
        like = torch.empty(1, clean.shape[-1], dtype=torch.float32, device="cpu")
        rows = []
        for row, ids in enumerate(self._ids):
            real = torch.ones_like(ids, dtype=torch.bool) if self._mask is None else self._mask[row]
            state = blake2b(ids[:start][real[:start]].numpy().tobytes(), digest_size=WIDTH, key=key)
            drawn = []
            for token, counts in zip(ids[start:].tolist(), real[start:].tolist(), strict=True):
                if counts:
                    state.update(token.to_bytes(WIDTH, "little"))
                generator = torch.Generator("cpu").manual_seed(int.from_bytes(state.digest(), "little"))
                draw = noise.draw(like, generator)[0]
                drawn.append(draw if counts else torch.zeros_like(draw))
            rows.append(torch.stack(drawn))
        return torch.stack(rows).to(clean.device)
