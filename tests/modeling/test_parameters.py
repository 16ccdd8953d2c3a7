"""The names, shapes and running statistics of the paper's mechanism."""

import pytest
import torch

from recurrify import add_recurrence
from support.checks import VARIANTS, WINDOW, config, recurrent
from support.models import text, tiny

EXPECTED = {
    "paper": {"layer_scores"},
    "attention": {"layer_scores", "key"},
    "last_layer": {"network.4.weight", "network.4.bias"},
    "standardized": {"layer_scores", "skip.weight"},
}
NETWORK = {f"network.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")}


@pytest.mark.parametrize("variant", EXPECTED)
def test_names_of_added_parameters(variant: str) -> None:
    added = recurrent("gpt2", **VARIANTS[variant]).added_parameters()
    assert set(added) == {f"mechanism.{name}" for name in EXPECTED[variant] | NETWORK}


def test_layers_are_weighted_evenly_at_the_start() -> None:
    model = add_recurrence(tiny("gpt2"), config())
    assert model.mechanism.layer_scores.tolist() == [0.0, 0.0, 0.0]


def test_defaults_of_the_paper() -> None:
    model = add_recurrence(tiny("gpt2", n_positions=300), type(config())())
    shapes = {name: tuple(value.shape) for name, value in model.added_parameters().items()}
    assert shapes == {
        "mechanism.layer_scores": (3,),
        "mechanism.network.0.weight": (200, 16),
        "mechanism.network.0.bias": (200,),
        "mechanism.network.2.weight": (200, 200),
        "mechanism.network.2.bias": (200,),
        "mechanism.network.4.weight": (200, 200),
        "mechanism.network.4.bias": (200,),
        "mechanism.network.6.weight": (16, 200),
        "mechanism.network.6.bias": (16,),
    }
    assert model.recurrence.window == 300
    assert model.mechanism.slots() == {1: 1}


class TestStandardize:
    def test_statistics_are_updated_with_every_window(self) -> None:
        model = add_recurrence(tiny("gpt2"), config(standardize=True)).train()
        model(text(2, 3 * WINDOW), labels=text(2, 3 * WINDOW))
        assert model.mechanism.windows_seen.item() == 6
        mean, variance = model.mechanism.running_mean.clone(), model.mechanism.running_variance.clone()
        assert mean.abs().min() > 0
        assert variance.max() < 1
        model(text(2, 3 * WINDOW, seed=1), labels=text(2, 3 * WINDOW))
        assert model.mechanism.windows_seen.item() == 12
        assert not torch.equal(model.mechanism.running_mean, mean)
        assert not torch.equal(model.mechanism.running_variance, variance)

    def test_statistics_converge_to_mean_and_variance(self) -> None:
        mechanism = recurrent("gpt2", standardize=True).mechanism
        chance = torch.Generator().manual_seed(0)
        for _ in range(300):
            values = 3.0 + 0.5 * torch.randn(20, mechanism.width, generator=chance)
            mechanism.learn_statistics([values[:5], values[5:]])
        torch.testing.assert_close(mechanism.running_mean, torch.full((mechanism.width,), 3.0), rtol=0.05, atol=0)
        torch.testing.assert_close(mechanism.running_variance, torch.full((mechanism.width,), 0.25), rtol=0.25, atol=0)

    def test_one_window_does_not_set_the_variance_to_zero(self) -> None:
        mechanism = recurrent("gpt2", standardize=True).mechanism
        mechanism.learn_statistics([torch.randn(1, mechanism.width)])
        assert mechanism.running_variance.min() > 0.5

    def test_unfinished_windows_do_not_count(self) -> None:
        model = add_recurrence(tiny("gpt2"), config(standardize=True)).train()
        mask = torch.arange(20)[None] < torch.tensor([20, 7])[:, None]
        model(text(2, 20), attention_mask=mask.long())
        assert model.mechanism.windows_seen.item() == 2

    def test_statistics_do_not_change_in_evaluation(self) -> None:
        model = recurrent("gpt2", standardize=True)
        before = {name: value.clone() for name, value in model.mechanism.named_buffers()}
        model(text(2, 20), labels=text(2, 20))
        with torch.no_grad():
            model.train()(text(2, 20), labels=text(2, 20))
        for name, value in model.mechanism.named_buffers():
            assert torch.equal(value, before[name]), f"{name} moved"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_running_statistics_do_not_stall(dtype: torch.dtype) -> None:
    """A slow average in half precision would lose small steps and stop early."""
    mechanism = recurrent("gpt2", standardize=True).to(dtype).train().mechanism
    mechanism.windows_seen.fill_(10_000)
    mechanism.running_mean.fill_(1.0)
    for _ in range(600):
        mechanism.learn_statistics([torch.full((4, 16), 1.1)])
    torch.testing.assert_close(mechanism.running_mean.float(), torch.full((16,), 1.1), rtol=0.01, atol=0)
