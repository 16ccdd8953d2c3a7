"""What `add_recurrence` returns, and the errors of models, settings and inputs that it cannot take."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForTokenClassification,
    BertConfig,
    MambaConfig,
    MambaModel,
    PhiConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

from recurrify import (
    CarryConfig,
    NoRecurrence,
    RecurrentForCausalLM,
    RecurrentForMaskedLM,
    RecurrentModel,
    RSARecurrenceConfig,
    UserError,
    add_recurrence,
    families,
)
from recurrify.attention.config import RSAConfig
from recurrify.families import Family, register_family
from recurrify.testing import check_mechanism
from support.checks import WINDOW, config, recurrent
from support.models import KINDS, POSITIONS, VOCABULARY, text, tiny

HEADS = {"causal": RecurrentForCausalLM, "masked": RecurrentForMaskedLM, "bare": RecurrentModel}


def assert_raises(model: Any, settings: Any, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        add_recurrence(model, settings)
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in message
    assert message.endswith("."), message


class TestUnknownIds:
    @pytest.mark.parametrize(("kind", "wrong"), [("gpt2", VOCABULARY), ("bert", -1)])
    def test_one_sentence(self, kind: str, wrong: int) -> None:
        model, ids = recurrent(kind), text(2, 2 * WINDOW)
        ids[1, -1] = wrong
        with pytest.raises(UserError, match=rf"^Id {wrong} is not in the model's vocabulary of {VOCABULARY}, "):
            model(ids)

    def test_padding_may_have_any_id(self) -> None:
        model, ids = recurrent("gpt2", "causal"), text(2, WINDOW + 3)
        mask = torch.ones_like(ids)
        mask[1, :4] = 0
        padded = ids.masked_fill(mask == 0, -100)
        assert torch.equal(model(padded, mask).logits[0], model(ids, mask).logits[0])

    def test_while_generating(self) -> None:
        model = recurrent("gpt2", "causal")
        cache = model(text(1, 3), use_cache=True).past_key_values
        with pytest.raises(UserError, match=f"^Id {VOCABULARY} is not in"):
            model(torch.tensor([[VOCABULARY]]), past_key_values=cache)
        assert cache.state.lengths.tolist() == [3]


def test_attention_config_is_accepted() -> None:
    layer = RSAConfig(heads=2, counts=(0, 0, 0, 0, 1, 1), dilations=(2, 3), sharing="none")
    base = tiny("gpt2", "causal")
    model = add_recurrence(base, layer)
    wanted = RSARecurrenceConfig(window=base.config.n_positions, counts=layer.counts, dilations=(2, 3), sharing="none")
    assert model.recurrence == wanted  # with a nearly closed gate, and windows that fit
    assert add_recurrence(tiny("gpt2"), replace(layer, gate_start=1.0)).recurrence == replace(wanted, gate_start=1.0)
    assert_raises(tiny("gpt2"), replace(layer, heads=6), "heads=2", "6")
    assert_raises(tiny("gpt2"), replace(layer, truncation=5), "truncation", "5")


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_gives_a_pretrained_model(kind: tuple[str, str]) -> None:
    base = tiny(*kind)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = add_recurrence(base, config())
    assert type(model) is HEADS[kind[1]]
    assert isinstance(model, PreTrainedModel)
    assert model.base is base
    for name, value in base.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was initialised again"


def test_keeps_mode_and_precision() -> None:
    base = tiny("gpt2", dtype=torch.bfloat16)
    model = add_recurrence(base, config(standardize=True))
    assert not model.training
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    assert add_recurrence(tiny("gpt2").train(), config()).mechanism.training


T5 = T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
MAMBA = MambaConfig(vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=1)
VIT = ViTConfig(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
)


@pytest.mark.parametrize(
    ("build", "settings", "name"),
    [(T5ForConditionalGeneration, T5, "t5"), (MambaModel, MAMBA, "mamba"), (ViTModel, VIT, "vit")],
)
def test_error_of_unsupported_models_lists_supported_ones(build: Any, settings: Any, name: str) -> None:
    assert_raises(
        build(settings), config(), f"'{name}'", "GPT-2", "GPT-NeoX", "OPT", "Llama", "BERT", "register_family"
    )


def test_unsupported_heads() -> None:
    tiny_bert = tiny("bert").config
    assert_raises(AutoModelForMultipleChoice.from_config(tiny_bert), config(), "AutoModelForMaskedLM", "AutoModel")
    assert_raises(AutoModelForTokenClassification.from_config(tiny("gpt2").config), config(), "AutoModelForCausalLM")


def test_encoder_as_decoder() -> None:
    settings = BertConfig(**{**tiny("bert").config.to_dict(), "is_decoder": True})
    assert_raises(AutoModelForCausalLM.from_config(settings), config(), "is_decoder=False")
    settings.is_decoder = False
    add_recurrence(AutoModelForMaskedLM.from_config(settings), config())


def test_decoder_with_attention_in_both_directions() -> None:
    base = tiny("gemma3_text")
    base.config.use_bidirectional_attention = True
    assert_raises(base, config(), "use_bidirectional_attention=False")


@pytest.mark.parametrize(
    ("family", "most"), [("gpt2", POSITIONS), ("llama", POSITIONS), ("bert", POSITIONS), ("roberta", POSITIONS - 2)]
)
def test_window_larger_than_positions(family: str, most: int) -> None:
    assert_raises(
        tiny(family), config(window=most + 1), f"`window` is {most + 1}", f"{most} positions", f"window={most}"
    )
    model = add_recurrence(tiny(family), config(window=most))
    with torch.no_grad():
        model(text(1, 2 * most + 3))


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_sliding_window_smaller_than_window(family: str) -> None:
    base = tiny(family, sliding_window=10)
    assert_raises(base, config(window=10), "`window` is 10", "10 tokens back", "window=9")
    assert_raises(base, config(window=9, slots=3), "window=7")
    with torch.no_grad():
        add_recurrence(base, config(window=7, slots=3))(text(1, 20))


def test_insert_layer_beyond_the_layers() -> None:
    assert_raises(tiny("gpt2"), config(insert_layer=4), "`insert_layer` is 4", "3 layers", "1 to 3")


def test_arguments_of_the_wrong_type() -> None:
    assert_raises(torch.nn.Linear(2, 2), config(), "PreTrainedModel", "Linear")
    assert_raises("gpt2", config(), "PreTrainedModel", "str")
    assert_raises(tiny("gpt2"), {"window": 8}, "CarryConfig", "dict")
    assert_raises(tiny("gpt2"), "carry", "CarryConfig", "str")


def test_unknown_settings_raise() -> None:
    with pytest.raises(TypeError, match="windw"):
        CarryConfig(windw=8)


def test_adding_twice() -> None:
    model = recurrent("gpt2")
    assert_raises(model, config(), "recurrent already", "model.base")
    windowed = add_recurrence(tiny("gpt2"), NoRecurrence(window=8))
    assert add_recurrence(windowed, config()).base is windowed.base


@torch.no_grad()
def test_base_can_be_used_again() -> None:
    base = tiny("gpt2")
    add_recurrence(base, config())
    again, once = (
        add_recurrence(base, NoRecurrence(window=WINDOW)),
        add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW)),
    )
    assert torch.equal(again(text(2, 20)).logits, once(text(2, 20)).logits)


def test_other_attention_raises() -> None:
    base, attention = tiny("gpt2"), "flash_attention_2"
    base.config._attn_implementation_internal = attention
    assert_raises(base, config(), f"'{attention}'", "'sdpa'", "'eager'")


def test_set_recurrence() -> None:
    model = recurrent("gpt2")
    model.set_recurrence(overlap=3, window=12)
    assert model.recurrence.stride == 9
    with pytest.raises(UserError, match=f"{POSITIONS} positions"):
        model.set_recurrence(window=POSITIONS + 1)
    with pytest.raises(UserError, match="`slots` cannot be changed"):
        model.set_recurrence(slots=2)
    with pytest.raises(UserError, match="overlap=12"):
        model.set_recurrence(overlap=12)
    assert model.recurrence.window == 12


def test_empty_input() -> None:
    model = recurrent("gpt2")
    for shape in ((2, 0), (4,), (0,)):
        with pytest.raises(UserError, match="at least one token"):
            model(torch.zeros(shape, dtype=torch.long))
    with pytest.raises(UserError, match="`input_ids`"):
        model(torch.zeros(0, 5, dtype=torch.long))


def test_mask_with_another_shape() -> None:
    model = recurrent("gpt2")
    for shape in ((2, 3), (1, 5), (2, 1, 5, 5)):
        with pytest.raises(UserError, match="`attention_mask`"):
            model(text(2, 5), attention_mask=torch.ones(shape))


def test_labels_with_another_shape() -> None:
    model = recurrent("gpt2")
    for labels in (text(2, 4), text(1, 5)):
        with pytest.raises(UserError, match="`labels`"):
            model(text(2, 5), labels=labels)


def test_logits_to_keep() -> None:
    model = recurrent("gpt2")
    with torch.no_grad():
        whole = model(text(2, 20)).logits
        torch.testing.assert_close(model(text(2, 20), logits_to_keep=2).logits, whole[:, -2:], rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match="logits_to_keep"):
        model(text(2, 20), labels=text(2, 20), logits_to_keep=1)


class TestRegisterFamily:
    """A new family is one line, and then meets the contract of the others."""

    @pytest.fixture(autouse=True)
    def _clean(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The tests of the documentation register Phi, too.
        known = {name: family for name, family in families._FAMILIES.items() if name != "phi"}
        monkeypatch.setattr(families, "_FAMILIES", known)

    def phi(self) -> PreTrainedModel:
        settings = PhiConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=POSITIONS, pad_token_id=1, bos_token_id=2, eos_token_id=3,
        )  # fmt: skip
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(settings).eval()

    def test_new_family(self) -> None:
        base = self.phi()
        assert_raises(base, config(), "'phi'")
        register_family(Family("Phi", ("phi",), layers="layers", causal=True))
        expected = base(text(2, WINDOW)).logits
        model = add_recurrence(base, config(overlap=3))
        assert torch.equal(model(text(2, WINDOW)).logits, expected)
        check_mechanism(config(overlap=3), ("calls", "generate"), base=self.phi)
