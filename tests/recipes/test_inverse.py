"""The recipes of inverse problems: LISTA and unfolded proximal gradient descent on generated signals."""

import pytest
import torch
from torch.utils.data import default_collate

import descend
from descend.errors import InputError
from descend.models import LISTA, PGD, blurred
from descend.tasks.inverse import dictionary, images, sparse_codes

QUICK = {"max_steps": 3, "per_device_train_batch_size": 8, "eval_strategy": "no", "load_best_model_at_end": False}


def lista_by_hand(model, y):
    states = [torch.zeros(len(y), 100)]
    for layer in [*model.layers] * (model.depth // len(model.layers)):
        z = y @ layer.encode.T + states[-1] @ layer.again.T
        states.append(z.sign() * torch.relu(z.abs() - layer.threshold.abs()))
    return states


def pgd_by_hand(model, y):
    states = [y]
    for layer in [*model.layers] * (model.depth // len(model.layers)):
        z = states[-1] - layer.size * blurred(blurred(states[-1], 1.2) - y, 1.2)
        states.append(z + layer.decode(torch.relu(layer.encode(z))))
    return states


BY_HAND = {"lista": (LISTA, lista_by_hand), "pgd": (PGD, pgd_by_hand)}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", BY_HAND)
def test_a_layer_is_an_iteration_by_its_formula_and_a_tied_network_runs_on(name, tied, tmp_path):
    kind, by_hand = BY_HAND[name]
    run = descend.configure(name, data="generated", tied=tied, depth=4, output_dir=str(tmp_path / "run"), **QUICK)
    trainer = run.trainer()
    trainer.train()
    model = trainer.objective.model.eval()
    batch = default_collate([trainer.eval_dataset[index] for index in range(3)])
    with torch.no_grad():
        states = model.layer_outputs(batch)
        for state, expected in zip(states, by_hand(model, batch["y"]), strict=True):
            torch.testing.assert_close(state, expected)
        assert torch.equal(model(y=batch["y"]), states[-1])
        model.save_pretrained(tmp_path / "saved")
        restored, _ = run.recipe.restore(str(tmp_path / "saved"))
        assert type(restored) is kind and torch.equal(restored(y=batch["y"]), states[-1])
        if tied:
            with model.running(9):
                further = model.layer_outputs(batch)
            assert len(further) == 10 and all(map(torch.equal, further[:5], states)) and model.depth == 4
        else:
            with pytest.raises(InputError, match="4 in all, and no block that runs several times"):
                model.running(9)


def test_lista_starts_as_ista_which_lowers_its_own_objective():
    """½‖A x − y‖² + θ‖x‖₁ at θ = .1, whose proximal gradient steps of length 1/‖A‖² can't raise it."""
    recipe = descend.configure("lista", data="generated", depth=30, output_dir="unused").recipe
    model, matrix = recipe.network(None), dictionary(50, 100)
    codes = sparse_codes(20, 100, 0.1, seed=5)
    with torch.no_grad():
        states = model.layer_outputs({"y": codes @ matrix.T})
    energies = [
        ((x @ matrix.T - codes @ matrix.T).square().sum(1) / 2 + 0.1 * x.abs().sum(1)).mean().item() for x in states
    ]
    assert energies == sorted(energies, reverse=True) and energies[-1] < energies[0] / 2


def test_generated_signals_are_what_they_say():
    codes = sparse_codes(5000, 100, 0.1, seed=0)
    assert (codes != 0).float().mean().item() == pytest.approx(0.1, abs=0.003)
    assert codes[codes != 0].std().item() == pytest.approx(1, abs=0.02)
    assert torch.allclose(dictionary(50, 100).norm(dim=0), torch.ones(100))
    drawn = images(50, 16, 4, seed=0)
    assert drawn.shape == (50, 1, 16, 16) and drawn.min() >= 0 and drawn.max() <= 1
    assert max(len(image.unique()) for image in drawn) <= 5  # four rectangles on a ground
    smooth = blurred(drawn, 1.2)
    torch.testing.assert_close(smooth.mean((1, 2, 3)), drawn.mean((1, 2, 3)))
    one, other = drawn[:25], drawn[25:]
    torch.testing.assert_close((blurred(one, 1.2) * other).sum(), (one * blurred(other, 1.2)).sum())  # its own adjoint


def test_noise_of_a_tenth_is_twenty_decibels():
    run = descend.configure("lista", data="generated", output_dir="unused")
    data = run.recipe.load()
    std = run.recipe.corruption(data.sigma, 0).std(data.sigma)
    power = data.train.measurements.square().mean().item()
    assert 10 * torch.log10(torch.tensor(power / std**2)).item() == pytest.approx(20, abs=0.05)


def test_another_part_another_seed_another_shift_are_other_signals():
    recipe = descend.configure("lista", data="generated", output_dir="unused").recipe
    train, test = recipe.measured("train"), recipe.measured("test")
    assert not torch.equal(train.signals[:1000], test.signals)
    other, denser = (recipe.load_test(name, None, None)[0] for name in recipe.names_of_data)
    assert torch.equal(other.signals, test.signals) and not torch.equal(other.measurements, test.measurements)
    assert (denser.signals != 0).float().mean() > 1.8 * (test.signals != 0).float().mean()
    with pytest.raises(InputError, match="must be one of generated, other-operator, denser; got 'nowhere'"):
        recipe.load_test("nowhere", None, None)
    with pytest.raises(InputError, match="token dropout needs tokens; a measurement has none"):
        recipe.corruption(0.2, 0, "dropout")
    with pytest.raises(InputError, match=r"lista trains on generated signals; got data 'here'.*descend.layered"):
        descend.configure("lista", data="here", output_dir="unused").recipe.load()


def test_a_network_that_is_no_worse_after_k_is_judged_by_it(tmp_path):
    """The objective is iteration 3, and the verdict is on iterations 4 to 6."""
    out = tmp_path / "run"
    run = descend.configure("lista", data="generated", tied=True, depth=6, after=3, output_dir=str(out), **QUICK)
    trainer = run.train()
    assert trainer.method.weights(0, 3) == [0, 0, 0, 1, 0, 0, 0]
    summary = descend.Run.read(out).evaluate(noise=[0.1], most=100)
    assert (summary.target, summary.after) == ("no_worse", 3)
    losses = summary.layer_losses[0.1]
    assert summary.bounds == [None, None, None, *[pytest.approx(losses[3])] * 3]
    assert summary.violations[3:] == pytest.approx([loss - losses[3] for loss in losses[4:]])
    shifted = descend.Run.read(out, data="denser").evaluate(noise=[0.1], most=100)
    assert shifted.dataset == "denser sparse codes" and shifted.layer_losses[0.1][0] > 1.5 * losses[0]


def test_a_measurement_of_another_shape_is_refused():
    recipe = descend.configure("pgd", data="generated", output_dir="unused").recipe
    with pytest.raises(InputError, match=r"a measurement must have the shape \(1, 16, 16\); got \(1, 8, 8\)"):
        recipe.network(None)(y=torch.zeros(2, 1, 8, 8))


def test_a_distance_has_a_gradient_where_an_estimate_is_exact():
    task = descend.configure("lista", data="generated", loss="distance", output_dir="unused").recipe.task()
    estimate = torch.zeros(2, 100, requires_grad=True)
    signal = torch.stack([torch.zeros(100), torch.ones(100)])
    task.losses(estimate, signal).sum().backward()
    assert estimate.grad.isfinite().all() and not estimate.grad[0].any() and estimate.grad[1].any()
