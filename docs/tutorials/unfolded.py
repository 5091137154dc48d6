"""
Your unfolded network
=====================

An unfolded network is an iterative solver with trained parts. Trained the usual way, its inner iterations may be worse
than the measurement itself. Here a network of your own, in ten lines, learns to deblur images twice: by plain training,
and under constraints that each iteration must lower the loss.

``python docs/tutorials/unfolded.py OUT`` runs it in a terminal.
"""

# %%
# A solver with trained parts
# ---------------------------
# Five steps of proximal gradient descent. Each is a gradient step on the data, then a small network in the place of the
# proximal step. The state is a dictionary, as in deepinv, and ``physics`` is the blur.

import sys
from pathlib import Path

import torch
from matplotlib import pyplot
from torch import nn

import descend
from descend.models import blurred
from descend.tasks.inverse import Reconstruction, images


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(1.0))
        self.prior = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, state, y, physics):
        z = state["x"] - self.rate * physics(physics(state["x"]) - y)
        return {"x": z + self.prior(z)}


class Unfolded(nn.Module):
    def __init__(self, iterations=5):
        super().__init__()
        self.steps = nn.ModuleList(Step() for _ in range(iterations))

    def forward(self, y, physics):
        state = {"x": y}
        for step in self.steps:
            state = step(state, y, physics)
        return state["x"]


# %%
# Train it twice
# --------------
# ``state`` says where h_l is in what a block takes and returns. The measurement ``y`` is an argument of ``forward``, to
# which noise is added. ``physics`` is the same for all batches.


def physics(x):
    return blurred(x, 1.2)


def samples(count, seed):
    clean = images(count, side=16, rectangles=4, seed=seed)
    return [{"y": y, "labels": x} for y, x in zip(physics(clean), clean, strict=True)]


train, test = samples(1500, seed=1), samples(300, seed=2)
out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/unfolded")
models = {}
for method in ("erm", "constrained"):
    torch.manual_seed(0)
    models[method] = descend.layered(
        Unfolded(),
        blocks="steps",
        state=lambda given: given["x"],
        readout=lambda x: x,
        embeddings="y",
        fixed={"physics": physics},
    )
    settings = {"max_steps": 150, "per_device_train_batch_size": 16, "learning_rate": 3e-3, "use_cpu": True}
    args = descend.DescentConfig(out / method, method=method, logging_strategy="no", disable_tqdm=True, **settings)
    task = Reconstruction(unit=16 * 16, metric="mse")
    trainer = descend.DescentTrainer(models[method], args, task=task, noise=0.1, train_dataset=train)
    trainer.train()
    summary = descend.evaluate(models[method], test, task=task, noise=(0.1,))
    print(f"{method:11}", *(f"{loss:.4f}" for loss in summary.layer_losses[0.1]))

# %%
# Each line is the mean squared error after 0 (the measurement), 1, … 5 iterations. What they look like:

noisy = test[0]["y"] + 0.1 * torch.stack([sample["y"] for sample in test]).std() * torch.randn(1, 16, 16)
figure, axes = pyplot.subplots(2, 7, figsize=(9, 2.8), layout="constrained")
for row, (method, model) in zip(axes, models.items(), strict=True):
    with torch.no_grad():
        states = model.eval().layer_outputs({"y": noisy[None]})
    titles = ["measured", *map(str, range(1, 6)), "clean"]
    for panel, title, image in zip(row, titles, [*states, test[0]["labels"][None]], strict=True):
        panel.imshow(image[0, 0], cmap="grey", vmin=0, vmax=1)
        panel.set(title=title, xticks=[], yticks=[])
    row[0].set_ylabel(method)
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "iterations.png")

# %%
# What next
# ---------
# ``descend.first(model, 3)`` is the network that stops after iteration 3. :doc:`/guides/unrolled` has networks of one
# block that runs several times, which may run on past training, and says which method to try first.
