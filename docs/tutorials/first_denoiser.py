"""
Your first robust denoiser
==========================

Train a small vision transformer to remove noise from video frames, once plainly and once under layerwise descent
constraints. Then compare what each of their layers gives.
"""

# %%
# The data
# --------
# Without a folder, ``load_video`` generates short clips of people who walk through a street. A sample is a window of
# five frames, cut into patches. ``data.sigma`` is σ_x, the standard deviation of the clean pixels.

import matplotlib.pyplot as plt
import torch
from torch.utils.data import Subset

import descend
from descend import DescentConfig, DescentTrainer, GaussianNoise
from descend.models import ViTDenoiser, ViTDenoiserConfig
from descend.tasks.video import VideoDenoising, load_video, unpatchify

data = load_video(None, window=5)
test = Subset(data.test, range(0, len(data.test), 8))
print(f"{len(data.train)} windows to train on, σ_x = {data.sigma:.3f}")

# %%
# Train twice
# -----------
# ``DescentTrainer`` is the ``Trainer`` of Transformers with another loss. ``method="erm"`` is plain training: only the
# last layer's loss counts. ``method="constrained"`` is the default: every layer must lower the loss. Its one setting is
# ``strength``, how much of the descent the early layers must do.
#
# The noise has a standard deviation of 0.8 σ_x. ``descend.evaluate`` measures each layer on test clips, without noise,
# with the noise of training, and with noise that is twice as strong.

models, summaries = {}, {}
for method in ("erm", "constrained"):
    torch.manual_seed(0)
    config = ViTDenoiserConfig(num_hidden_layers=4, hidden_size=64, intermediate_size=128, num_attention_heads=4)
    trainer = DescentTrainer(
        ViTDenoiser(config),
        DescentConfig(
            output_dir=f"runs/first_denoiser/{method}",
            method=method,
            strength=0.75,
            max_steps=50,
            learning_rate=2e-3,
            per_device_train_batch_size=2,
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        task=VideoDenoising(),
        noise=GaussianNoise(0.8, data.sigma),
        train_dataset=data.train,
    )
    trainer.train()
    summaries[method] = descend.evaluate(trainer, test, noise=(0, 0.8, 1.6), name="generated scenes")
    models[method] = trainer.model
    print(method, "→", summaries[method].answer)

# %%
# What each layer gives
# ---------------------
# One readout turns every layer's output into frames. The error is in grey levels from 0 to 255, on test clips.

names = {"erm": "plain training", "constrained": "constrained"}
styles = {"erm": "o--", "constrained": "s-"}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
figure.suptitle("Error by layer, and error of the last layer by noise level")
for method, summary in summaries.items():
    left.plot(summary.layer_metrics[0.8], styles[method], label=names[method])
    right.plot(summary.noise, summary.values, styles[method], label=names[method])
left.set(xlabel="layer", ylabel="RMSE at the noise of training", ylim=(0, None))
right.set(xlabel="noise γ, in units of σ_x", ylabel="RMSE of the last layer", ylim=(0, None))
left.legend()
plt.show()

# %%
# The layers in the middle of the constrained model are already close to the last one. Plain training leaves most of the
# work to the end. The last layers are alike, and so is their answer to stronger noise: here the constraints buy good
# inner layers, not a better last one.

window = test[0]["patches"][None]
noisy = window + 0.8 * data.sigma * torch.randn(window.shape, generator=torch.Generator().manual_seed(0))
figure, axes = plt.subplots(2, 6, figsize=(9, 3.4), layout="constrained")
figure.suptitle("One test frame as each layer reads it: plain training above, constrained below")
for row, (method, model) in zip(axes, models.items(), strict=True):
    with torch.no_grad():
        frames = [model.readout(hidden) for hidden in model.eval().layer_outputs(noisy)]
    for place, (axis, patches) in enumerate(zip(row, [*frames, window], strict=True)):
        axis.imshow(unpatchify(patches[0])[2].clamp(0, 1), cmap="gray", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[], title=f"layer {place}" if place < 5 else "clean")
    row[0].set_ylabel(names[method])
plt.show()

# %%
# What next
# ---------
# ``runs/first_denoiser/constrained`` holds ``summary.json``, ``report.html``, a page with all figures, and the last
# checkpoint. ``trainer.save_model(FOLDER)`` writes a model that ``DescentDenoiser.from_pretrained`` reads.
# ``make demo`` trains a pair under the paper's constraints and plainly, and :doc:`/guides/paper` does so on your clips.
# :doc:`/guides/own_data` says how they are read.
