"""The launch files of examples/accelerate are what `accelerate launch` takes, and it finds what there is to shard."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from descend import UT, Objective, UTConfig
from descend.tasks.video import VideoDenoising
from tests.support.networks import causal, network

FILES = sorted((Path(__file__).parents[2] / "examples" / "accelerate").glob("*.yaml"))
KINDS = {"ddp": "MULTI_GPU", "ddp_two_machines": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED"}


def test_every_file_is_known():
    assert [file.stem for file in FILES] == sorted(KINDS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_accelerate_reads_it(file):
    config = load_config_from_file(str(file))
    assert config.distributed_type == DistributedType(KINDS[file.stem])
    assert config.num_processes % config.num_machines == 0
    known = vars(launch_command_parser().parse_args(["--config_file", str(file), "script.py"]))
    written = yaml.safe_load(file.read_text())
    for group in ("fsdp_config", "deepspeed_config"):
        assert written.get(group, {}).keys() - known.keys() == set()
        assert getattr(config, group) == written.get(group, {})


@pytest.mark.parametrize(
    ("objective", "blocks"),
    [
        (Objective(causal()), {"LlamaDecoderLayer"}),
        (Objective(network("distilbert")), {"TransformerBlock"}),
        (Objective(network("bert")), {"BertLayer"}),
        (Objective(UT(UTConfig(depth=2)), VideoDenoising()), set()),
    ],
    ids=["llama", "distilbert", "bert", "ut"],
)
def test_accelerate_finds_the_blocks_and_nothing_else_to_shard(objective, blocks):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    policy = fsdp2_prepare_auto_wrap_policy(plugin, objective)
    assert {type(module).__name__ for module in objective.modules() if policy(module)} == blocks
