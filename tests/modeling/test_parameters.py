"""Nothing that was added is inert: registered, saved, trained and used."""

import pytest
import torch
from safetensors.torch import load_file

from recurrify import add_recurrence
from support.checks import VARIANTS, VARIED, WINDOW, config, mechanisms_of, recurrent, variants_in_turn
from support.models import KINDS, text, tiny

EXPECTED = {
    "paper": {"layer_scores", "network.0.weight", "network.0.bias", "network.2.weight", "network.2.bias"},
    "attention": {
        "layer_scores", "key", "network.0.weight", "network.0.bias", "network.2.weight", "network.2.bias",
    },
    "last_layer": {f"network.{layer}.{part}" for layer in (0, 2, 4) for part in ("weight", "bias")},
    "standardized": {
        "layer_scores", "network.0.weight", "network.0.bias", "network.2.weight", "network.2.bias", "skip.weight",
    },
}  # fmt: skip


@pytest.mark.parametrize(("family", "variant"), variants_in_turn(*VARIED))
def test_every_variant_is_registered_saved_and_trained(family: str, variant: str, tmp_path) -> None:
    model = recurrent(family, base={"dtype": torch.double}, **VARIANTS[variant]).train()
    added = model.added_parameters()
    if variant in EXPECTED:
        assert set(added) == {f"mechanism.{name}" for name in EXPECTED[variant]}
    model.save_pretrained(tmp_path)
    assert set(added) <= set(model.state_dict())
    saved = set(load_file(tmp_path / "model.safetensors"))
    assert set(added) | {name for name, _ in model.named_buffers() if name.startswith("mechanism.")} <= saved
    model(text(2, 20), labels=text(2, 20)).loss.backward()
    for name, value in model.named_parameters():
        assert value.grad is not None, f"{name} has no gradient"
        assert value.grad.abs().max() > 0, f"{name} has a gradient of zero"


@pytest.mark.parametrize(("kind", "mechanism"), mechanisms_of(KINDS))
def test_every_added_parameter_trains_in_every_family(kind: tuple[str, str], mechanism: str) -> None:
    model = add_recurrence(tiny(*kind), config(mechanism)).train()
    if kind[1] == "bare":
        model(text(2, 20)).last_hidden_state[:, WINDOW:].square().sum().backward()
    else:
        model(text(2, 20), labels=text(2, 20, seed=1)).loss.backward()
    for name, value in model.added_parameters().items():
        assert value.grad is not None, f"{name} has no gradient"
        assert value.grad.abs().max() > 0, f"{name} has a gradient of zero"


def test_layers_are_weighted_evenly_at_the_start() -> None:
    model = add_recurrence(tiny("gpt2"), config())
    assert model.mechanism.layer_scores.tolist() == [0.0, 0.0, 0.0]


def test_the_papers_defaults() -> None:
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
    def test_statistics_are_those_of_the_windows_seen(self) -> None:
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

    def test_statistics_settle_on_the_mean_and_the_variance(self) -> None:
        mechanism = recurrent("gpt2", standardize=True).mechanism
        chance = torch.Generator().manual_seed(0)
        for _ in range(300):
            values = 3.0 + 0.5 * torch.randn(20, mechanism.width, generator=chance)
            mechanism.learn_statistics([values[:5], values[5:]])
        torch.testing.assert_close(mechanism.running_mean, torch.full((mechanism.width,), 3.0), rtol=0.05, atol=0)
        torch.testing.assert_close(mechanism.running_variance, torch.full((mechanism.width,), 0.25), rtol=0.25, atol=0)

    def test_one_window_alone_does_not_set_the_variance_to_nothing(self) -> None:
        mechanism = recurrent("gpt2", standardize=True).mechanism
        mechanism.learn_statistics([torch.randn(1, mechanism.width)])
        assert mechanism.running_variance.min() > 0.5

    def test_unfinished_windows_do_not_count(self) -> None:
        model = add_recurrence(tiny("gpt2"), config(standardize=True)).train()
        mask = torch.arange(20)[None] < torch.tensor([20, 7])[:, None]
        model(text(2, 20), attention_mask=mask.long())
        assert model.mechanism.windows_seen.item() == 2

    def test_statistics_stand_still_in_evaluation(self) -> None:
        model = recurrent("gpt2", standardize=True)
        before = {name: value.clone() for name, value in model.mechanism.named_buffers()}
        model(text(2, 20), labels=text(2, 20))
        with torch.no_grad():
            model.train()(text(2, 20), labels=text(2, 20))
        for name, value in model.mechanism.named_buffers():
            assert torch.equal(value, before[name]), f"{name} moved"

    @pytest.mark.parametrize("buffer", ["running_mean", "running_variance"])
    @torch.no_grad()
    def test_statistics_are_used(self, buffer: str) -> None:
        model = recurrent("gpt2", standardize=True)
        before = model(text(2, 20)).logits
        model.mechanism.get_buffer(buffer).add_(1.0)
        after = model(text(2, 20)).logits
        assert torch.equal(after[:, :WINDOW], before[:, :WINDOW])
        assert (after[:, WINDOW:] - before[:, WINDOW:]).abs().max() > 1e-4
