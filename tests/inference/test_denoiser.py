"""Denoising of frames: against the model's own predictions, window by window."""

import numpy as np
import pytest
import torch
from PIL import Image

from descend import DUST, UT, DescentDenoiser, DUSTConfig, GaussianNoise, InputError, UTConfig
from descend.models import ViTDenoiser, ViTDenoiserConfig
from descend.tasks.video import SIZE, generate_scenes, patchify, unpatchify
from tests.support.networks import moved, network
from tests.support.sources import write_frames

MODELS = {
    "ut": lambda: UT(UTConfig(depth=3)),
    "dust": lambda: DUST(DUSTConfig(depth=3, atoms=400)),
    "vit": lambda: ViTDenoiser(ViTDenoiserConfig(depth=3, hidden_size=64, intermediate_size=96)),
}


@pytest.fixture(params=MODELS)
def model(request):
    """A model a little away from its start, whose layers differ."""
    return moved(MODELS[request.param](), 0.02)


@pytest.fixture(scope="module")
def frames():
    return generate_scenes(1, 11, seed=0)[0]


@torch.no_grad()
def by_hand(model, frames, layer):
    """What one window reads as after a layer, in grey levels."""
    patches = patchify(torch.from_numpy(frames)[None]).float() / 255
    read = model.readout(model.layer_outputs(patches)[layer])
    return unpatchify(read)[0].numpy() * 255


@pytest.mark.parametrize(
    ("window", "layer", "starts"),
    [*((4, layer, (0, 4, 7)) for layer in (1, 2, None)), (20, None, (0,))],  # a clip may be shorter than a window
)
def test_windows_are_read_after_the_layer(model, frames, window, layer, starts):
    expected = [by_hand(model, frames[start : start + window], layer or 3).clip(0, 255) for start in starts]
    for block in [*model.layer_modules][layer or 3 :]:
        block.register_forward_hook(lambda *_: pytest.fail("a later block ran"))
    denoised = DescentDenoiser(model, window=window).denoise(frames, layer, batch_size=2)
    assert denoised.shape == (11, SIZE, SIZE) and denoised.dtype == np.uint8
    for start, read in zip(starts, expected, strict=True):
        kept = slice(None, 3) if start == 4 else slice(None)  # the last window overlaps
        assert np.abs(denoised[start : start + window][kept] - read[kept]).max() <= 0.51


def test_frames_are_read_as_in_training(tmp_path):
    denoiser = DescentDenoiser(MODELS["ut"]())
    write_frames(tmp_path / "clip", 6, suffix=".png", size=(64, 48))
    grey = np.stack([np.asarray(Image.open(tmp_path / "clip" / f"{place}.png")) for place in range(6)])
    expected = denoiser.denoise(tmp_path / "clip")
    colour = np.repeat(grey[..., None], 3, -1)
    for same in (grey, colour, torch.from_numpy(grey)):
        assert np.array_equal(denoiser.denoise(same), expected)
    for near in (grey / 255, colour.astype(np.float32) / 255):  # uint8 is rounded after the resizing
        assert np.abs(denoiser.denoise(near).astype(int) - expected).max() <= 2
    red = np.zeros((2, 160, 160, 3), np.float32)
    red[..., 0] = 1
    assert np.array_equal(denoiser.denoise(red), denoiser.denoise(np.full((2, 160, 160), 0.299, np.float32)))


def test_a_saved_model_is_loaded_with_what_its_run_knows(tmp_path, frames):
    model = MODELS["ut"]().eval()
    model.save_pretrained(tmp_path / "run/model")
    alone = DescentDenoiser.from_pretrained(tmp_path / "run/model")
    assert (alone.window, alone.noise_std, alone.depth) == (5, None, 3)
    assert DescentDenoiser(model, noise=GaussianNoise(0.8)).noise_std is None  # σ_x is not known
    config = '{"recipe": "video-ut", "method": "erm", "seed": 0, "model": "UT-3", "sigma": 0.25, "training": {}, '
    (tmp_path / "run/config.json").write_text(config + '"settings": {"data": "x", "window": 3, "noise": 0.8}}')
    for place in ("run", "run/model"):
        denoiser = DescentDenoiser.from_pretrained(tmp_path / place)
        assert denoiser.window == 3 and denoiser.noise_std == pytest.approx(0.8 * 0.25 * 255)
        assert np.array_equal(denoiser.denoise(frames), DescentDenoiser(model, window=3).denoise(frames))
    (tmp_path / "run/config.json").write_text(config + '"settings": {"data": "x", "window": 3}}')
    with pytest.raises(InputError, match=r"config\.json has no usable window and noise"):
        DescentDenoiser.from_pretrained(tmp_path / "run")


def denoise(frames, **settings):
    return DescentDenoiser(MODELS["ut"]()).denoise(frames, **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda frames: denoise(frames[0]), r"shape \(F, H, W\).*\(160, 160\)"),
        (lambda frames: denoise(np.zeros((180, 320, 3), np.uint8)), r"\(180, 320, 3\).*frames\[None\]"),
        (lambda frames: denoise(frames[:0]), r"\(0, 160, 160\)"),
        (lambda frames: denoise(frames.astype(int)), "uint8, or floats.*int64"),
        (lambda frames: denoise(frames.astype(float)), "Divide by 255"),
        (lambda frames: denoise(np.full((2, 9, 9), np.nan)), "mean of nan"),
        (lambda frames: denoise("nowhere"), "does not exist"),
        (lambda frames: denoise("clips"), "holds 2 clips"),
        (lambda frames: denoise(frames, layer=0), "layer must be 1 to 3.*got 0"),
        (lambda frames: denoise(frames, layer=4), "layer must be 1 to 3.*got 4"),
        (lambda frames: denoise(frames, batch_size=0), "batch_size"),
        (lambda frames: DescentDenoiser(MODELS["ut"](), window=0), "window must be at least 1"),
        (lambda frames: DescentDenoiser.from_pretrained("bert"), "expected a UT, a DUST or a ViTDenoiser; got Bert"),
        (lambda frames: DescentDenoiser.from_pretrained("."), "can't load a denoiser"),
    ],
)
def test_what_can_not_be_denoised_or_is_no_denoiser_is_refused(working_directory, frames, call, message):
    for name in ("a", "b"):
        write_frames(working_directory / "clips" / name)
    network("bert").save_pretrained("bert")
    with pytest.raises(InputError, match=message):
        call(frames)
