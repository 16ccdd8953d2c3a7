"""The paper's mechanism against the naive reference: loss, logits, memory and every gradient, in double precision."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from support import reference
from support.checks import CARRIES, assert_close, assert_same_gradients, gradients, recurrent
from support.models import text

WINDOWS = {"gpt2": reference.gpt2_window, "llama": reference.llama_window}


@pytest.fixture(autouse=True)
def _exact_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' own norm rounds to single precision on the way, which would hide smaller differences."""

    def norm(self: LlamaRMSNorm, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", norm)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("variant", CARRIES)
@pytest.mark.parametrize("family", WINDOWS)
def test_equals_the_reference(family: str, variant: str, training: bool) -> None:
    model = recurrent(family, base={"dtype": torch.double}, **CARRIES[variant]).train(training)
    weights = dict(model.named_parameters()) | {name: value.clone() for name, value in model.named_buffers()}
    settings = SimpleNamespace(**vars(model.recurrence))
    ids = text(2, 28)
    labels = ids.clone()
    labels[0, 9:12] = -100

    logits, memory = reference.run(WINDOWS[family], weights, settings, model.base.config, ids)
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    probe = torch.randn_like(memory)
    (loss + (memory * probe).sum()).backward()
    expected = gradients(model)

    ours = model(ids, labels=labels)
    (ours.loss + (ours.state.memory * probe).sum()).backward()
    assert_close(ours.state.memory, memory, 1e-9)
    if not training:
        assert_close(ours.logits, logits, 1e-9)
    else:
        assert ours.logits is None, "a training step does without the logits of the whole text"
    assert_close(ours.loss, loss, 1e-9)
    assert_same_gradients(gradients(model), expected, 1e-9)
