"""torchao's quantised weights, asked for through transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, TorchAoConfig

from recurrify import add_recurrence
from support.checks import WINDOW, recurrent
from support.models import PAD, text

pytest.importorskip("torchao", reason="`make test-versions` installs it; every start of transformers imports it")
FAMILIES = {"carry": "llama", "kv": "llama", "lookback": "opt"}  # GPT-2's own kind of layer stays as it is
pytestmark = [
    pytest.mark.parametrize("mechanism", FAMILIES),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


def quantised(source: Path) -> torch.nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig

    return AutoModelForCausalLM.from_pretrained(source, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()))


def is_quantised(layer: torch.nn.Module) -> bool:
    return "torchao" in type(getattr(layer, "weight", None)).__module__


@torch.no_grad()
def test_a_saved_model_is_loaded_quantised(mechanism: str, tmp_path: Path) -> None:
    model, ids = recurrent(FAMILIES[mechanism], mechanism=mechanism), text(2, 3 * WINDOW + 3)
    expected = model(ids).logits
    model.save_pretrained(tmp_path / "whole")
    found = quantised(tmp_path / "whole")
    layers = [name for name, layer in found.named_modules() if is_quantised(layer)]
    assert any(name.startswith("base.") for name in layers)
    assert any(name.startswith("mechanism.") for name in layers) == (mechanism == "carry")  # the others have no layers
    assert 0 < (found(ids).logits - expected).abs().mean() < 0.1 * expected.std()
    settings = {"max_new_tokens": 2 * WINDOW, "do_sample": False, "eos_token_id": None, "pad_token_id": PAD}
    written = found.generate(ids, **settings, output_logits=True, return_dict_in_generate=True)
    torch.testing.assert_close(written.logits[-1], found(written.sequences[:, :-1]).logits[:, -1])
    found.save_pretrained(tmp_path / "small")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert torch.equal(again(ids).logits, found(ids).logits)


def test_a_quantised_base_gets_a_memory(mechanism: str, tmp_path: Path) -> None:
    model, ids = recurrent(FAMILIES[mechanism], mechanism=mechanism), text(2, 3 * WINDOW + 3)
    model.base.save_pretrained(tmp_path / "base")
    found = add_recurrence(quantised(tmp_path / "base"), model.recurrence)
    found.mechanism.load_state_dict(model.mechanism.state_dict())
    found.train()(ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in found.added_parameters().values())
    found.eval().save_pretrained(tmp_path / "small")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert torch.equal(again(ids).logits, found(ids).logits)
    if mechanism == "kv":
        return  # adds no weights
    found.config.base_name_or_path = str(tmp_path / "base")
    found.save_pretrained(tmp_path / "added", added_only=True)
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "added", quantization_config=found.base.config.quantization_config
    )
    assert torch.equal(again(ids).logits, found(ids).logits)
