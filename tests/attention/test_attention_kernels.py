"""The Triton kernels: in Triton's interpreter on a CPU, and compiled on a GPU."""

import kernel_checks as checks
import pytest
import torch

from recurrify.attention import fused, scan
from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.kernels import TRITON_INSTALLED
from recurrify.attention.rsa import mix_recurrence
from recurrify.attention.scan import ScanState
from recurrify.errors import UserError
from support.interpreting import check_interpreted

needs_triton = pytest.mark.skipif(not TRITON_INSTALLED, reason="Triton is not installed")
ON_GPU = [(torch.float32, 2e-5), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)]


@needs_triton
def test_the_kernels_equal_the_matrix_form_in_the_interpreter():
    check_interpreted(checks.__name__, "check_on_cpu")


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize(("dtype", "tolerance"), ON_GPU, ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("queries", "memory", "width"), [(1, 0, 64), (300, 0, 64), (200, 131, 48), (777, 5, 128)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", checks.HEADS)
def test_the_mix_equals_the_matrix_form_on_a_gpu(heads, causal, queries, memory, width, dtype, tolerance):
    checks.assert_mix_is_matrix(heads, causal, queries, memory, width, "cuda", dtype, tolerance)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize(("dtype", "tolerance"), ON_GPU, ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("heads", checks.HEADS)
@pytest.mark.parametrize("causal", [True, False])
def test_truncated_scans_equal_the_matrix_form_on_a_gpu(heads, causal, dtype, tolerance):
    checks.assert_truncated_is_matrix(heads, causal, 300, 131, 127, "cuda", dtype, tolerance)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize(("dtype", "tolerance"), ON_GPU, ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("heads", checks.HEADS)
def test_pieces_equal_the_whole_on_a_gpu(heads, dtype, tolerance):
    checks.assert_pieces_are_the_whole(heads, [130, 1, 2, 400, 64], 9, 64, "cuda", dtype, tolerance)
    checks.assert_any_state_is_taken("cuda", dtype, tolerance)
    checks.assert_states_keep_32_bits(500, 64, "cuda", dtype)


@pytest.mark.gpu
@needs_triton
def test_compiled_equals_eager_on_a_gpu():
    checks.assert_compiled_is_eager("cuda", backend="inductor")


@pytest.mark.gpu
@needs_triton
def test_all_results_are_written_on_a_gpu():
    checks.assert_memory_is_not_trusted("cuda")


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("level", [-12.0, 9.0])
def test_decays_near_0_and_1_stay_exact_over_a_long_sequence(level):
    config = RSAConfig(heads=4, counts=(1, 0, 0, 0, 1, 1), dilations=(2, 3), gate_start=1.0)
    ours = RecurrenceEncoding(config).cuda()
    with torch.no_grad():
        ours.nu.fill_(level)
        ours.eta.fill_(-torch.atanh(torch.sigmoid(torch.tensor(level))).item())
    true = RecurrenceEncoding(config).double().cuda()
    true.load_state_dict(ours.state_dict())
    values, true_values = checks.drawn(1, 3, 5000, 16, device="cuda", dtype=torch.float32)
    output = scan(values, ours.kernel()).output
    expected = scan(true_values, true.kernel()).output
    found = checks.gradients(output.square().mean(), [values, *checks.parameters(ours)])
    wanted = checks.gradients(expected.square().mean(), [true_values, *checks.parameters(true)])
    for mine, exact in zip([output, *found], [expected, *wanted], strict=True):
        assert (mine - exact).abs().max() <= 2e-3 * exact.abs().max() + 1e-9


@pytest.mark.parametrize(("dtype", "device"), [(torch.float32, "cpu"), (torch.float64, "cuda")])
def test_other_types_and_devices_use_pytorch(dtype, device, monkeypatch):
    monkeypatch.setattr(fused, "TRITON_INSTALLED", True)
    values = type("Values", (), {"is_cuda": device == "cuda", "dtype": dtype, "numel": lambda self: 1})()
    assert not fused.kernels_run(values)
    values.is_cuda, values.dtype = True, torch.bfloat16
    assert fused.kernels_run(values)


def test_state_with_another_shape_raises():
    encoding = RecurrenceEncoding(RSAConfig(heads=2, counts=(0, 0, 0, 1, 0, 0), dilations=(2,)))
    carry = torch.zeros(1, 1, 6, 3)
    state = ScanState(carry, carry[:, :, :0])
    with pytest.raises(UserError, match=r"\(1, 1, 4, 3\): got \(1, 1, 6, 3\)"):
        scan(torch.zeros(1, 1, 5, 3), encoding.kernel(), state=state)
    with pytest.raises(UserError, match=r"\(1, 1, 4, 3\): got \(1, 1, 6, 3\)"):
        mix_recurrence(torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 5, 3), encoding, causal=True, state=state)
    with pytest.raises(UserError, match="the same batch and width"):
        mix_recurrence(torch.zeros(2, 2, 5, 3), torch.zeros(1, 2, 5, 3), encoding, causal=True)
