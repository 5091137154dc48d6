"""`descend.Task`: one required method, and defaults that suit samples with labels."""

import torch
from torch.nn import functional as F

import descend
from tests.support.own import Classes


def test_losses_are_the_only_required_method():
    assert descend.Task.__abstractmethods__ == {"losses"}


def test_the_defaults():
    task, x = Classes(), torch.rand(3, 4)
    batch = {"x": x, "labels": torch.tensor([0, 2, 1]), "group": torch.tensor([7, 7, 8])}
    padded = {"attention_mask": torch.tensor([[1, 1, 0]])}
    assert task.mask(padded).tolist() == [[True, True, False]]  # noise spares padding
    assert task.inputs(batch).keys() == {"x"} and task.target(batch) is batch["labels"]
    assert task.mask(batch) is None and task.groups(batch) is batch["group"]
    assert task.groups({"x": x}) is None
    assert task.owners(batch).tolist() == [0, 1, 2]
    logits = torch.rand(3, 3)
    expected = F.cross_entropy(logits, batch["labels"], reduction="none")
    assert torch.equal(task.score(logits, batch["labels"]), expected)
    assert task.decide(logits) is None and task.sigma(torch.nn.Identity(), [batch]) is None
    assert task.check([batch], {}) is None
    assert (task.metric, task.higher_is_better, task.root, task.fields) == ("loss", False, False, ())
