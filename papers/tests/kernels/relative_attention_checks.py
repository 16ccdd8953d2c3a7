"""Attention by content and distance in Triton compared with plain PyTorch: on a GPU, or in the interpreter."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from recurrify_papers.kernels import relative_attention as fused
from recurrify_papers.models import block_recurrent, transformer_xl
from recurrify_papers.models.block_recurrent import BlockRecurrentConfig, BlockRecurrentState, BlockRecurrentTransformer
from recurrify_papers.models.transformer_xl import TransformerXL, TransformerXLConfig, TransformerXLState

XL = TransformerXLConfig(
    vocabulary=11, layers=1, width=8, heads=2, head_width=16, inner=12, dropout=0.0, same_length=True, memory_length=12,
)  # fmt: skip
BRT = BlockRecurrentConfig(
    vocabulary=11, layers=1, width=8, heads=2, head_width=16, inner=12, dropout=0.0, window=7, block=4, states=3,
    target_length=12,
)  # fmt: skip


def drawn(queries: int, keys: int, width: int, device: str, dtype: torch.dtype, shared: bool = False) -> list[Tensor]:
    """Queries, position scores, keys, values; heads are adjacent in memory, as in the model. `shared` scores are
    the same for all sequences and queries."""
    rows = [torch.randn(2, length, 2, width, device=device).transpose(1, 2) for length in (queries, keys, keys)]
    scores = torch.randn(*((1, 2, 1) if shared else (2, 2, queries)), keys, device=device) * 4
    return [part.to(dtype).requires_grad_() for part in (rows[0], scores, rows[1], rows[2])]


def plain(query: Tensor, scores: Tensor, key: Tensor, value: Tensor, span: int | None) -> Tensor:
    """Every pair's position score looked up by its distance."""
    queries, keys = query.shape[2], key.shape[2]
    scores = scores.expand(len(query), -1, queries, -1)
    place = torch.arange(keys - queries, keys, device=query.device)[:, None]
    distance = place - torch.arange(keys, device=query.device)
    hidden = (distance < 0) | (distance >= (keys if span is None else span))
    column = (keys - 1 - distance).clamp(max=keys - 1)
    by_key = scores.gather(3, column.expand(*scores.shape))
    both = (query @ key.transpose(-1, -2) + by_key) / math.sqrt(query.shape[-1])
    return both.masked_fill(hidden, -math.inf).softmax(dim=-1) @ value


def worst_difference(ours: Tensor, true: Tensor) -> float:
    """In parts of the largest number, if that is above 1."""
    assert ours.shape == true.shape
    assert torch.isfinite(ours).all(), "not finite"
    return ((ours.double() - true.double()).abs().max() / true.abs().max().clamp(min=1.0)).item()


def assert_kernel_is_plain(
    queries: int,
    keys: int,
    span: int | None,
    width: int,
    device: str,
    dtype: torch.dtype,
    tolerance: float,
    shared: bool = False,
) -> None:
    """Output and all four gradients against float64."""
    ours = drawn(queries, keys, width, device, dtype, shared)
    true = [part.detach().double().requires_grad_() for part in ours]
    expected = plain(*true, span)
    weights = torch.randn_like(expected)
    with new_memory_is_nan():
        output = fused.relative_attention(*ours, span=span)
        found = torch.autograd.grad((output * weights).sum(), ours)
    wanted = torch.autograd.grad((expected * weights).sum(), true)
    assert all(part.dtype == dtype for part in (output, *found))
    for name, mine, exact in zip(
        ("output", "queries", "scores", "keys", "values"), (output, *found), (expected, *wanted), strict=True
    ):
        worst = worst_difference(mine, exact)
        assert worst <= tolerance, f"{queries}, {keys}, {span}, {width}: {name} differ by {worst}"


@contextmanager
def new_memory_is_nan() -> Iterator[None]:
    """Whatever is not written shows in the results."""
    empty = Tensor.new_empty
    Tensor.new_empty = lambda self, *a, **k: empty(self, *a, **k).fill_(math.nan)
    try:
        yield
    finally:
        Tensor.new_empty = empty


@contextmanager
def kernel_forced(on: bool) -> Iterator[None]:
    usual = transformer_xl.relative_kernels_run
    for module in (transformer_xl, block_recurrent):
        module.relative_kernels_run = lambda query_BHQD, keys: on
    try:
        yield
    finally:
        for module in (transformer_xl, block_recurrent):
            module.relative_kernels_run = usual


def model_results(config: TransformerXLConfig | BlockRecurrentConfig, kernel: bool, device: str) -> list[Tensor]:
    """The logits and every parameter's gradient, of the second of two segments."""
    torch.manual_seed(1)
    if isinstance(config, TransformerXLConfig):
        model: torch.nn.Module = TransformerXL(config).to(device)
        state: object = TransformerXLState(torch.randn(1, 2, 9, 8, device=device))
    else:
        model = BlockRecurrentTransformer(config).to(device)
        memory, pending = (torch.randn(*shape, 16, device=device) for shape in ((1, 2, 2, 2, 5), (2, 2, 2, 0)))
        state = BlockRecurrentState(memory, torch.randn(2, 3, 8, device=device), pending)
    for name, parameter in model.named_parameters():
        is_bias = name.endswith("bias.table")
        torch.nn.init.normal_(parameter, std=0.3 / (block_recurrent.BIAS_SCALE if is_bias else 1))
    tokens = torch.randint(11, (2, 21), device=device)
    with kernel_forced(kernel):
        logits = model(tokens, state).logits
    parameters = [parameter for parameter in model.parameters() if parameter.numel() > 0]
    return [logits, *torch.autograd.grad(logits.square().sum(), parameters)]


def assert_models_are_the_same(device: str, tolerance: float) -> None:
    for config in (XL, BRT):
        with_kernel, without = (model_results(config, kernel, device) for kernel in (True, False))
        for mine, exact in zip(with_kernel, without, strict=True):
            worst = worst_difference(mine, exact)
            assert worst <= tolerance, f"{config}: {tuple(mine.shape)} differ by {worst}"


def assert_compiled_is_eager(device: str, backend: str) -> None:
    """One graph, forward and backward, with the same numbers; queries of another type get their gradient in it."""
    query, scores, key, value = drawn(5, 9, 16, device, torch.float16)
    query = query.detach().float().requires_grad_()

    def attended(query: Tensor, scores: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return fused.relative_attention(2 * query, scores, key, value).sin()

    results = []
    for function in (attended, torch.compile(attended, backend=backend, fullgraph=True, dynamic=False)):
        output = function(query, scores, key, value)
        results.append([output, *torch.autograd.grad(output.square().sum(), [query, scores, key, value])])
    assert [part.dtype for part in results[0]] == [torch.float16, torch.float32, *[torch.float16] * 3]
    # All of it went through numbers of 16 bits, and what inductor fuses is rounded less often.
    tolerance = {"rtol": 1e-2, "atol": 5e-3} if backend == "inductor" else {}
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, **tolerance)


def set_blocks(forward_and_queries: tuple[int, int], keys: tuple[int, int]) -> None:
    """Queries and keys of a block: small ones, so that few positions fill several of them."""
    one, other = (fused.Tile(*sizes, 4, 1) for sizes in (forward_and_queries, keys))
    fused.USUAL = fused.EXACT = fused.Tiles(forward=one, keys=other, queries=one)


def check_on_cpu() -> None:
    torch.manual_seed(0)
    on_cpu = {"device": "cpu", "dtype": torch.float32, "tolerance": 1e-5}
    set_blocks((16, 32), (32, 16))
    assert_kernel_is_plain(33, 50, 18, width=16, shared=True, **on_cpu)
    set_blocks((32, 16), (16, 32))
    assert_kernel_is_plain(37, 45, None, width=16, **on_cpu)  # blocks that are not full
    assert_kernel_is_plain(5, 21, 7, width=32, device="cpu", dtype=torch.float16, tolerance=5e-3)
    assert_models_are_the_same("cpu", 1e-5)
    assert_compiled_is_eager("cpu", backend="aot_eager")
