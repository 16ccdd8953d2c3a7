"""Run commands in each of several processes on a CPU: `several_processes.py '[[command, ...], ...]'`.

A command that begins with "fsdp" runs with FSDP. On a CPU accelerate ignores the settings of FSDP, though torch divides
weights there as it does on GPUs; so accelerate is made to take the CPU for a GPU.
"""

import json
import os
import sys

from accelerate import state
from transformers import AutoModelForCausalLM

WITH_FSDP = "ACCELERATE_USE_FSDP"
real = state.PartialState.__init__
load = AutoModelForCausalLM.from_pretrained


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

    for kind, *arguments in json.loads(sys.argv[1]):
        os.environ[WITH_FSDP] = str(kind == "fsdp").lower()
        state.AcceleratorState._reset_state(reset_partial_state=True)
        main.app(arguments, standalone_mode=False)
