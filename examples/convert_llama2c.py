"""A llama2.c checkpoint becomes a folder that Transformers reads.

    python examples/convert_llama2c.py FOLDER OUT

FOLDER holds one checkpoint (``*.bin``, version 0: seven int32, then float32) and its tokenizer (``tok*.bin``).
"""

import math
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from descend import InputError
from descend.reading import is_litter

UNKNOWN, BOS, EOS = "<unk>", "<s>", "</s>"


def convert(folder: Path, out: Path) -> None:
    """Convert a checkpoint and its tokenizer to a folder that Transformers reads.

    Args:
        folder: A folder with one checkpoint (``*.bin``, version 0: seven int32, then float32) and its tokenizer
            (``tok*.bin``).
        out: The folder to write.

    Raises:
        InputError: If there is not exactly one of each, or one is damaged.
    """
    binaries = sorted(file for file in folder.glob("*.bin") if not is_litter(Path(file.name)))
    tokenizers = [each for each in binaries if each.name.startswith("tok")]
    checkpoints = [each for each in binaries if not each.name.startswith("tok")]
    if len(tokenizers) != 1 or len(checkpoints) != 1:
        raise InputError(
            f"expected one checkpoint *.bin and one tok*.bin in {folder}; got {len(checkpoints)} and {len(tokenizers)}."
        )
    model = read_model(checkpoints[0])
    tokenizer = read_tokenizer(tokenizers[0], model.config.vocab_size, model.config.max_position_embeddings)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def read_model(path: Path) -> LlamaForCausalLM:
    """The model of a version 0 checkpoint."""
    data = path.read_bytes()
    if len(data) < 28:
        raise InputError(f"{path} ends within its header.")
    dim, hidden, layers, heads, kv_heads, vocabulary, context = struct.unpack("<7i", data[:28])
    sizes = (dim, hidden, layers, heads, kv_heads, context, abs(vocabulary))
    if min(sizes) < 1 or dim % heads or dim // heads % 2 or heads % kv_heads or max(sizes) > len(data):
        raise InputError(f"{path} is no llama2.c checkpoint of version 0.")
    if len(data) % 4:
        raise InputError(f"{path} ends within a number.")
    tied = vocabulary > 0  # a negative size means that head and embedding are not tied
    vocabulary = abs(vocabulary)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    # Check the header's sizes against the file before the model is built: it may ask for any amount of memory.
    per_layer = 2 * dim + 2 * dim * dim + 2 * dim * kv_heads * (dim // heads) + 3 * dim * hidden
    if vocabulary * dim + layers * per_layer > len(data) // 4:
        raise InputError(f"{path} ends early: {len(data)} bytes for a model that has more.")
    size, kv = dim // heads, kv_heads * (dim // heads)
    values = np.frombuffer(data, dtype="<f4", offset=28)
    place = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal place
        count = math.prod(shape)
        if place + count > len(values):
            raise InputError(f"{path} ends early: {len(values)} numbers for a model that has more.")
        tensor = torch.from_numpy(values[place : place + count].reshape(shape).copy())
        place += count
        return tensor

    def unrotate(weight: torch.Tensor, count: int) -> torch.Tensor:
        # Rotary embeddings: llama2.c rotates neighbouring pairs, Transformers the two halves of a head.
        return weight.view(count, size // 2, 2, dim).transpose(1, 2).reshape(count * size, dim)

    state = {"model.embed_tokens.weight": take(vocabulary, dim)}
    parts = {
        "input_layernorm": (dim,),
        "self_attn.q_proj": (dim, dim),
        "self_attn.k_proj": (kv, dim),
        "self_attn.v_proj": (kv, dim),
        "self_attn.o_proj": (dim, dim),
        "post_attention_layernorm": (dim,),
        "mlp.gate_proj": (hidden, dim),
        "mlp.down_proj": (dim, hidden),
        "mlp.up_proj": (hidden, dim),
    }
    for name, shape in parts.items():  # each weight is stored for all layers in a row
        for layer, weight in enumerate(take(layers, *shape)):
            turned = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}.get(name)
            state[f"model.layers.{layer}.{name}.weight"] = unrotate(weight, turned) if turned else weight
    state["model.norm.weight"] = take(dim)
    take(2, context, size // 2)  # cosines and sines, which Transformers computes itself
    state["lm_head.weight"] = state["model.embed_tokens.weight"] if tied else take(vocabulary, dim)
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model


def read_tokenizer(path: Path, vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """The tokenizer: SentencePiece's BPE with byte fallback; a piece's score is the rank of its merge."""
    data = path.read_bytes()
    place = 4
    pieces: list[tuple[str, float]] = []
    while len(pieces) < vocabulary:
        if place + 8 > len(data):
            raise InputError(f"{path} ends early: {len(pieces)} tokens of {vocabulary}.")
        score, length = struct.unpack_from("<fi", data, place)
        if not 0 <= length <= len(data) - place - 8:
            raise InputError(f"{path} ends early: token {len(pieces)} has {length} bytes.")
        try:
            piece = data[place + 8 : place + 8 + length].decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{path}: token {len(pieces)} is not UTF-8.") from None
        pieces.append((piece, score))
        place += 8 + length
    names = [UNKNOWN, BOS, EOS] + [piece.replace(" ", "▁") for piece, _ in pieces[3:]]
    ids = {name: number for number, name in enumerate(names)}
    if len(ids) < len(names):
        raise InputError(f"{path} has a token twice.")
    scores = {name: score for name, (_, score) in zip(names, pieces, strict=True)}
    # All merges that give a piece, in SentencePiece's order: pieces with the best score come first.
    merges = sorted(
        (
            (piece[:cut], piece[cut:])
            for piece in names[3:]
            if not (piece.startswith("<0x") and len(piece) == 6)
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        ),
        key=lambda pair: -scores["".join(pair)],
    )
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=UNKNOWN, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (UNKNOWN, BOS, EOS)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, ids[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=UNKNOWN,
        model_max_length=context,
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except InputError as error:
        raise SystemExit(str(error)) from None
