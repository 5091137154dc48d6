"""`descend denoise`: the pictures that it writes, and what it says of their error."""

import re

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from descend import DescentDenoiser
from tests.support.runs import said
from tests.support.sources import write_frames, write_video


def pictures(folder, end=""):
    files = sorted(file for file in folder.iterdir() if file.stem.isdecimal() != bool(end))
    return np.stack([np.asarray(Image.open(file)) for file in files])


def test_a_trial_adds_noise_and_measures_the_error(finished, tmp_path, capsys):
    write_frames(tmp_path / "clip", 9, suffix=".png", size=(160, 160))
    words = ["--data", tmp_path / "clip", "--out", tmp_path / "out", "--layer", "1", "--noise", "0.5", "--quiet"]
    assert "--limit must be at least" in said(capsys, "denoise", finished, *words, "--limit", "1", status=2)[1]
    out, err = said(capsys, "denoise", finished, *words)
    assert err == "" and "after layer 1 of 2" in out
    clean, noisy = pictures(tmp_path / "clip").astype(float), pictures(tmp_path / "out/clip", "_noisy")
    after = float(re.search(r"(\d+\.\d) denoised", out)[1])
    assert after == pytest.approx(np.sqrt(np.square(pictures(tmp_path / "out/clip") - clean).mean()), abs=0.06)
    inner = (noisy > 0) & (noisy < 255)
    assert np.abs((noisy - clean)[inner]).max() > 20  # noise is in the pictures
    blurred = np.sqrt(np.square(gaussian_filter(noisy, 1) - clean).mean())
    assert float(re.search(r"(\d+\.\d) blurred", out)[1]) == pytest.approx(blurred, rel=0.05)
    said(capsys, "denoise", finished, *words[:2], "--limit", "7", "--out", tmp_path / "seven")
    assert len(pictures(tmp_path / "seven/clip")) == 7


def test_an_export_denoises_as_the_first_layers_of_its_run_do(finished, tmp_path, capsys):
    write_video(tmp_path / "a.avi", 35)  # more than one block, and no whole number of windows
    out, _ = said(capsys, "export", finished, "--layers", "1", "--out", tmp_path / "first")
    assert "share one set of weights" in out and "runs 1 time" in out and "vllm" not in out
    given = ["--data", tmp_path / "a.avi", "--noise", "1", "--out"]
    said(capsys, "denoise", tmp_path / "first", *given, tmp_path / "export")
    said(capsys, "denoise", finished, *given, tmp_path / "run", "--layer", "1")
    assert np.array_equal(pictures(tmp_path / "export/a"), pictures(tmp_path / "run/a"))
    whole, first = map(DescentDenoiser.from_pretrained, (finished, tmp_path / "first"))
    assert first.noise_std == whole.noise_std
    out, _ = said(capsys, "denoise", finished, "--data", tmp_path / "a.avi", "--out", tmp_path / "plain")
    written, trained = out.splitlines()
    assert written == f"{tmp_path / 'plain'}: 35 frames of 1 clip after layer 2 of 2."
    assert f"standard deviation {whole.noise_std:.0f} of 255" in trained
    assert np.array_equal(pictures(tmp_path / "plain/a"), whole.denoise(tmp_path / "a.avi"))


def test_a_clip_may_have_the_name_of_a_folder_of_others(finished, tmp_path, capsys):
    (tmp_path / "clips" / "walk").mkdir(parents=True)
    for clip in ("walk.avi", "walk/first.avi"):
        write_video(tmp_path / "clips" / clip, 3)
    said(capsys, "denoise", finished, "--data", tmp_path / "clips", "--out", tmp_path / "out")
    assert len(pictures(tmp_path / "out/walk/first")) == 3 and len([*(tmp_path / "out/walk").glob("*.png")]) == 3
