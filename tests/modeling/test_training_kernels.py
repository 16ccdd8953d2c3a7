"""Kernels for training steps: cross entropies with their gradients, and 16-bit gradients summed in 32 bits.

They run on a GPU, or in Triton's interpreter on a CPU.
"""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor

from recurrify.attention.kernels import TRITON_INSTALLED
from recurrify.speed import adding, head_loss
from recurrify.speed.capturing import capture, on_side_stream
from recurrify.speed.head_loss import IGNORE
from support.interpreting import check_interpreted

needs_triton = pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
HALVES = [BF16, FP16]
# Relative and absolute tolerances of errors.
TOLERANCES = {FP32: (1e-5, 1e-7), BF16: (2**-8, 1e-7), FP16: (2**-10, 6e-8)}
# Columns and vocabulary, for blocks of 512 in tiles of 256: less than a tile, padding in several tiles, whole blocks.
SIZES = [(37, 37), (48, 41), (700, 3), (1024, 1024), (1024, 1000), (1400, 1333), (1401, 1401)]


# ---- losses and errors -------------------------------------------------------------------------------------


def drawn(rows: int, width: int, vocabulary: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Logits with large padding columns, and targets of which some are ignored."""
    logits = torch.randn(rows, width, device=device) * 3
    logits[:, vocabulary:] = 50
    targets = torch.randint(vocabulary, (rows,), device=device)
    targets[2::3] = IGNORE
    return logits.to(dtype), targets


def exact(logits: Tensor, targets: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    logits = logits[:, :vocabulary].double().requires_grad_()
    losses = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none")
    (errors,) = torch.autograd.grad(losses.sum(), logits)
    return losses.detach(), errors


def assert_exact(found: tuple[Tensor, Tensor], logits: Tensor, targets: Tensor, vocabulary: int) -> None:
    losses, errors = found
    true_losses, true_errors = exact(logits, targets, vocabulary)
    assert losses.dtype == torch.float32
    assert errors.dtype == logits.dtype
    assert errors.shape == logits.shape
    assert errors.is_contiguous()
    torch.testing.assert_close(losses.double(), true_losses, rtol=1e-5, atol=2e-6)
    rtol, atol = TOLERANCES[logits.dtype]
    torch.testing.assert_close(errors[:, :vocabulary].double(), true_errors, rtol=rtol, atol=atol)
    assert not errors[:, vocabulary:].any()
    assert not losses[targets == IGNORE].any()
    assert not errors[targets == IGNORE].any()


def assert_losses_are_exact(rows: int, width: int, vocabulary: int, dtype: torch.dtype, device: str) -> None:
    from recurrify.speed.cross_entropy import losses_and_errors, turn_into_errors

    logits, targets = drawn(rows, width, vocabulary, dtype, device)
    found = losses_and_errors(logits, targets, vocabulary)
    assert_exact(found, logits, targets, vocabulary)
    replaced = logits.clone()
    torch.testing.assert_close(turn_into_errors(replaced, targets, vocabulary), found[0], rtol=0, atol=0)
    torch.testing.assert_close(replaced, found[1], rtol=0, atol=0)


def assert_rows_may_lie_apart(dtype: torch.dtype, device: str) -> None:
    """Views with aligned and odd gaps between their rows."""
    from recurrify.speed.cross_entropy import losses_and_errors

    for before, behind in ((0, 64), (0, 3), (5, 0)):
        whole, targets = drawn(4, before + 1400 + behind, before + 1333, dtype, device)
        logits = whole[:, before : before + 1400]
        targets = torch.where(targets == IGNORE, IGNORE, targets % 1333)
        assert_exact(losses_and_errors(logits, targets, 1333), logits, targets, 1333)


def assert_any_range_is_taken(dtype: torch.dtype, device: str) -> None:
    """Very negative rows, large numbers, infinite padding, and masked tokens."""
    from recurrify.speed.cross_entropy import losses_and_errors

    logits, targets = drawn(8, 1400, 1333, dtype, device)
    most = torch.finfo(dtype).max
    targets[:] = 700
    logits[0] -= 3e4
    logits[1] = -most / 2
    logits[2, 5], logits[2, 700] = 1e4, 1.2e4
    logits[3, 5], logits[3, 700] = most / 2, -most / 2
    logits[4, 1333:] = -math.inf
    logits[5, :600], logits[5, 800:] = -math.inf, -math.inf
    logits[6, :1000] = -most
    logits[6, 700] = 3
    logits[7, 1::2] = -most
    assert_exact(losses_and_errors(logits, targets, 1333), logits, targets, 1333)


def assert_trouble_stays_in_its_row(device: str) -> None:
    """Invalid targets and NaN logits make the loss of their row NaN; ignored rows do not read their logits."""
    from recurrify.speed.cross_entropy import losses_and_errors

    logits, targets = drawn(6, 1400, 1333, FP32, device)
    targets[0], targets[1] = 1333, -1
    logits[2:4] = math.nan
    targets[2:] = torch.tensor([IGNORE, 7, IGNORE, 9], device=device)
    losses, errors = losses_and_errors(logits, targets, 1333)
    assert losses.isnan().tolist() == [True, True, False, True, False, False]
    assert errors[3, :1333].isnan().all()
    calm = torch.tensor([2, 4, 5], device=device)
    assert_exact((losses[calm], errors[calm]), logits[calm].nan_to_num(), targets[calm], 1333)


def assert_all_is_written(device: str) -> None:
    """Whatever new memory contains; and a batch without rows works."""
    from recurrify.speed import cross_entropy

    logits, targets = drawn(5, 1400, 700, BF16, device)
    results, new = [], cross_entropy._new_results
    for filling in (math.nan, 7.0):
        filled = tuple(one.fill_(filling) for one in new(logits))
        with mock.patch.object(cross_entropy, "_new_results", return_value=filled):
            results.append(cross_entropy.losses_and_errors(logits, targets, 700))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    none = cross_entropy.losses_and_errors(logits[:0], targets[:0], 700)
    assert [tuple(one.shape) for one in none] == [(0,), (0, 1400)]


def assert_it_is_the_heads_own(device: str) -> None:
    """The same as `head_loss`; with an identity as weights, hidden states are the logits."""
    from recurrify.speed import cross_entropy

    assert cross_entropy.IGNORE == IGNORE
    logits, targets = drawn(7, 128, 101, BF16, device)
    wanted = head_loss.losses_and_errors(logits, torch.eye(128, dtype=BF16, device=device), 101, targets)
    found = cross_entropy.losses_and_errors(logits, targets, 101)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-6)


class _Losses(torch.autograd.Function):
    """Called as in `head_loss`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, vocabulary: int) -> Tensor:
        from recurrify.speed.cross_entropy import losses_and_errors

        losses, errors = losses_and_errors(logits, targets, vocabulary)
        ctx.save_for_backward(errors)
        return losses

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None]:
        (errors,) = ctx.saved_tensors
        return errors * incoming[:, None], None, None


def assert_compiled_is_eager(rows: int, width: int, vocabulary: int, device: str, backend: str) -> None:
    """One graph, with the same results."""
    logits, targets = drawn(rows, width, vocabulary, BF16, device)
    logits.requires_grad_()

    def mean(logits: Tensor, targets: Tensor) -> Tensor:
        return _Losses.apply(logits * 1, targets, vocabulary).mean()

    results = []
    torch.compiler.reset()
    for function in (mean, torch.compile(mean, backend=backend, fullgraph=True, dynamic=False)):
        loss = function(logits, targets)
        results.append([loss, *torch.autograd.grad(loss, logits)])
    torch.testing.assert_close(*results, rtol=2**-8, atol=1e-8)


def assert_operator_is_sound(device: str) -> None:
    """`opcheck`: among other things, traced shapes are those of the results."""
    from recurrify.speed import cross_entropy

    logits, targets = drawn(3, 48, 41, FP32, device)
    torch.library.opcheck(cross_entropy._op, (logits, targets, 41))
    torch.library.opcheck(cross_entropy._op, (logits[:, :40], targets.clamp(max=30), 40))


def check_on_cpu() -> None:
    torch.manual_seed(0)
    check_losses()
    check_adding()


def check_losses() -> None:
    from recurrify.speed import cross_entropy

    # Small blocks, so that few logits fill several.
    cross_entropy.BLOCK, cross_entropy.WARPS = 512, 1
    TOLERANCES[BF16] = (2**-7, 1e-7)  # the interpreter truncates where a GPU rounds
    for dtype, (width, vocabulary) in ((FP32, SIZES[1]), (BF16, SIZES[2]), (FP32, SIZES[3]), (FP16, SIZES[5])):
        assert_losses_are_exact(3, width, vocabulary, dtype, "cpu")
    assert_rows_may_lie_apart(BF16, "cpu")
    assert_any_range_is_taken(FP32, "cpu")
    assert_trouble_stays_in_its_row("cpu")
    assert_all_is_written("cpu")
    assert_it_is_the_heads_own("cpu")
    assert_compiled_is_eager(5, 700, 650, "cpu", backend="aot_eager")
    assert_operator_is_sound("cpu")


# ---- adding ------------------------------------------------------------------------------------------------

Layout = Callable[[Tensor], Tensor]
ALIKE: dict[str, tuple[tuple[int, ...], Layout]] = {
    "contiguous": ((33, 70), lambda one: one),
    "whole blocks": ((4, 2048), lambda one: one),
    "one number": ((), lambda one: one),
    "transposed": ((33, 70), lambda one: one.T),
    "permuted": ((5, 7, 300), lambda one: one.permute(1, 2, 0)),
    "a part": ((64, 70), lambda one: one[3:40]),
    "a column of single numbers": ((64, 70), lambda one: one[:1].T),
    "empty": ((0, 7), lambda one: one),
}
APART: dict[str, tuple[tuple[int, ...], Layout, Layout]] = {
    "one transposed": ((33, 33), lambda one: one, lambda one: one.T),
    "every second row": ((33, 70), lambda one: one[::2], lambda one: one[:17]),
    "both with gaps": ((33, 70), lambda one: one[:, ::2], lambda one: one[:, ::2]),
    "one for all rows": ((33, 70), lambda one: one, lambda one: one[:1].expand(33, 70)),
}


def assert_added(shape: tuple[int, ...], of_total: Layout, of_part: Layout, dtype: torch.dtype, device: str) -> None:
    """Exactly, and without a change to numbers between those of the view."""
    total, part = torch.randn(shape, device=device), torch.randn(shape, device=device).to(dtype)
    wanted = total.clone()
    of_total(wanted).add_(of_part(part))
    with torch.no_grad():
        adding.add_into(of_total(total), of_part(part))
    assert torch.equal(total, wanted)


def check_adding() -> None:
    """The kernel in the interpreter, for every layout for which it runs on a GPU."""
    with mock.patch.object(adding, "kernel_runs", adding.in_same_order), mock.patch.object(Tensor, "add_", None):
        for dtype, (shape, layout) in zip(HALVES * len(ALIKE), ALIKE.values(), strict=False):
            total, part = layout(torch.randn(shape)), layout(torch.randn(shape).to(dtype))
            wanted = total + part
            adding.add_into(total, part)
            assert torch.equal(total, wanted)


@pytest.mark.parametrize("layouts", [*ALIKE.values(), *APART.values()], ids=[*ALIKE, *APART])
def test_parts_are_added_without_the_kernel(layouts: tuple[Any, ...]) -> None:
    shape, of_total, *of_part = layouts
    assert_added(shape, of_total, of_part[0] if of_part else of_total, BF16, "cpu")


@pytest.mark.parametrize(("layouts", "alike"), [(ALIKE, True), (APART, False)], ids=["alike", "apart"])
def test_kernel_runs_for_equal_layouts_without_gaps(layouts: dict[str, Any], alike: bool) -> None:
    for name, (shape, of_total, *of_part) in layouts.items():
        one, other = of_total(torch.zeros(shape)), (of_part[0] if of_part else of_total)(torch.zeros(shape))
        assert adding.in_same_order(one, other) == alike, name
    assert not adding.in_same_order(torch.zeros(2, 3), torch.zeros(3, 2))
    assert not adding.in_same_order(torch.zeros(6), torch.zeros(6, 1))


class OnCuda:
    """The attributes of a GPU tensor that `kernel_runs` reads."""

    is_cuda, device = True, "cuda"
    shape = (2, 3)

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def stride(self) -> tuple[int, int]:
        return 3, 1


def test_kernel_runs_for_16_bits_into_32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "TRITON_INSTALLED", True)
    assert all(adding.kernel_runs(OnCuda(FP32), OnCuda(half)) for half in HALVES)
    assert not adding.kernel_runs(OnCuda(FP32), OnCuda(FP32))
    assert not adding.kernel_runs(OnCuda(BF16), OnCuda(BF16))
    assert not adding.kernel_runs(torch.zeros(2, 3), torch.zeros(2, 3).half())
    monkeypatch.setattr(adding, "TRITON_INSTALLED", False)
    assert not adding.kernel_runs(OnCuda(FP32), OnCuda(BF16))


# ---- in the interpreter, and on a GPU ----------------------------------------------------------------------


@needs_triton
def test_the_kernels_are_exact_in_the_interpreter() -> None:
    check_interpreted(__name__, "check_on_cpu")


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("width", "vocabulary"), [*SIZES, (32000, 32000), (50304, 50257)])
def test_losses_and_errors_are_exact_on_a_gpu(width: int, vocabulary: int, dtype: torch.dtype) -> None:
    assert_losses_are_exact(64, width, vocabulary, dtype, "cuda")


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_any_rows_are_taken_on_a_gpu(dtype: torch.dtype) -> None:
    assert_rows_may_lie_apart(dtype, "cuda")
    assert_any_range_is_taken(dtype, "cuda")
    assert_trouble_stays_in_its_row("cuda")
    assert_all_is_written("cuda")


@pytest.mark.gpu
@needs_triton
def test_losses_and_errors_are_the_heads_own_and_compiled_the_same_on_a_gpu() -> None:
    assert_it_is_the_heads_own("cuda")
    assert_compiled_is_eager(64, 50304, 50257, "cuda", backend="inductor")
    assert_operator_is_sound("cuda")


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("dtype", [*HALVES, FP32], ids=str)
@pytest.mark.parametrize("layouts", [*ALIKE.values(), *APART.values()], ids=[*ALIKE, *APART])
def test_parts_are_added_on_a_gpu(layouts: tuple[Any, ...], dtype: torch.dtype) -> None:
    shape, of_total, *of_part = layouts
    assert_added(shape, of_total, of_part[0] if of_part else of_total, dtype, "cuda")


@pytest.mark.gpu
@needs_triton
def test_parts_are_added_in_a_captured_step_on_a_gpu() -> None:
    total, part = torch.zeros(768, 3072, device="cuda"), torch.randn(768, 3072, device="cuda").to(BF16)
    on_side_stream(lambda: adding.add_into(total, part))
    replay = capture(lambda: adding.add_into(total, part))
    replay()
    assert torch.equal(total, 2 * part.float())
