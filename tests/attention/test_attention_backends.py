"""Training keeps out the attention kernel whose gradients are sometimes no numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from recurrify.attention.backends import leave_out_cudnn
from recurrify.train.running import trainer_arguments
from recurrify.train.settings import TrainSettings

pytestmark = pytest.mark.usefixtures("kernels_as_before")


@pytest.fixture(name="kernels_as_before")
def cudnn_is_allowed_before_and_after() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_every_run_on_a_trainer_leaves_it_out(tmp_path: Path):
    trainer_arguments(TrainSettings(model="shipped:base", data="stdlib", out=str(tmp_path)), steps=1, save_steps=1)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("length", [576, 640, 704])
def test_masked_attention_with_very_low_scores_has_finite_gradients(length: int):
    leave_out_cudnn()
    torch.manual_seed(0)
    shape = (2, 4, length, 64)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    # One number of each makes every score about −120: the logarithm of their sum lies below what float32 can undo.
    query[..., 0], key[..., 0] = 1.0, -120 * 8
    leaves = [part.requires_grad_() for part in (query, key, value)]
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
    functional.scaled_dot_product_attention(*leaves, attn_mask=mask).float().square().sum().backward()
    assert all(bool(leaf.grad.isfinite().all()) for leaf in leaves if leaf.grad is not None)
