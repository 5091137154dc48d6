"""
Your own model and task
=======================

Train a PyTorch module of your own, on your own data, with and without layerwise descent constraints: here a residual
MLP that reads handwritten digits. It takes 45 lines, and ends with the same page as every other model.

``python docs/tutorials/own_model.py OUT`` runs it in a terminal. It needs scikit-learn, for the digits.
"""

# %%
# The model stays as it is
# ------------------------
# Two things must hold: each block's output is the next block's input, and one readout turns any block's output into a
# prediction. Here that is ``head``.

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

import descend
from descend.cli import main


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, hidden):
        return hidden + self.inner(hidden)


class ResidualMLP(nn.Module):
    def __init__(self, width=64, depth=6):
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, pixels):
        hidden = self.embed(pixels)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


# %%
# The task says what the loss of a sample is
# ------------------------------------------
# ``losses`` is the only method that a task must have. It returns one loss for each sample, not their mean.


class Digits(descend.Task):
    metric, higher_is_better = "accuracy", True

    def losses(self, prediction, target):
        return F.cross_entropy(prediction, target, reduction="none")

    def score(self, prediction, target):
        return (prediction.argmax(-1) == target).float()


# %%
# Train, evaluate, compare
# ------------------------
# Samples are dictionaries: ``forward`` takes ``pixels``, the loss takes ``labels``. ``descend.layered`` names the
# module's blocks, its readout, and the module whose output gets the noise.

images, labels = load_digits(return_X_y=True)
samples = [{"pixels": torch.tensor(x / 16).float(), "labels": int(y)} for x, y in zip(images, labels, strict=True)]
train, test = train_test_split(samples, test_size=400, random_state=0)
out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own_model")

for method in ("erm", "constrained"):
    torch.manual_seed(0)
    model = descend.layered(ResidualMLP(), blocks="blocks", readout="head", embeddings="embed")
    settings = {"num_train_epochs": 6, "per_device_train_batch_size": 32, "learning_rate": 1e-3, "use_cpu": True}
    args = descend.DescentConfig(out / method, method=method, logging_strategy="no", disable_tqdm=True, **settings)
    trainer = descend.DescentTrainer(model, args, task=Digits(), noise=0.5, train_dataset=train)
    trainer.train()
    print(method, "→", descend.evaluate(trainer, test, noise=(0, 0.5, 1, 1.5), name="digits").answer)

main(["compare", str(out / "erm"), str(out / "constrained"), "--out", str(out / "page")])

# %%
# The last line prints where the page is that compares both runs.
#
# What next
# ---------
# :doc:`/guides/own_model` lists what ``descend.layered`` and ``descend.Task`` take, and says what to do where hooks are
# not enough. A model of Transformers needs none of this: give it to ``DescentTrainer`` as it is
# (:doc:`/reference/families`).
