"""The same answer everywhere: two processes that torchrun started against one, on DDP and in shards of FSDP2.

And the launch files of examples/accelerate are what `accelerate launch` takes.
"""

import json
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from descend import UT
from descend.training.checkpoints import damage
from tests.support import ranks, runs

WRITTEN = {"lora": "adapter_model.safetensors"}
FILES = sorted((Path(__file__).parents[2] / "examples" / "accelerate").glob("*.yaml"))
LAUNCHES = {"ddp": "MULTI_GPU", "ddp_two_machines": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED"}


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict:
    """What each of two processes found, and where."""
    folder = tmp_path_factory.mktemp("ranks")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", ranks.__name__, str(folder)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return {"folder": folder} | {rank: torch.load(folder / f"{rank}.pt") for rank in range(2)}


close = partial(torch.testing.assert_close, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ranks.WORK if name not in ("asked", "perturbed")])
def test_both_processes_find_the_same(two, name):
    runs.assert_same(two[0][name], two[1][name])


@pytest.mark.parametrize("name", ranks.MADE)
def test_two_processes_are_one(two, tmp_path, name):
    """Parameters, multipliers, slack and the logged losses, over steps of 8, 8 and 3 samples, twice."""
    size = ranks.SIZES[name]
    one = ranks.trained(name, tmp_path / "one", 8, 1)
    assert one["λ"][1:].max() > 0.01 and one["λ"][0] > 0.01 and one["u"].max() > 1e-4
    close(ranks.trained(name, tmp_path / "parts", size, 8 // size), one)
    close(two[0][name], one)


@pytest.mark.parametrize("name", ranks.MADE)
def test_shards_of_two_processes_are_one_model(two, tmp_path, name):
    found, one = two[0][f"{name} in shards"], ranks.sharded(name, tmp_path, False, 8)
    close(found, one)
    # And what they wrote together, one process reads.
    trainer = ranks.MADE[name](two["folder"] / "read", per_device_train_batch_size=8)
    trainer.objective.double().load_state_dict(
        {place.removeprefix("θ "): each for place, each in found.items() if place.startswith("θ ")}, strict=False
    )
    read = load_file(two["folder"] / f"{name} in shards" / "model" / WRITTEN.get(name, "model.safetensors"))
    written = {
        place.replace(".default", ""): each for place, each in trainer.objective.model.saved.state_dict().items()
    }
    assert read and all(torch.equal(each, written[place]) for place, each in read.items() if place in written)
    assert sum(place in written for place in read) >= len(read) - 1  # adapters bring the base weight of a head
    assert load_file(two["folder"] / f"{name} in shards" / "dual.safetensors")["multipliers"].equal(found["λ"][1:])


@pytest.mark.parametrize(
    ("drawn", "whole", "least"),
    [
        *((name, "language", 1e-3) for name in ("sampled", "sampled in shards")),
        *((name, "whole layers", 2e-5) for name in ("skipped layers", "skipped layers in shards")),
    ],
)
def test_targets_and_layers_are_drawn_by_each_rank(two, drawn, whole, least):
    assert (two[0][drawn]["losses"] - two[0][whole]["losses"]).abs().max() > least
    assert ("sampled" in drawn) == (two[0][drawn]["λ"].max() > 0.01)


def test_a_run_of_two_processes_goes_on_in_the_middle_of_an_epoch(two):
    runs.assert_same(*two[0]["resumed"])


def test_a_bare_dual_of_two_ranks_with_unequal_counts_is_one(two):
    found = two[0]["duals"]
    for name in ranks.SCENARIOS:
        alone = ranks.run_scenario(name, [0, 1])
        torch.testing.assert_close(found[name], alone, rtol=0, atol=1e-12)
        assert alone[:, :4].max() > 0.01
    assert "not finite" in found["error"]


def test_the_command_stops_refuses_and_goes_on_in_two_processes_as_in_one(two):
    *ended, step = two[0]["commanded"]
    assert ended == [130, 2, 0]
    out = two["folder"] / "commanded"
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    assert max(Counter((row["step"], row["split"], row["metric"], row["layer"]) for row in rows).values()) == 1
    assert max(row["step"] for row in rows) == step + 2
    assert UT.from_pretrained(out / "model").depth == 2 and (out / "dual.safetensors").exists()


def test_a_second_process_stops_with_the_first_and_may_be_asked_itself(two):
    assert [two[rank]["asked"] for rank in range(2)] == [
        {"stopping": True, "asked": rank == 1, "saves": True} for rank in range(2)
    ]


def test_multipliers_that_differ_between_ranks_stop_the_run_on_both(two):
    for rank in range(2):
        found = two[rank]["perturbed"]
        assert found["step"] == 4, "the first dual step after they differ"
        assert found["error"].startswith("expected the same multipliers on all 2 processes; they differ")
        assert f"process {rank} holds" in found["error"]
    assert two[0]["rounded"] == {"step": 6, "error": ""}, "what rounding may do is not told from nothing"


def test_a_step_that_goes_wrong_on_one_rank_is_taken_on_none(two):
    assert two[0]["poisoned"]["step"] == 1
    said = two[0]["poisoned"]["error"]
    assert said.startswith("step 2: process 0: the loss of layer [0, 1, 2] is not finite")
    assert "; samples 8, 9, 10, 11 (NaN or infinity in the data of 9). No parameter has moved" in said
    assert "saved in stopped-1." in said
    assert damage(two["folder"] / "poisoned" / "stopped-1") is None


def test_a_negative_loss_is_that_of_the_mean_over_all_ranks(two):
    still_positive, negative = two[0]["lowered by 1"], two[0]["lowered by 3"]
    assert still_positive == {"step": 2, "error": ""}, "the second process's own mean is negative"
    assert negative["step"] == 0 and "got -0.8243 at layer 1" in negative["error"]


def test_what_is_decided_on_a_measurement_is_the_first_ones(two):
    """The second process finds its loss growing by 2 each time: alone it would stop at 4, and the first wait for it."""
    before, after, _ = two[0]["undecided"]["logged"]
    assert two[0]["undecided"]["step"] == 6 and before - 2 < after < before


def test_a_disk_that_fails_one_process_is_told_by_both(two):
    second, left, first, also_left, none, whole = two[0]["unsaved"]
    checkpoint = two["folder"] / "unsaved" / "checkpoint-2"
    for rank, said in ((1, second), (0, first)):
        assert said.startswith(f"process {rank}: {checkpoint} can't be written: ") and "Connection" not in said
    assert "checkpoint-2" not in left + also_left and not [each for each in left + also_left if "part" in each]
    assert none == "" and "checkpoint-2" in whole and damage(checkpoint) is None


@pytest.mark.parametrize(("work", "name"), [("predicted", "language"), ("predicted classes", "classifier")])
def test_predict_has_the_loss_of_evaluate_on_one_process_and_on_two(two, tmp_path, work, name):
    one, shared = ranks.predicted(tmp_path, name), two[0][work]
    assert [one["predict"], shared["evaluate"], shared["predict"]] == pytest.approx([one["evaluate"]] * 3, rel=1e-5)


def test_a_step_adds_up_one_count_and_one_vector(two):
    """L+2 sums, a fingerprint and its square; before it the count of targets, after it whether anything went wrong."""
    depth = 3
    step = {f"all_reduce of {8 * (depth + 2 + 2)} bytes": 3, "all_reduce of 8 bytes": 3, "all_reduce of 4 bytes": 3}
    # A log adds the losses and counts of L+1 exits. What is gathered is Transformers' own, at the end the operations.
    logs = {f"all_reduce of {16 * (depth + 1)} bytes": 3, "all_gather of 4 bytes": 6, "all_gather of 8 bytes": 1}
    assert two[0]["traffic"] == step | logs


def test_shards_in_half_precision_leave_losses_in_single_and_a_head_alone_is_refused(two):
    assert "Shard the blocks, then the objective around them" in two[0]["torn"]["error"]
    found = two[0]["halved"]
    assert found["finite"]
    sums = torch.tensor(found["sums"])
    assert (sums != sums.bfloat16()).all()
    assert found["weighted"] == pytest.approx((sums @ torch.tensor([0.7, -0.4, 1.001, 1.3])).item(), rel=2**-8)


# --- the launch files


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_accelerate_reads_a_launch_file(file):
    config = load_config_from_file(str(file))
    assert config.distributed_type == DistributedType(LAUNCHES[file.stem])
    assert config.num_processes % config.num_machines == 0
    known = vars(launch_command_parser().parse_args(["--config_file", str(file), "script.py"]))
    for group in (config.fsdp_config, config.deepspeed_config):
        assert group.keys() <= known.keys()
