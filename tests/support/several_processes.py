"""Programs in two forked processes, started by torchrun or `accelerate launch`.

Run as a program, this file runs commands in each of them: `several_processes.py '[[kind, command, ...], ...]'`. The
kind "fsdp" runs the command with FSDP. On a CPU accelerate ignores the settings of FSDP, though torch divides weights
there as it does on GPUs; so accelerate is made to take the CPU for a GPU.
"""

import json
import os
import sys
from pathlib import Path

from accelerate import state
from accelerate.commands import launch
from torch.distributed import run
from transformers import AutoModelForCausalLM

from support.processes import Printed, forked

WITH_FSDP = "ACCELERATE_USE_FSDP"
real = state.PartialState.__init__
load = AutoModelForCausalLM.from_pretrained


def torchrun(program: Path, *arguments: object) -> Printed:
    """`torchrun --standalone --nproc-per-node 2 PROGRAM ARGUMENTS`."""
    words = ["--standalone", "--nproc-per-node", "2", "--start-method", "fork", "--run-path"]
    return forked(lambda: run.main([*words, str(program), *map(str, arguments)]))


def accelerate_launch(config: Path, commands: list[list[str]]) -> Printed:
    """`accelerate launch --config_file CONFIG --num_processes 2`, with recurrify's commands, one after the other."""
    options = ["--config_file", str(config), "--num_processes", "2", __file__, json.dumps(commands)]
    settings = launch.launch_command_parser().parse_args(options)
    settings.start_method, settings.run_path = "fork", True
    return forked(lambda: launch.launch_command(settings))


def like_a_gpu(self: state.PartialState, *args: object, **more: object) -> None:
    real(self, *args, **more)
    if os.environ[WITH_FSDP] == "true" and self.distributed_type == state.DistributedType.MULTI_CPU:
        self.distributed_type = state.DistributedType.MULTI_GPU


def load_first(*args: object, **more: object) -> object:
    """With FSDP the first process alone reads the base."""
    assert os.environ[WITH_FSDP] == "false" or os.environ["RANK"] == "0"
    return load(*args, **more)


if __name__ == "__main__":
    AutoModelForCausalLM.from_pretrained = load_first
    state.PartialState.__init__ = like_a_gpu
    from recurrify.cli import main
    from recurrify.errors import UserError

    for kind, *arguments in json.loads(sys.argv[1]):
        os.environ[WITH_FSDP] = str(kind == "fsdp").lower()
        state.AcceleratorState._reset_state(reset_partial_state=True)
        try:
            main.app(arguments, standalone_mode=False)
        except UserError as error:
            print(f"refused: {error}", file=sys.stderr, flush=True)
