"""torch's compiler, without what it gets wrong."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import fresh_cache

import recurrify
from recurrify.compiling import MIXED_SUMS, compile_alone, compiled, faultless_compiler

SOURCE = Path(recurrify.__file__).parent
has_option = pytest.mark.skipif(not hasattr(config.triton, MIXED_SUMS), reason="this torch has no sums in mixed orders")


class Note(CustomGraphPass):
    """Whether mixed sums were allowed, for each graph that the compiler made."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def __call__(self, graph: Any) -> None:
        self.found.append(getattr(config.triton, MIXED_SUMS))

    def uuid(self) -> None:
        return None


@has_option
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_both_passes_are_compiled_without_mixed_sums() -> None:
    note, value = Note(), torch.ones(3, 4, requires_grad=True)
    torch._dynamo.reset()
    with fresh_cache(), config.patch(post_grad_custom_pre_pass=note, **{f"triton.{MIXED_SUMS}": True}):
        compiled(lambda one: one.sin().sum(0).square().sum(), dynamic=False)(value).backward()
        assert getattr(config.triton, MIXED_SUMS)  # other people's compilations stay as they are
    assert note.found == [False, False]


@has_option
def test_meanwhile_for_all() -> None:
    with config.patch({f"triton.{MIXED_SUMS}": True}):
        with faultless_compiler():
            assert not getattr(config.triton, MIXED_SUMS)
        assert getattr(config.triton, MIXED_SUMS)


def test_nobody_else_calls_the_compiler() -> None:
    """But the benchmark, for transformers' own model, whose users have torch as it is."""
    calls = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"torch\.compile\(", path.read_text())
    }
    assert calls == {"compiling.py", "bench/stepping.py"}


def test_beside_others_the_compiler_starts_no_processes() -> None:
    with config.patch(compile_threads=7):
        compile_alone()
        assert config.compile_threads == 1
