"""The Triton kernels of attention with a score for each distance: in the interpreter, and compiled on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify.attention.kernels import TRITON_INSTALLED
from recurrify.speed import capture, on_side_stream
from recurrify_papers.kernels import relative
from recurrify_papers.models.transformer_xl import TransformerXL, TransformerXLConfig, TransformerXLState
from support.interpreting import check_interpreted

needs_triton = pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:TensorFloat32")
CHECKS = "relative_attention_checks"
"""Imports Triton."""


@needs_triton
def test_kernels_equal_plain_attention_in_the_interpreter():
    check_interpreted(CHECKS, "check_on_cpu")


class OnCuda:
    """The attributes of a GPU tensor that are used."""

    is_cuda = True

    def __init__(self, queries: int, width: int, dtype: torch.dtype) -> None:
        self.shape, self.dtype = (2, 8, queries, width), dtype

    def numel(self) -> int:
        return self.shape[2]


@pytest.mark.parametrize(
    ("queries", "width", "dtype", "runs"),
    [
        (512, 64, torch.bfloat16, True),
        (1, 16, torch.float32, True),
        (512, 48, torch.bfloat16, False),
        (512, 64, torch.float64, False),
        (2**21, 64, torch.bfloat16, False),
        (0, 64, torch.bfloat16, False),
    ],
    ids=["usual", "small", "width", "64 bits", "too many pairs", "empty"],
)
def test_kernels_run_only_for_supported_tensors(queries, width, dtype, runs, monkeypatch):
    monkeypatch.setattr(relative, "TRITON_INSTALLED", True)
    assert relative.relative_kernels_run(OnCuda(queries, width, dtype), 1024) == runs
    assert not relative.relative_kernels_run(torch.zeros(2, 8, 4, 64), 1024)
    monkeypatch.setattr(relative, "TRITON_INSTALLED", False)
    assert not relative.relative_kernels_run(OnCuda(512, 64, torch.bfloat16), 1024)


# ---- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize(
    ("width", "dtype", "tolerance"),
    [
        (64, torch.float32, 2e-5),
        (64, torch.bfloat16, 3e-2),
        (64, torch.float16, 5e-3),
        (16, torch.bfloat16, 3e-2),
        (32, torch.bfloat16, 3e-2),
        (128, torch.bfloat16, 3e-2),
        (128, torch.float32, 2e-5),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("queries", "keys", "span"), [(1, 1, None), (1, 300, None), (256, 512, None), (200, 331, None), (333, 345, 100)]
)
def test_kernels_equal_plain_attention_on_a_gpu(queries, keys, span, width, dtype, tolerance):
    import relative_attention_checks as checks  # imports Triton

    checks.assert_kernel_is_plain(queries, keys, span, width, "cuda", dtype, tolerance)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)], ids=str)
def test_shared_scores_on_a_gpu(dtype, tolerance):
    import relative_attention_checks as checks  # imports Triton

    checks.assert_kernel_is_plain(200, 331, 100, 64, "cuda", dtype, tolerance, shared=True)


@pytest.mark.gpu
@needs_triton
def test_compiled_equals_eager_on_a_gpu():
    import relative_attention_checks as checks  # imports Triton

    checks.assert_compiled_is_eager("cuda", backend="inductor")


@pytest.mark.gpu
@needs_triton
def test_captured_model_in_bf16_is_as_exact_as_the_plain_one_on_a_gpu():
    import relative_attention_checks as checks  # imports Triton

    config = TransformerXLConfig(vocabulary=50, layers=2, width=256, heads=4, dropout=0.0, memory_length=192)
    config = replace(config, same_length=True)
    model = TransformerXL(config).cuda()
    state = TransformerXLState(torch.randn(2, 3, 192, 256, device="cuda"))
    tokens = torch.randint(50, (3, 160), device="cuda")
    parameters = list(model.parameters())

    def results(forward: torch.nn.Module, half: bool) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            logits = forward(tokens, state).logits
        # Without its graph, whose nodes belong to the stream they were made on.
        return [logits.detach(), *torch.autograd.grad(logits.float().square().mean(), parameters)]

    with checks.kernel_forced(False):
        true, plain = results(model, half=False), results(model, half=True)
    assert relative.relative_kernels_run(torch.zeros(3, 4, 160, 64, device="cuda"), 352)
    compiled = torch.compile(model, dynamic=False)
    kept = [torch.zeros_like(part) for part in plain]

    def step() -> None:
        for place, part in zip(kept, results(compiled, half=True), strict=True):
            place.copy_(part)

    for _ in range(3):
        on_side_stream(step)
    replay = capture(step)
    for place in kept:
        place.fill_(torch.nan)
    replay()
    for ours, theirs, exact in zip(kept, plain, true, strict=True):
        ours_off, theirs_off = ((part.float() - exact).norm() / exact.norm() for part in (ours, theirs))
        assert ours_off <= 1.5 * theirs_off + 1e-3
