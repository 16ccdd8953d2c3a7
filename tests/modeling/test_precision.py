"""Half precision and autocast: everything runs, and gives nearly what single precision gives."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from recurrify.modeling.model import RecurrentPreTrainedModel
from support.checks import answer, gradients, recurrent
from support.models import DECODERS, ENCODERS, text

IDS = text(2, 18)  # three windows


def in_half_precision(how: str, family: str, **settings: Any) -> tuple[RecurrentPreTrainedModel, Any]:
    model = recurrent(family, overlap=3, **settings)
    if how == "autocast":
        return model, torch.autocast("cpu", torch.bfloat16)
    return model.to(torch.bfloat16), nullcontext()


@pytest.mark.parametrize("how", ["half", "autocast"])
@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_runs_trains_and_goes_on(family: str, how: str) -> None:
    model, context = in_half_precision(how, family, standardize=True)
    # Apart: what torch 2.10 casts without gradients it does not cast again within the same context.
    with context, torch.no_grad():
        output = model(IDS)
        expected = answer(recurrent(family, overlap=3, standardize=True)(IDS))
        assert (answer(output).float() - expected).abs().mean() < 0.05 * expected.abs().mean()
        state = output.state.reset([1])
    with context:
        # Once for each way to count positions.
        for checkpoint in (False, True) if family in ("gpt2", "llama", "bert", "roberta") else (True,):
            model.train().set_recurrence(checkpoint=checkpoint)
            model(IDS, labels=IDS).loss.backward()
            assert all(value.isfinite().all() for value in gradients(model).values())
            model(IDS, labels=IDS, state=state.select([0, 0])).loss.backward()
            model.zero_grad()
        model(IDS, labels=IDS, state=state).loss.item()


@pytest.mark.parametrize("how", ["half", "autocast"])
@pytest.mark.parametrize("family", DECODERS)
def test_generates(family: str, how: str) -> None:
    model, context = in_half_precision(how, family)
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, :3] = 0
    with context:
        written = model.generate(
            IDS[:, :5], attention_mask=mask, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=1
        )
    assert written.shape == (2, 25)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_running_statistics_do_not_stall(dtype: torch.dtype) -> None:
    """A slow average in half precision would lose its small steps and stop short of where it is going."""
    mechanism = recurrent("gpt2", standardize=True).to(dtype).train().mechanism
    mechanism.windows_seen.fill_(10_000)
    mechanism.running_mean.fill_(1.0)
    for _ in range(600):
        mechanism.learn_statistics([torch.full((4, 16), 1.1)])
    torch.testing.assert_close(mechanism.running_mean.float(), torch.full((16,), 1.1), rtol=0.01, atol=0)
