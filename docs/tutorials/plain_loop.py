"""
The core in a plain loop
========================

``descend.core`` needs PyTorch alone. It sees the vector of layer losses, and gives back a number to call ``backward``
on. The model, the optimizer and the loop are yours.
"""

# %%
# A model whose layers can be read
# --------------------------------
# Six residual layers map a point of the plane to the sine of its distance from the centre. One readout turns every
# layer's output into a prediction, so that each layer has a loss.

import matplotlib.pyplot as plt
import torch
from torch import nn

from descend import DescentProblem, GeometricTarget, PrimalDual


class Network(nn.Module):
    """Residual layers with one readout for all of them."""

    def __init__(self, width: int = 32, depth: int = 6):
        super().__init__()
        self.embed = nn.Linear(2, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.readout = nn.Linear(width, 1)

    def losses(self, points: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean squared error of each layer's prediction, shape (L+1,)."""
        hidden = self.embed(points)
        losses = [(self.readout(hidden) - target).square().mean()]
        for layer in self.layers:
            hidden = hidden + layer(hidden)
            losses.append((self.readout(hidden) - target).square().mean())
        return torch.stack(losses)


def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and the values to predict."""
    points = torch.randn(size, 2, generator=generator)
    return points, torch.sin(3 * points.norm(dim=-1, keepdim=True))


# %%
# Two loops, two lines apart
# --------------------------
# Plain training calls ``losses[-1].backward()``. Constrained training calls ``backward`` on the Lagrangian, and lets
# ``dual`` step on the losses: multipliers rise where a layer misses its bound and fall where it meets it.
#
# ``GeometricTarget`` takes each layer's bound from the losses. Its ``strength``, 0 to 1, says how much of the descent
# the early layers must do. ``optimizer="price"`` goes with it, and needs to know the number of steps.

STEPS = 800
curves, paths = {}, []
for method in ("plain", "constrained"):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    problem = DescentProblem(depth=6, target=GeometricTarget(strength=0.7))
    dual = PrimalDual(problem, optimizer="price", horizon=STEPS)
    for _ in range(STEPS):
        losses = model.losses(*batch(128, generator))
        if method == "plain":
            losses[-1].backward()
        else:
            dual.lagrangian(losses).backward()
            dual.step(losses.detach())
            paths.append(dual.multipliers[1:].clone())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        curves[method] = model.losses(*batch(20_000, torch.Generator().manual_seed(1)))

# %%
# The result, on points that training has not seen:

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
figure.suptitle("Loss by layer after training, and the multipliers over training")
for (method, curve), style in zip(curves.items(), ("o--", "s-"), strict=True):
    left.plot(curve, style, label=method)
left.set(xlabel="layer", ylabel="mean squared error", yscale="log")
left.legend()
right.plot(range(0, STEPS, 50), torch.stack(paths).reshape(-1, 50, 6).mean(1))
right.set(xlabel="step", ylabel="multiplier, mean over 50 steps")
right.legend([f"layer {layer}" for layer in range(1, 7)], ncols=2)
plt.show()

# %%
# Plain training does all its work in the last layer; here each layer does its share, at the same last loss or better.
# A multiplier that stays at 1, the price, belongs to a layer whose bound is hard to meet.
#
# What next
# ---------
# With accumulation, or batches of unequal size, ``dual.observe(sums, count)`` takes each micro-batch's losses summed
# over its samples. ``DescentProblem(depth=6, alpha=0.1, stop_gradient=False)`` with ``optimizer="adam"`` is
# eq. (4) and (5): :doc:`/explanation/method`. Other constraints than those of layers: :doc:`/guides/constraints`.
# ``dual.state_dict()`` belongs into your checkpoint.
