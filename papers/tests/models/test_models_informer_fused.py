"""Informer's fused pointwise parts and the ProbSparse kernel equal plain PyTorch."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recurrify.attention.config import RSAConfig
from recurrify.attention.kernels import TRITON_INSTALLED
from recurrify.speed.capturing import capture, on_side_stream
from recurrify_papers.models import informer, prob_sparse
from recurrify_papers.models.informer import (
    Activation,
    AddAndNorm,
    Informer,
    InformerConfig,
    activate,
    add_and_norm,
    normalise,
)

# The tracer looks at the states' gradient; torch itself hides this warning where warnings are not errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

needs_triton = pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CHECKS = Path(__file__).with_name("prob_sparse_checks.py")
CONFIG = InformerConfig(
    channels=3, time_features=2, past=14, label=6, horizon=5, width=16, heads=4, inner=24, dropout=0.25, factor=2,
    encoder_layers=2, decoder_layers=2,
)  # fmt: skip
MODELS = {
    "informer": CONFIG,
    "distilled": replace(CONFIG, distil=True),
    "rsa": replace(CONFIG, rsa=RSAConfig(heads=4, counts=(1, 1, 1, 0, 0, 0))),
    "mixed": replace(CONFIG, mix=True),
}


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "compiled", lambda function: function)


def loss_and_gradients(model: Informer, dtype: torch.dtype) -> list[Tensor]:
    """The same inputs, the same elements dropped, the same keys sampled, whichever model."""
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(2, *shape, generator=generator).to(dtype) for shape in ((14, 3), (14, 2), (5, 2))]
    torch.manual_seed(1)
    loss = model(*inputs).float().square().mean()
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_fused_parts_equal_plain_parts(config, dropout):
    model = Informer(replace(config, dropout=dropout)).double().train()
    plain = loss_and_gradients(model, torch.float64)
    model.fuse()
    torch.testing.assert_close(loss_and_gradients(model, torch.float64), plain)
    model.fuse(False)
    torch.testing.assert_close(loss_and_gradients(model, torch.float64), plain, rtol=0, atol=0)


@pytest.mark.usefixtures("uncompiled")
def test_only_training_uses_fused_parts(monkeypatch):
    taken = []
    for part in ("activate", "add_and_norm"):
        original = getattr(informer, part)
        monkeypatch.setattr(
            informer, part, lambda *inputs, run=original, part=part: (taken.append(part), run(*inputs))[1]
        )
    model = Informer(CONFIG)
    model.fuse()
    inputs = torch.randn(2, 14, 3), torch.randn(2, 14, 2), torch.randn(2, 5, 2)
    model.eval()(*inputs)
    assert taken == []
    model.train()(*inputs)
    layers = CONFIG.encoder_layers + CONFIG.decoder_layers
    assert taken.count("activate") == layers
    assert taken.count("add_and_norm") == 2 * layers + CONFIG.decoder_layers  # the look at the encoder has its own


def test_norm_is_computed_in_32_bits_and_rounded_once():
    hidden, part = 100 + torch.randn(50, 64), torch.randn(50, 64)
    weight, bias = torch.rand(64) + 0.5, torch.randn(64)
    inputs = hidden.bfloat16(), part.bfloat16()
    found = add_and_norm(*inputs, weight, bias, 0.0)
    exact = torch.nn.functional.layer_norm(
        inputs[0].double() + inputs[1].double(), (64,), weight.double(), bias.double()
    )
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
    # Where the sum is rounded too, as in autocast, the difference is far larger.
    rounded = torch.nn.functional.layer_norm((inputs[0] + inputs[1]).float(), (64,), weight, bias)
    assert (rounded - exact).abs().max() > 10 * (found - exact).abs().max()


@pytest.mark.usefixtures("uncompiled")
def test_states_in_16_bits_are_as_exact_as_autocast():
    model = Informer(replace(CONFIG, dropout=0.0, attention="full", encoder_layers=4, width=64)).train()
    exact = loss_and_gradients(model, torch.float32)
    errors = []
    for fused in (False, True):
        model.fuse(fused)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            found = loss_and_gradients(model, torch.float32)
        errors.append(sum((one - other).square().sum() for one, other in zip(found, exact, strict=True)).sqrt())
    size = sum(one.square().sum() for one in exact).sqrt()
    assert errors[0] < 0.05 * size
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_parts_are_compiled_once_for_any_number_of_rows():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    norm, plain = (AddAndNorm(replace(CONFIG, dropout=0.0)) for _ in range(2))
    bend = Activation(CONFIG)
    norm.fused = bend.fused = True
    for shape in ((2, 14, 16), (3, 5, 16)):
        hidden, part = (torch.randn(shape, requires_grad=True) for _ in range(2))
        weight, results = torch.randn(shape), []
        for one in (norm, plain):
            loss = (one(hidden, part) * weight).sum()
            results.append([loss, *torch.autograd.grad(loss, [hidden, part, *one.parameters()])])
        torch.testing.assert_close(*results)
        assert not torch.equal(*(assert_drops(bend, hidden) for _ in range(2)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def assert_drops(bend: Activation, hidden: Tensor) -> Tensor:
    """What is kept is GELU's, as much larger as the others are fewer; what is not has no gradient. Gives the kept."""
    output = bend(hidden)
    (gradient,) = torch.autograd.grad(output.sum(), hidden)
    kept = output != 0
    wanted = torch.nn.functional.gelu(hidden) / (1 - bend.dropout)
    torch.testing.assert_close(output, torch.where(kept, wanted, 0.0))
    assert torch.equal(kept, gradient != 0)
    assert abs(kept.float().mean().item() - (1 - bend.dropout)) < 0.15
    return kept


@needs_triton
def test_kernel_equals_plain_pytorch_in_the_interpreter():
    """In its own process: Triton selects its interpreter when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(CHECKS)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class OnCuda:
    """Looks like queries on a GPU."""

    is_cuda = True

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.shape, self.dtype = (2, 8, 96, width), dtype

    def numel(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("width", "dtype", "samples", "runs"),
    [
        (64, torch.bfloat16, 25, True),
        (16, torch.float32, 255, True),
        (8, torch.float32, 25, False),
        (48, torch.float32, 25, False),
        (64, torch.float64, 25, False),
        (64, torch.bfloat16, 256, False),
    ],
    ids=["usual", "narrow", "too narrow", "no power of two", "64 bits", "too many samples"],
)
def test_kernel_is_used_for_supported_inputs_only(width, dtype, samples, runs, monkeypatch):
    monkeypatch.setattr(prob_sparse, "TRITON_INSTALLED", True)
    sample = torch.zeros(96, samples, dtype=torch.long)
    assert prob_sparse.kernel_runs(OnCuda(width, dtype), sample) == runs
    assert not prob_sparse.kernel_runs(torch.zeros(2, 8, 96, 64), sample)
    monkeypatch.setattr(prob_sparse, "TRITON_INSTALLED", False)
    assert not prob_sparse.kernel_runs(OnCuda(64, torch.bfloat16), sample)


# ---- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_triton
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("queries", "keys", "width"), [(672, 672, 64), (336, 168, 64), (33, 130, 16), (70, 70, 128)])
def test_kernel_equals_plain_pytorch_on_a_gpu(queries, keys, width, dtype):
    import prob_sparse_checks as checks  # imports Triton

    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        checks.assert_kernel_is_plain(queries, keys, width, "cuda", dtype, tolerance=1e-5)
    finally:
        torch.set_float32_matmul_precision(usual)


@pytest.mark.gpu
@needs_triton
@needs_gpu
@pytest.mark.parametrize("part", ["activation", "norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_replay_of_a_captured_part_drops_other_elements(part, dtype):
    config = replace(CONFIG, width=512, inner=512, dropout=0.1)
    module = (Activation if part == "activation" else AddAndNorm)(config).cuda().train()
    module.fused = True
    states = [torch.randn(8, 96, 512, device="cuda", dtype=dtype).requires_grad_() for _ in range(2)]
    taken = states[1:] if part == "activation" else states
    weights = torch.randn(8, 96, 512, device="cuda")
    gradient = torch.zeros_like(states[1])

    def step() -> None:
        loss = (module(*taken).float() * weights).sum()
        gradient.copy_(torch.autograd.grad(loss, states[1])[0])

    for _ in range(3):
        on_side_stream(step)
    replay = capture(step)
    dropped = []
    for _ in range(3):
        replay()
        dropped.append(gradient == 0)
    for one, other in ((0, 1), (1, 2)):
        share = dropped[one].float().mean().item()
        assert share == pytest.approx(0.1, abs=0.005)
        both = (dropped[one] & dropped[other]).float().mean().item()
        assert both == pytest.approx(0.01, abs=0.002)  # as independent draws have it


@pytest.mark.gpu
@needs_gpu
def test_cumulative_sums_are_exact_in_16_bits():
    values = (100 + torch.randn(2, 3, 576, 64, device="cuda")).bfloat16().requires_grad_()
    factor = torch.randn(2, 3, 576, 64, device="cuda")
    found = prob_sparse.sums_so_far(values)
    expected = values.double().cumsum(2)
    assert ((found - expected).abs() <= expected.abs() / 200).all()  # bf16's own rounding, once
    gradients = [torch.autograd.grad((sums * factor).sum(), values)[0].double() for sums in (found, expected)]
    assert (gradients[0] - gradients[1]).norm() <= 1e-2 * gradients[1].norm()


@pytest.mark.gpu
@needs_triton
@needs_gpu
def test_compiled_parts_equal_plain_parts_on_a_gpu():
    for rows, dtype, tolerance in ((96, torch.float32, 1e-4), (40, torch.float32, 1e-4), (96, torch.bfloat16, 2e-2)):
        hidden, part = (torch.randn(4 * rows, 512, device="cuda", dtype=dtype).requires_grad_() for _ in range(2))
        weight, bias = (torch.randn(512, device="cuda").requires_grad_() for _ in range(2))
        factor = torch.randn(4 * rows, 512, device="cuda")
        results = []
        for function in (lambda one: one, informer.compiled):
            found = function(add_and_norm)(hidden, function(activate)(part, 0.0), weight, bias, 0.0)
            found = function(normalise)(found, bias, weight)
            loss = (found.float() * factor).mean()
            results.append([found, *torch.autograd.grad(loss, [hidden, part, weight, bias])])
        for mine, theirs in zip(*results, strict=True):
            assert (mine - theirs).abs().max() <= tolerance * theirs.abs().max()
