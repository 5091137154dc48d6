"""`descend.UnrolledLoss` in deepinv's own Trainer: the error of each iteration on test pictures, by method.

    pip install --no-deps --target FOLDER deepinv==0.5.0
    PYTHONPATH=FOLDER python benchmarks/deepinv_trainer.py [--epochs 20] [--seed 0]

deepinv needs torchvision, h5py and natsort when it is imported, and not for this: stubs stand in for them. The network
is proximal gradient descent of 5 iterations with DnCNN priors of 3 layers and 8 channels, one for each iteration or one
for all. It deblurs 16×16 pictures of squares with noise of 0.1, after 20 epochs of 32 batches at the rate 2e-3. Rates
are not searched.
"""

import argparse
import sys
from unittest.mock import MagicMock

import torch

from descend import UnrolledLoss  # before the stubs: Transformers asks whether there is a torchvision

STUBS = "torchvision torchvision.utils torchvision.transforms torchvision.transforms.functional torchvision.datasets "
STUBS += "torchvision.datasets.folder torchvision.datasets.utils h5py natsort"
sys.modules |= {name: MagicMock(IMG_EXTENSIONS=()) for name in STUBS.split()}

import deepinv  # noqa: E402

BATCH, RATE, ITERATIONS = 16, 2e-3, 5
READS = {"blocks": "fixed_point.iterator", "depth": ITERATIONS, "state": lambda out: out["est"][0]}
LOSSES = {
    "SupLoss": lambda steps: deepinv.loss.SupLoss(),
    "erm": lambda steps: UnrolledLoss(**READS, method="erm"),
    "linear": lambda steps: UnrolledLoss(**READS, method="linear"),
    "constrained, strength 0.8": lambda steps: UnrolledLoss(**READS, strength=0.8, steps=steps),
}
"""Name → the loss for a number of steps."""


def pictures(count: int, seed: int) -> torch.Tensor:
    """Two squares on black, (count, 1, 16, 16)."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.zeros(count, 1, 16, 16)
    for each in drawn:
        for _ in range(2):
            top, left = torch.randint(0, 11, (2,), generator=generator).tolist()
            size = int(torch.randint(3, 8, (1,), generator=generator))
            each[:, top : top + size, left : left + size] = 0.3 + 0.7 * torch.rand(1, generator=generator).item()
    return drawn


def network(shared: bool) -> torch.nn.Module:
    """Proximal gradient descent, whose step sizes and priors are trained."""
    net = {"in_channels": 1, "out_channels": 1, "depth": 3, "nf": 8, "pretrained": None}
    priors = [deepinv.optim.PnP(deepinv.models.DnCNN(**net)) for _ in range(1 if shared else ITERATIONS)]
    return deepinv.optim.PGD(
        data_fidelity=deepinv.optim.L2(),
        prior=priors[0] if shared else priors,
        stepsize=[1.0] * ITERATIONS,
        sigma_denoiser=[0.1] * ITERATIONS,
        lambda_reg=1.0,
        max_iter=ITERATIONS,
        unfold=True,
    )


def trained(shared: bool, name: str, data: tuple, physics: torch.nn.Module, epochs: int, seed: int) -> list[float]:
    """The mean squared error of each iteration on test pictures, h_0 … h_L."""
    x, y, test_x, test_y = data
    torch.manual_seed(seed)
    model = network(shared)
    torch.manual_seed(seed)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    evaluated = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(test_x[:64], test_y[:64]), batch_size=64)
    deepinv.Trainer(
        model,
        physics,
        torch.optim.Adam(model.parameters(), lr=RATE),
        loader,
        epochs=epochs,
        losses=LOSSES[name](epochs * len(loader)),
        eval_dataloader=evaluated,
        compute_eval_losses=True,  # which runs the loss in training mode: no dual step may follow
        device="cpu",
        save_path=None,
        verbose=False,
    ).train()
    read = UnrolledLoss(**READS, method="erm")
    read.adapt_model(model.eval())
    with torch.no_grad():
        read(x_net=model(test_y, physics), x=test_x)
    return read.losses.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    noise = deepinv.physics.GaussianNoise(0.1, rng=torch.Generator().manual_seed(3))
    kernel = deepinv.physics.blur.gaussian_blur(sigma=(1.0, 1.0))
    physics = deepinv.physics.Blur(kernel, padding="circular", noise_model=noise)
    x, test_x = pictures(512, 1), pictures(256, 2)
    with torch.no_grad():
        data = (x, physics(x), test_x, physics(test_x))
    print(f"measurement {(data[3] - test_x).square().mean():.4f}")
    for shared in (False, True):
        for name in LOSSES:
            losses = trained(shared, name, data, physics, given.epochs, given.seed)
            print("shared" if shared else "one each", name, *(f"{each:.4f}" for each in losses), flush=True)


if __name__ == "__main__":
    main()
