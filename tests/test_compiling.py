"""torch's compiler with the workarounds for its wrong kernels."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import fresh_cache

import recurrify
from recurrify.speed import compiling
from recurrify.speed.compiling import (
    BARRIER,
    MIXED_SUMS,
    compile_function,
    compiler_options,
    with_barriers,
)

SOURCE = Path(recurrify.__file__).parent


class Record(CustomGraphPass):
    """Records for each compiled graph whether mixed sums were allowed."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def __call__(self, graph: Any) -> None:
        self.found.append(getattr(config.triton, MIXED_SUMS, False))

    def uuid(self) -> str:
        return "record"


READS_BACK = """
@triton.jit
def kernel(in_ptr0, out_ptr0, out_ptr1, xnumel, r0_numel):
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_offset), r0_mask)
        tmp1 = tmp1 + tmp0
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp2 = tl.load(in_ptr0 + (r0_offset), r0_mask)

        tl.store(out_ptr0 + (r0_offset), tmp2 - tmp1, r0_mask)
    tl.store(out_ptr1 + (x0), tmp1, xmask)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        for r1_offset in tl.range(0, r1_numel, R1_BLOCK):
            tmp3 = tl.load(out_ptr0 + (r0_offset), r0_mask)
            tl.store(out_ptr0 + (r0_offset), 2 * tmp3, r0_mask)
"""


class TestBarriers:
    def test_before_the_loop_that_reads_what_was_written(self) -> None:
        lines = with_barriers(READS_BACK).splitlines()
        places = [number for number, line in enumerate(lines) if BARRIER in line]
        assert [lines[place] for place in places] == [f"    {BARRIER}"]
        assert lines[places[0] + 1 :] == READS_BACK.splitlines()[-4:]
        assert "\n".join(line for line in lines if BARRIER not in line) + "\n" == READS_BACK

    def test_before_every_such_loop_only(self) -> None:
        begun = "def kernel(in_out_ptr0):\n"
        loop = "    for r0_offset in range(3):\n        a = tl.load(in_out_ptr0 + r0_offset)\n"
        store = "        tl.store(in_out_ptr0 + r0_offset, a)\n"
        wait = f"    {BARRIER}\n"
        assert with_barriers(begun + loop + store) == begun + loop + store  # every program reads what it wrote itself
        assert with_barriers(begun + 3 * (loop + store)) == begun + loop + store + 2 * (wait + loop + store)
        assert with_barriers(begun + loop + loop) == begun + loop + loop  # nothing was written

    def test_outside_of_loops(self) -> None:
        store, load = "tl.store(out_ptr0 + (x0), a)\n", "b = tl.load(out_ptr0 + (x0), None)\n"
        assert with_barriers(store + load) == f"{store}{BARRIER}\n{load}"

    def test_compiler_writes_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from torch._inductor.codegen.triton import TritonKernel

        monkeypatch.setattr(TritonKernel, "codegen_kernel", lambda self, name=None: f"# {name}{READS_BACK}")
        compiling.write_barriers.__wrapped__()
        kernel: Any = TritonKernel.codegen_kernel
        with config.patch(compiler_options()):
            assert kernel(object(), name="one") == f"# one{with_barriers(READS_BACK)}"
        assert kernel(object(), name="one") == f"# one{READS_BACK}"  # of other code


def test_both_passes_have_our_options_and_cache_entries() -> None:
    """Also the backward pass, which is compiled later; neither uses what was compiled without our options. Products of
    matrices alone need no C++ compiler."""
    record, found = Record(), []
    matrix = torch.ones(3, 3)

    def run(compile: Any, mixed: bool) -> None:
        torch._dynamo.reset()
        counters["inductor"].clear()
        with config.patch({f"triton.{MIXED_SUMS}": mixed} if hasattr(config.triton, MIXED_SUMS) else {}):
            product = compile(lambda one: one @ matrix, dynamic=False)(torch.ones(3, 3, requires_grad=True))
            product.backward(matrix)
        found.append(tuple(counters["inductor"][f"fxgraph_cache_{how}"] for how in ("hit", "miss")))

    # A cache of both passes together would hide the caches of each.
    kept = functorch_config.patch(enable_autograd_cache=False)
    with fresh_cache(), kept, config.patch(post_grad_custom_pre_pass=record):
        run(torch.compile, mixed=False)  # with otherwise equal options
        run(compile_function, mixed=True)
        run(compile_function, mixed=False)
    assert found == [(0, 2), (0, 2), (2, 0)]
    assert record.found == [False] * 4


def test_torch_compile_is_called_in_one_file() -> None:
    calls = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"torch\.compile\(", path.read_text())
    }
    assert calls == {"speed/compiling.py"}
