"""cuDNN attention, whose gradients may be NaN, is disabled; attention with more keys than queries."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recurrify.speed import backends
from recurrify.speed.backends import attend_to_earlier, leave_out_cudnn
from recurrify.train.loop import trainer_arguments
from recurrify.train.settings import TrainSettings
from support.reference import attend

pytestmark = pytest.mark.usefixtures("kernels_as_before")


@pytest.fixture(name="kernels_as_before")
def cudnn_is_allowed_before_and_after() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_training_disables_cudnn_attention(tmp_path: Path):
    trainer_arguments(TrainSettings(model="shipped:base", data="stdlib", out=str(tmp_path)), steps=1, save_steps=1)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.gpu
@pytest.mark.parametrize("length", [576, 640, 704])
def test_masked_attention_with_very_low_scores_has_finite_gradients(length: int):
    leave_out_cudnn()
    torch.manual_seed(0)
    shape = (2, 4, length, 64)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    # One number of each makes every score about −120.
    query[..., 0], key[..., 0] = 1.0, -120 * 8
    leaves = [part.requires_grad_() for part in (query, key, value)]
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
    functional.scaled_dot_product_attention(*leaves, attn_mask=mask).float().square().sum().backward()
    assert all(bool(leaf.grad.isfinite().all()) for leaf in leaves if leaf.grad is not None)


def earlier(queries: int, keys: int, heads: int, shared: int, size: int) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((2, heads, queries, size), (2, shared, keys, size), (2, shared, keys, size))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def with_gradients(parts: list[Tensor], attended: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    outgoing = torch.randn(attended.shape, dtype=torch.float64).to(attended)
    return [attended.detach(), *torch.autograd.grad(attended, parts, outgoing)]


@pytest.mark.parametrize("shared", [4, 2], ids=["own heads", "shared heads"])
def test_keys_in_front_are_seen_by_all_queries(shared: int) -> None:
    parts = [part.requires_grad_() for part in earlier(5, 12, 4, shared, 8)]
    ours = with_gradients(parts, attend_to_earlier(*parts, scale=None, dropout=0.0))
    query, *theirs = parts
    heads_apart = [part.repeat_interleave(4 // shared, dim=1) for part in theirs]
    joined = attend(query, *heads_apart)  # (rows, positions, heads · size)
    expected = with_gradients(parts, joined.unflatten(-1, (4, 8)).transpose(1, 2))
    for mine, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, other)
    tripled = attend_to_earlier(*parts, scale=3.0, dropout=0.0)
    torch.testing.assert_close(tripled, attend_to_earlier(3 * 8**0.5 * query, *theirs, scale=None, dropout=0.0))


def test_choice_of_kernel_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise windows would be several graphs on GPUs."""
    monkeypatch.setattr(backends, "_suits_flash", lambda query, value: True)
    parts = earlier(5, 12, 4, 2, 8)
    quick = torch.compile(attend_to_earlier, fullgraph=True, backend="eager")
    torch.testing.assert_close(quick(*parts, None, 0.0), attend_to_earlier(*parts, None, 0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_sets_the_precision(dtype: torch.dtype) -> None:
    """Rotary models pass keys in float32 also under autocast."""
    parts = [part.to(dtype) for part in earlier(5, 12, 4, 2, 8)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend_to_earlier(*parts, None, 0.0).dtype == torch.bfloat16


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "keys"), [(300, 557), (300, 301), (64, 192), (300, 365)])
def test_the_quick_kernel_for_keys_in_front_is_right(queries: int, keys: int) -> None:
    exact = [part.bfloat16().double().cuda() for part in earlier(queries, keys, 12, 12, 64)]
    found = []
    for parts in (exact, [part.bfloat16() for part in exact]):
        parts = [part.requires_grad_() for part in parts]
        with torch.profiler.profile(acc_events=True) as seen:  # without, torch warns once
            attended = attend_to_earlier(*parts, scale=None, dropout=0.0)
        flash = any("flash_attention" in event.key for event in seen.key_averages())
        assert flash == (parts[0].dtype == torch.bfloat16)
        found.append(with_gradients(parts, attended))
    for expected, ours in zip(*found, strict=True):
        assert float((expected - ours.double()).norm()) < 0.01 * float(expected.norm())
