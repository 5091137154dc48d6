"""The temperature of a classifier's logits: what it is, what it changes, and what it leaves alone."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import TrainerCallback

from descend import DescentProblem, GeometricTarget
from descend.evaluation.calibration import TEMPERATURES, at_temperature, preferred, temperature
from descend.evaluation.layers import LayerLosses
from descend.evaluation.satisfaction import verdict
from descend.models import LayeredClassifier
from descend.tasks.text import Classification
from tests.support import networks, ranks


def sure(scales: list[float], wrong: float = 0.3) -> LayerLosses:
    """Layers whose logits for the right one of two classes are ± so much, wrong in this share of 1,000 texts."""
    right = torch.where(torch.arange(1000) < 1000 * wrong, -1.0, 1.0)
    logits = torch.stack([torch.stack([scale * right, -scale * right], 1) for scale in scales], 1)
    targets = torch.zeros(1000, dtype=torch.long)
    losses = torch.stack(
        [torch.nn.functional.cross_entropy(layer, targets, reduction="none") for layer in logits.unbind(1)], 1
    )
    return LayerLosses(losses.double(), torch.arange(1000), [], losses, logits=(logits, targets))


@pytest.mark.parametrize(
    ("costs", "feasible", "place"),
    [
        ([1.0, 1.009], [False, True], 1),
        ([1.0, 1.011], [False, True], 0),
        ([-1.0, -0.991], [False, True], 1),
        ([-1.0, -0.989], [False, True], 0),
        ([2.0, 1.0, 1.0], [True, False, False], 1),  # the first of equal ones
    ],
)
def test_what_meets_its_constraints_is_preferred_if_it_costs_at_most_one_percent_more(costs, feasible, place):
    assert preferred(costs, feasible) == place


def test_without_constraints_it_is_that_of_the_lowest_last_loss():
    layers = sure([0.1, 5.0])
    found = temperature(layers, Classification(), DescentProblem(1))
    # The best probability of being right is .7: 2 z / τ = ln(.7 / .3).
    exact = 2 * 5.0 / math.log(7 / 3)
    assert found == min(TEMPERATURES, key=lambda each: abs(each / exact - 1)) == pytest.approx(exact, rel=0.04)
    tempered = at_temperature(layers, Classification(), found)
    assert tempered.losses[:, -1].mean() < layers.losses[:, -1].mean() - 1
    assert torch.equal(tempered.logits[0], layers.logits[0] / found)


@pytest.mark.parametrize(("scales", "wrong"), [([0.1, 5.0], 0.0), ([0.1, 300.0], 0.0), ([0.1, 5.0], 0.5)])
@pytest.mark.parametrize("problem", [DescentProblem(1), DescentProblem(1, target=GeometricTarget(0.2))])
def test_without_a_mistake_or_any_knowledge_there_is_no_temperature(scales, wrong, problem):
    assert temperature(sure(scales, wrong), Classification(), problem) is None


def test_with_constraints_the_last_loss_may_be_one_percent_higher():
    """Where the last loss is lowest layer 2 lowers it by 1.4 %; at a higher temperature by the 2 % that α asks for."""
    layers, problem = sure([0.0, 0.4, 0.6]), DescentProblem(2, [0.08, 0.02])
    free, bound = (temperature(layers, Classification(), each) for each in (DescentProblem(2), problem))
    without, found = (at_temperature(layers, Classification(), each).losses.mean(0) for each in (free, bound))
    assert not bool((problem.violations(without) <= 0).all()) and bool((problem.violations(found) <= 0).all())
    assert without[-1] < found[-1] <= 1.01 * without[-1]


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta", "descend-mean-pooled", "descend-text-ut"])
def test_the_head_takes_up_a_temperature_and_no_decision_changes(family):
    model = LayeredClassifier(networks.network(family).eval())
    inputs = {"input_ids": torch.randint(5, 40, (4, 7)), "attention_mask": torch.ones(4, 7, dtype=torch.long)}
    before = torch.stack(list(model.predictions(inputs)))
    with model.tempered(2.5):
        inside = torch.stack(list(model.predictions(inputs)))
    assert torch.allclose(inside, before / 2.5, atol=1e-6) and torch.equal(inside.argmax(-1), before.argmax(-1))
    assert torch.equal(torch.stack(list(model.predictions(inputs))), before)
    model.temper(2.5)
    assert torch.allclose(torch.stack(list(model.predictions(inputs))), inside)


def drop_in(folder, rows, seen, callbacks=(), **settings):
    """A trainer that is asked to calibrate, with ``rows`` to train on and ``seen`` to evaluate on."""
    data = {"train_dataset": rows, "eval_dataset": seen, "callbacks": [*callbacks]}
    given = {"model": networks.network("distilbert"), "task": None, **data}
    return ranks.points(folder, given=given, calibrate=True, learning_rate=1e-2, **settings)


class Stop(TrainerCallback):
    """Ends training after 20 steps, and keeps the head's weights as they are then."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == 20

    def on_train_end(self, args, state, control, *, model, **kwargs):
        self.before = model.classifier.weight.detach().clone()


def test_a_drop_in_trainer_calibrates_once_whoever_ended_it(tmp_path, capsys, monkeypatch):
    rows = [{"input_ids": [5 + place % 3] * 7, "labels": place % 3 if place > 3 else 0} for place in range(24)]
    stop = Stop()
    ours = drop_in(tmp_path, rows, rows, [stop], eval_strategy="steps", eval_steps=10, max_steps=40, strength=0.0)
    assert ours.train().metrics["temperature"] == ours.temperature in TEMPERATURES
    assert ours.state.global_step == 20 and ours.temperature != 1
    assert f"temperature {ours.temperature:.4g}: the head's" in capsys.readouterr().out
    tempered = ours.objective.model.network.classifier.weight
    assert torch.allclose(tempered * ours.temperature, stop.before, atol=1e-6)

    def holds(*given, **asked):
        return verdict(*given, **asked).model_copy(update={"feasible": True})

    monkeypatch.setattr("descend.training.selection.verdict", holds)
    ours.selection.restart()
    seen = []
    ours._save_best_feasible = seen.append
    ours.evaluate()  # the model as it is, whatever it was divided by
    assert seen == [1.0]


RIGHT = [{"input_ids": [5 + place % 2] * 7, "labels": place % 2} for place in range(12)]


def test_a_classifier_without_a_mistake_keeps_its_weights_and_its_losses(tmp_path, caplog):
    ours = drop_in(tmp_path, RIGHT, RIGHT, eval_strategy="steps", eval_steps=20, max_steps=40)
    assert "temperature" not in ours.train().metrics and ours.temperature == 1
    assert "not calibrated: no temperature from 0.1 to 31.6" in caplog.text
    metrics = ours.evaluate()
    assert metrics["eval_accuracy"] == 1 and math.isfinite(metrics["eval_merit"]) and metrics["eval_loss"] > 0


SEES = {"eval_strategy": "steps", "eval_steps": 1}


@pytest.mark.parametrize(
    ("settings", "seen", "told"),
    [({}, None, 1), ({}, RIGHT, 1), (SEES, {"a": RIGHT, "b": RIGHT}, 1), (SEES, RIGHT, 0)],
)
def test_what_cannot_be_calibrated_is_told_when_the_trainer_is_made(tmp_path, caplog, settings, seen, told):
    drop_in(tmp_path, RIGHT, seen, max_steps=1, **settings)
    assert caplog.text.count("calibrate needs one eval_dataset and evaluations in training") == told


@pytest.mark.parametrize(
    ("settings", "can"),
    [
        ({"target_modules": ["q_lin", "v_lin"]}, False),
        ({"target_modules": ["q_lin"], "modules_to_save": ["classifier"]}, True),
    ],
)
def test_adapters_that_leave_the_head_alone_are_not_calibrated(settings, can):
    model = get_peft_model(networks.network("distilbert"), LoraConfig(**settings))
    assert LayeredClassifier(model).can_be_tempered is can
