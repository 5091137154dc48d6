"""
The method in pictures
======================

What a layer's loss is, what a constraint asks of it, and how training enforces it. The curves of the first two pictures
are drawn by hand to show the idea; those of the last come from a run of ``descend.core``.
"""

# %%
# Every layer can be read
# -----------------------
# A transformer turns an embedded input into h₀, h₁, … h_L. One readout, the model's own head, turns each of them into a
# prediction. So each layer l has an expected loss f_l, over the data and the noise on the input.

# sphinx_gallery_start_ignore
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

figure, axis = plt.subplots(figsize=(8, 2.6), layout="constrained")
figure.suptitle("One readout turns the output of every layer into a prediction")
arrow = {"arrowstyle": "->", "mutation_scale": 12}
names = ["input\n+ noise", "layer 1", "layer 2", "…", "layer L"]
for place, name in enumerate(names):
    axis.add_patch(FancyBboxPatch((2 * place, 1), 1.2, 0.8, boxstyle="round,pad=0.05", fc="#e8eef7", ec="#33507d"))
    axis.text(2 * place + 0.6, 1.4, name, ha="center", va="center")
    if place:
        axis.add_patch(FancyArrowPatch((2 * place - 0.7, 1.4), (2 * place - 0.1, 1.4), **arrow))
    if name != "…":
        index = {0: "0", 4: "L"}.get(place, str(place))
        axis.add_patch(FancyArrowPatch((2 * place + 0.6, 0.9), (2 * place + 0.6, 0.45), **arrow))
        axis.text(2 * place + 0.6, 0.2, f"loss $f_{index}$", ha="center", va="center")
axis.set(xlim=(-0.3, 9.6), ylim=(-0.1, 2.1))
axis.axis("off")
plt.show()
# sphinx_gallery_end_ignore

# %%
# A constraint asks each layer for its share
# ------------------------------------------
# Plain training asks only that f_L is low. How the layers before it get there is left open: the loss may stay high
# until the last layers, or rise in between. A constraint gives each layer a bound. The paper's bound is a share of the
# loss before it, (1 − α) f_{l−1}. The default follows from the first and the last loss: :doc:`/explanation/method`.

# sphinx_gallery_start_ignore
plain = [6.0, 5.7, 5.9, 5.2, 4.1, 2.4, 0.95]
constrained = [5.6, 3.4, 2.5, 1.9, 1.5, 1.2, 0.95]
bounds = [0.8 * loss for loss in constrained[:-1]]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
figure.suptitle("Plain training leaves the work to the end; with α = 0.2 each layer must do its share (sketch)")
axes[0].plot(plain, "o-", color="#555555")
axes[0].set(xlabel="layer", ylabel="expected loss", title="plain training", ylim=(0, None))
axes[1].plot(constrained, "s-", color="#1f5fa8", label="loss")
left = [layer - 0.3 for layer in range(1, 7)]
axes[1].hlines(bounds, left, [place + 0.6 for place in left], color="#b3261e", label="bound")
axes[1].set(xlabel="layer", title="constrained")
axes[1].legend()
plt.show()
# sphinx_gallery_end_ignore

# %%
# Multipliers enforce it
# ----------------------
# Each constraint has a multiplier λ_l ≥ 0. Training alternates two steps: the model's weights go down the Lagrangian,
# and the multipliers go up where a bound is missed and down where it is met.
#
# The smallest example has one weight x and two layers. The last loss alone would choose x = 0, where the first layer's
# loss is 1.1. The constraint asks that it is at most half of the loss before it, which is 1.

import torch

from descend import DescentProblem, PrimalDual

problem = DescentProblem(depth=2, alpha=[0.5, 0.01])
dual = PrimalDual(problem, optimizer="sgd", lr=0.1)
x = torch.zeros((), requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
path, multipliers = [], []
for _ in range(150):
    losses = torch.stack([torch.ones(()), 0.1 + (x - 1) ** 2, 0.2 + 0.5 * x**2])
    path.append(losses[1:].tolist())
    multipliers.append(dual.multipliers[1].item())
    dual.lagrangian(losses).backward()
    optimizer.step()
    optimizer.zero_grad()
    dual.step(losses.detach())

# sphinx_gallery_start_ignore
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
figure.suptitle("The multiplier grows until the first layer meets its bound, and stays where the bound just holds")
left.plot(path, label=["$f_1$", "$f_2$"])
left.axhline(0.5, color="#b3261e", linestyle="--", label="bound of $f_1$")
left.set(xlabel="step", ylabel="loss", ylim=(0, None))
left.legend()
right.plot(multipliers, color="#33507d")
right.set(xlabel="step", ylabel="multiplier $λ_1$", ylim=(0, None))
plt.show()
# sphinx_gallery_end_ignore

# %%
# The last loss pays for it: 0.27 in place of 0.2. In a deep network there is often a solution that costs next to
# nothing, because many different inner layers lead to the same last loss. Whether that is so, and whether the
# constraints hold on data that training has not seen, is what the verdict says: :doc:`/explanation/verdict`.
