"""Completion in the shell: commands, recipes, options and their values, without torch."""

import os
import shlex
import subprocess
import sys

import pytest


def completed(line: str, folder, **shell: str) -> list[str]:
    """What a shell offers for a line; fails if torch was imported for it."""
    code = """
import os, sys
from descend.cli import main
os._exit = lambda status: sys.exit(70 if "torch" in sys.modules else status)
main([])
"""
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "offered")}
    asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), **shell}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [word.strip() for word in (folder / "offered").read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("descend tra", ["train"]),
        ("descend train video-", ["video-ut", "video-dust", "video-vit"]),
        ("descend train video-ut --dual-warmup", ["--dual-warmup-steps", "--dual-warmup-epochs"]),
        ("descend train llm-sft --packing-", ["--packing-strategy"]),
        ("descend train video-ut --method l", ["linear", "layerskip"]),
        ("descend train video-ut --data cl", ["clips/"]),
        ("descend sweep video-ut --judge", ["--judge-noise"]),
        ("descend denoise run --la", ["--layer"]),
    ],
)
def test_a_shell_is_offered_what_fits(tmp_path, line, offered):
    (tmp_path / "clips").mkdir()
    assert completed(line, tmp_path) == offered


def test_bash_completes_by_the_printed_code(tmp_path):
    (tmp_path / "descend").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m descend "$@"\n')
    (tmp_path / "descend").chmod(0o755)
    script = """
eval "$(descend completion bash)"
COMP_WORDS=(descend eval) COMP_CWORD=1 COMP_LINE="descend eval" COMP_POINT=12 COMP_TYPE=9
_python_argcomplete descend eval descend
echo "${COMPREPLY[@]}"
"""
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=os.environ | path, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["evaluate"], "")
