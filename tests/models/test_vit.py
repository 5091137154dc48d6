"""ViT as a denoiser, held against the library's own ViT and its own image processor."""

import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    Dinov2Config,
    Dinov2Model,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    ViTModel,
)

from descend.errors import InputError
from descend.models import ViTDenoiser, ViTDenoiserConfig
from descend.models.vit import unpatchify
from descend.recipes import RECIPES
from descend.tasks.video import patchify
from tests.support.networks import change

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BLOCKS, HIDDEN = 3, 32


def vit(size=64, patch=8, hidden_size=HIDDEN):
    torch.manual_seed(0)
    return ViTConfig(
        hidden_size=hidden_size,
        num_hidden_layers=BLOCKS,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=size,
        patch_size=patch,
        initializer_range=0.2,
    )


def processor(size=64, **settings):
    return ViTImageProcessorPil(size={"height": size, "width": size}, image_mean=MEAN, image_std=STD, **settings)


def saved(folder, model, image_processor):
    """The folder of a model and its image processor."""
    model.save_pretrained(folder)
    image_processor.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    """A pretrained ViT as people have it on disk: a classifier's checkpoint, and a processor that resizes."""
    return saved(tmp_path, ViTForImageClassification(vit()), processor())


@pytest.fixture
def frames():
    """Clean uint8 frames (B, T, 160, 160) with edges, slopes and texture."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:160, :160]
    slope = np.stack([(rows + k * columns) % 256 for k in range(1, 7)])
    slope[:, 40:90, 30:70] = 255
    texture = generator.integers(-30, 30, slope.shape)
    return np.clip(slope + texture, 0, 255).astype(np.uint8).reshape(2, 3, 160, 160)


def as_patches(frames):
    return patchify(torch.from_numpy(frames)).float() / 255


# --- the image processor


@pytest.mark.parametrize(
    ("size", "settings", "bound"),
    [
        *((size, {"resample": 2}, 1.01) for size in (64, 224)),
        *((size, {"resample": 3}, 1.135) for size in (64, 224)),
        *((160, settings, 1e-3) for settings in ({}, {"do_normalize": False}, {"rescale_factor": 1 / 127.5})),
        (160, {"do_rescale": False}, 0.1),  # pixels up to 255 / 0.22
    ],
)
def test_pixels_are_the_processors(tmp_path, frames, size, settings, bound):
    """Within one grey level, un-normalised, as Pillow rounds to uint8 after each of its two passes.

    The second pass adds ½ to what it makes of the first one's ½: as much again for the positive weights of a bilinear
    filter, ×1.25 for a bicubic one's. Pillow also cuts a bicubic filter's overshoot at black and white, and we don't:
    so grey frames there.
    """
    frames = frames // 2 + 64 if settings.get("resample") == 3 else frames
    own = processor(size, **settings)
    saved(tmp_path, ViTModel(vit(size, 16)), own)
    pixels = ViTDenoiser.from_vit(tmp_path).pixels(as_patches(frames))
    # One by one, as colour images: (B, T, 3, height, width).
    images = [np.stack([frame] * 3, -1) for frame in frames.reshape(-1, 160, 160)]
    expected = own(images, return_tensors="pt").pixel_values.unflatten(0, frames.shape[:2])
    assert pixels.shape == expected.shape == (2, 3, 3, size, size)
    assert (255 * torch.tensor(STD)[:, None, None] * (pixels - expected)).abs().max() < bound


def test_noise_passes_through_unclipped_and_with_its_gradient(folder):
    model = ViTDenoiser.from_vit(folder)
    patches = (0.5 + 4 * torch.randn(1, 1, 100, 256)).requires_grad_()
    pixels = model.pixels(patches)
    assert pixels.min() < (0 - max(MEAN)) / min(STD) and pixels.max() > (1 - min(MEAN)) / min(STD)
    torch.testing.assert_close(
        model.pixels(patches + 1) - pixels, (1 / torch.tensor(STD))[:, None, None].expand_as(pixels)
    )
    pixels.sum().backward()
    torch.testing.assert_close(patches.grad.sum(), (64**2 / torch.tensor(STD)).sum())


# --- the model


@pytest.fixture(params=["vit", "dinov2", "real dinov2"])
def pretrained(request, tmp_path):
    """A folder with the weights of a ViT, in half precision, or of a DINOv2, which has no processor; their class.

    The random DINOv2 has positions on a grid of 4, DINOv2-S on one of 37.
    """
    torch.manual_seed(0)
    if request.param == "vit":
        return saved(tmp_path / "vit", ViTForImageClassification(vit()).half(), processor()), ViTModel
    if request.param == "dinov2":
        sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 3, "num_attention_heads": 2, "initializer_range": 0.2}
        Dinov2Model(Dinov2Config(image_size=56, patch_size=14, **sizes)).save_pretrained(tmp_path / "dino")
        return tmp_path / "dino", Dinov2Model
    if not os.environ.get("DESCEND_PRETRAINED"):
        pytest.skip("DESCEND_PRETRAINED, the folder of pretrained models, is not set")
    return Path(os.environ["DESCEND_PRETRAINED"], "dinov2"), Dinov2Model


def test_a_denoiser_has_the_hidden_states_of_its_model_and_starts_mid_grey(pretrained, frames):
    """Its blocks' outputs come before the final norm, and its last_hidden_state after: the norm is the readout's."""
    source, kind = pretrained
    model, reference = ViTDenoiser.from_vit(source).eval(), kind.from_pretrained(source).float().eval()
    assert {each.dtype for each in model.parameters()} == {torch.float32}  # trained in full
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"vit", "decoder"}
    patches = as_patches(frames)[:1, :1]
    pixels, states = model.pixels(patches).flatten(0, 1), model.layer_outputs(patches)
    assert pixels.shape == (1, 3, *[64 if kind is ViTModel else 168] * 2)  # 12 patches of 14 to a side of a DINOv2
    expected = reference(pixels, output_hidden_states=True)
    for ours, theirs in zip(states, expected.hidden_states, strict=True):
        torch.testing.assert_close(ours.flatten(0, 1), theirs)
    torch.testing.assert_close(model.vit.layernorm(states[-1]).flatten(0, 1), expected.last_hidden_state)
    for prediction in model.predictions(patches):
        torch.testing.assert_close(prediction, torch.full_like(patches, 0.5))
    prediction.sum().backward()
    assert model.decoder.weight.grad.any()
    torch.testing.assert_close(ViTDenoiser.from_vit(source, depth=2).eval().layer_outputs(patches)[2], states[2])


@torch.no_grad()
def test_resizing_is_undone(folder):
    """A decoder that draws every token's patch in one grey, 8 of 64 pixels, reads as 20 of 160."""
    model = ViTDenoiser.from_vit(folder)
    model.decoder.weight.fill_(0)
    model.decoder.weight[:, 0] = 1
    model.vit.layernorm.weight.fill_(1)
    hidden = torch.randn(1, 1, 65, HIDDEN)
    picture = unpatchify(model.readout(hidden))[0, 0]
    greys = 0.5 + torch.nn.functional.layer_norm(hidden, (HIDDEN,))[0, 0, 1:, 0].reshape(8, 8)
    torch.testing.assert_close(picture[10::20, 10::20], greys, rtol=1e-4, atol=1e-4)


# --- tokens read as pixels


def by_loops(token, side, mean, std):
    """The grey patch that one token stands for: number (c·side + y)·side + x is channel c of pixel (y, x)."""
    patch = torch.zeros(side, side)
    for c, y, x in product(range(3), range(side), range(side)):
        patch[y, x] += (token[(c * side + y) * side + x] * std[c] + mean[c]) / 3
    return patch


def test_a_token_is_read_as_the_pixels_of_its_patch():
    model = ViTDenoiser(
        ViTDenoiserConfig(
            **{"depth": 1, "hidden_size": 48, "intermediate_size": 8, "image_mean": MEAN, "image_std": STD},
            **{"readout": "pixels", "image_size": 16, "patch_size": 4, "frame_size": 16, "frame_patch": 4},
        )
    )
    hidden = torch.randn(2, 1, 1 + 16, 48)
    picture = unpatchify(model.readout(hidden))
    for sample, row, column in product(range(2), range(4), range(4)):
        tile = picture[sample, 0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        expected = by_loops(hidden[sample, 0, 1 + 4 * row + column], 4, MEAN, STD)
        torch.testing.assert_close(tile, expected)


def test_pixels_have_no_weights_of_their_own(tmp_path, frames):
    """A pretrained ViT's blocks are kept; its final norm has no part, and there is no decoder."""
    saved(tmp_path, ViTModel(vit(32, 8, hidden_size=192)), processor(32))
    model, decoded = (ViTDenoiser.from_vit(tmp_path, readout=each).eval() for each in ("pixels", "decoder"))
    assert not any("norm." in name.replace("layernorm_", "") or "decoder" in name for name in model.state_dict())
    patches = as_patches(frames)
    torch.testing.assert_close(model.layer_outputs(patches), decoded.layer_outputs(patches), rtol=0, atol=0)


# --- what can't be loaded


PROCESSOR = "preprocessor_config.json"


@pytest.mark.parametrize(
    ("damage", "settings", "message"),
    [
        *((lambda folder: None, {"depth": depth}, rf"depth.*{BLOCKS}.*got {depth}") for depth in (0, -1, BLOCKS + 1)),
        *(
            (lambda folder, name=name: (folder / name).unlink(), {}, rf"config\.json.*{name}")
            for name in ("config.json", "model.safetensors", PROCESSOR)
        ),
        (lambda folder: BertConfig().save_pretrained(folder), {}, r"expected a ViT.*'bert'"),
        (lambda folder: change(folder, num_hidden_layers=BLOCKS + 1), {}, rf"weights.*layers\.{BLOCKS}\."),
        (lambda folder: change(folder, PROCESSOR, size={"height": 32, "width": 32}), {}, r"image_size.*64.*32, 32"),
        (lambda folder: change(folder, PROCESSOR, do_resize=False), {}, "do_resize False"),
        (lambda folder: change(folder, PROCESSOR, do_center_crop=True), {}, "do_center_crop True"),
        (lambda folder: change(folder, PROCESSOR, resample=1), {}, r"resample.*got 1"),
    ],
)
def test_a_folder_that_holds_no_such_vit_is_refused(folder, damage, settings, message):
    damage(folder)
    with pytest.raises(InputError, match=message):
        ViTDenoiser.from_vit(folder, **settings)


@pytest.mark.parametrize("source", ["google/vit-base-patch16-224-in21k", "no/such-vit", "./no folder"])
def test_an_unknown_name_or_no_network(source, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/nowhere")
    with pytest.raises(InputError, match=r"Hub.*config\.json.*model\.safe.*prep"):
        ViTDenoiser.from_vit(source)


def test_a_new_vit_is_as_wide_as_its_readout_asks():
    recipe = RECIPES["video-vit"].kind
    widths = [
        recipe(data="generated", readout=each, depth=1).network(None).config.hidden_size
        for each in ("decoder", "pixels")
    ]
    assert widths == [128, 768]
    with pytest.raises(InputError, match=r"hidden_size 768.*128"):
        recipe(data="generated", readout="pixels", hidden_size=128)


def test_tokens_of_another_width_are_no_pixels(pretrained):
    source, kind = pretrained
    recipe = RECIPES["video-vit"].kind(data="generated", pretrained=str(source), readout="pixels", depth=2)
    sizes = r"hidden_size 192, 3 channels.*8×8" if kind is ViTModel else r"hidden_size 588, 3 channels.*14×14"
    for make in (lambda: ViTDenoiser.from_vit(source, readout="pixels"), recipe.completed):
        with pytest.raises(InputError, match=rf"{sizes}; got \d+\..*--readout decoder"):
            make()
    assert recipe.label == ("ViT-2" if kind is ViTModel else "DINOv2-2")
