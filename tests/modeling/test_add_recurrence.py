"""What `add_recurrence` makes, and what it refuses with a sentence."""

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
from support.checks import WINDOW, config, recurrent
from support.models import DECODERS, KINDS, POSITIONS, VOCABULARY, text, tiny

HEADS = {"causal": RecurrentForCausalLM, "masked": RecurrentForMaskedLM, "bare": RecurrentModel}


def assert_refused(model: Any, settings: Any, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        add_recurrence(model, settings)
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in message
    assert message.endswith("."), message


class TestIdsThatNoTokenHas:
    @pytest.mark.parametrize("wrong", [VOCABULARY, -1])
    @pytest.mark.parametrize(("kind", "head"), [("gpt2", "causal"), ("bert", "masked"), ("llama", "bare")])
    def test_they_are_refused_with_a_sentence(self, kind: str, head: str, wrong: int) -> None:
        model, ids = recurrent(kind, head), text(2, 2 * WINDOW)
        ids[1, -1] = wrong
        with pytest.raises(UserError, match=rf"^Id {wrong} is not in the model's vocabulary of {VOCABULARY}, "):
            model(ids)

    def test_padding_may_have_any(self) -> None:
        model, ids = recurrent("gpt2", "causal"), text(2, WINDOW + 3)
        mask = torch.ones_like(ids)
        mask[1, :4] = 0
        padded = ids.masked_fill(mask == 0, -100)
        assert torch.equal(model(padded, mask).logits[0], model(ids, mask).logits[0])

    def test_in_the_midst_of_generating(self) -> None:
        model = recurrent("gpt2", "causal")
        cache = model(text(1, 3), use_cache=True).past_key_values
        with pytest.raises(UserError, match=f"^Id {VOCABULARY} is not in"):
            model(torch.tensor([[VOCABULARY]]), past_key_values=cache)
        assert cache.state.lengths.tolist() == [3]


def test_the_config_of_one_layer_stands_for_that_of_a_model() -> None:
    layer = RSAConfig(heads=2, counts=(0, 0, 0, 0, 1, 1), dilations=(2, 3), sharing="none")
    base = tiny("gpt2", "causal")
    model = add_recurrence(base, layer)
    wanted = RSARecurrenceConfig(window=base.config.n_positions, counts=layer.counts, dilations=(2, 3), sharing="none")
    assert model.recurrence == wanted  # the gate nearly closed, in windows that fit
    assert add_recurrence(tiny("gpt2"), replace(layer, gate_start=1.0)).recurrence == replace(wanted, gate_start=1.0)
    assert_refused(tiny("gpt2"), replace(layer, heads=6), "heads=2", "6")
    assert_refused(tiny("gpt2"), replace(layer, truncation=5), "truncation", "5")


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_gives_a_pretrained_model(kind: tuple[str, str]) -> None:
    base = tiny(*kind)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = add_recurrence(base, config())
    assert type(model) is HEADS[kind[1]]
    assert isinstance(model, PreTrainedModel)
    assert model.base is base
    for name, value in base.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was initialised anew"


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
def test_unsupported_models_are_told_what_is_supported(build: Any, settings: Any, name: str) -> None:
    assert_refused(
        build(settings), config(), f"'{name}'", "GPT-2", "GPT-NeoX", "OPT", "Llama", "BERT", "register_family"
    )


def test_unsupported_heads() -> None:
    tiny_bert = tiny("bert").config
    assert_refused(AutoModelForMultipleChoice.from_config(tiny_bert), config(), "AutoModelForMaskedLM", "AutoModel")
    assert_refused(AutoModelForTokenClassification.from_config(tiny("gpt2").config), config(), "AutoModelForCausalLM")


def test_an_encoder_set_up_as_a_decoder() -> None:
    settings = BertConfig(**{**tiny("bert").config.to_dict(), "is_decoder": True})
    assert_refused(AutoModelForCausalLM.from_config(settings), config(), "is_decoder=False")
    settings.is_decoder = False
    add_recurrence(AutoModelForMaskedLM.from_config(settings), config())


def test_a_decoder_that_attends_in_both_directions() -> None:
    base = tiny("gemma3_text")
    base.config.use_bidirectional_attention = True
    assert_refused(base, config(), "use_bidirectional_attention=False")


@pytest.mark.parametrize(
    ("family", "most"), [("gpt2", POSITIONS), ("llama", POSITIONS), ("bert", POSITIONS), ("roberta", POSITIONS - 2)]
)
def test_window_larger_than_positions(family: str, most: int) -> None:
    assert_refused(
        tiny(family), config(window=most + 1), f"`window` is {most + 1}", f"{most} positions", f"window={most}"
    )
    model = add_recurrence(tiny(family), config(window=most))
    with torch.no_grad():
        model(text(1, 2 * most + 3))


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3_text"])
def test_sliding_window_smaller_than_window(family: str) -> None:
    base = tiny(family, sliding_window=10)
    assert_refused(base, config(window=10), "`window` is 10", "10 tokens back", "window=9")
    assert_refused(base, config(window=9, slots=3), "window=7")
    with torch.no_grad():
        add_recurrence(base, config(window=7, slots=3))(text(1, 20))


@pytest.mark.parametrize("layer", [4, 100])
def test_insert_layer_beyond_the_layers(layer: int) -> None:
    assert_refused(tiny("gpt2"), config(insert_layer=layer), f"`insert_layer` is {layer}", "3 layers", "1 to 3")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"overlap": 8}, "got overlap=8, window=8"),
        ({"overlap": -1}, "got overlap=-1"),
        ({"window": 0}, "got window=0"),
        ({"bptt_windows": 0}, "bptt_windows"),
        ({"pooling": "sum"}, "'sum'"),
        ({"pooled_layers": "first"}, "'first'"),
        ({"insert_layer": 0}, "insert_layer=0"),
        ({"insert_layer": "top"}, "'top'"),
        ({"slots": 0}, "slots=0"),
        ({"hidden_layers": -1}, "hidden_layers=-1"),
        ({"hidden_size": 0}, "hidden_size=0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        config(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"window": "8"},
        {"window": 8.5},
        {"overlap": "3"},
        {"overlap": 1.5},
        {"slots": "1"},
        {"slots": 1.5},
        {"hidden_size": None},
        {"hidden_layers": 1.5},
        {"bptt_windows": "2"},
        {"insert_layer": True},
        {"standardize": "no"},
    ],
    ids=str,
)
def test_settings_of_the_wrong_type(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"`{next(iter(settings))}`"):
        config(**settings)


def test_arguments_of_the_wrong_type() -> None:
    assert_refused(torch.nn.Linear(2, 2), config(), "PreTrainedModel", "Linear")
    assert_refused("gpt2", config(), "PreTrainedModel", "str")
    assert_refused(tiny("gpt2"), {"window": 8}, "CarryConfig", "dict")
    assert_refused(tiny("gpt2"), "carry", "CarryConfig", "str")


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="windw"):
        CarryConfig(windw=8)


def test_adding_twice() -> None:
    model = recurrent("gpt2")
    assert_refused(model, config(), "recurrent already", "model.base")
    windowed = add_recurrence(tiny("gpt2"), NoRecurrence(window=8))
    assert add_recurrence(windowed, config()).base is windowed.base


@torch.no_grad()
def test_a_base_can_be_used_again() -> None:
    base = tiny("gpt2")
    add_recurrence(base, config())
    again, once = (
        add_recurrence(base, NoRecurrence(window=WINDOW)),
        add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW)),
    )
    assert torch.equal(again(text(2, 20)).logits, once(text(2, 20)).logits)


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_other_attention_is_refused(attention: str) -> None:
    base = tiny("gpt2")
    base.config._attn_implementation_internal = attention
    assert_refused(base, config(), f"'{attention}'", "'sdpa'", "'eager'")


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


@pytest.mark.parametrize("kind", [("gpt2", "causal"), ("bert", "masked"), ("bert", "bare")], ids="-".join)
def test_empty_input(kind: tuple[str, str]) -> None:
    model = recurrent(*kind)
    for shape in ((2, 0), (4,), (0,)):
        with pytest.raises(UserError, match="at least one token"):
            model(torch.zeros(shape, dtype=torch.long))
    with pytest.raises(UserError, match="`input_ids`"):
        model(torch.zeros(0, 5, dtype=torch.long))


def test_a_mask_of_another_shape() -> None:
    model = recurrent("gpt2")
    for shape in ((2, 3), (1, 5), (2, 1, 5, 5)):
        with pytest.raises(UserError, match="`attention_mask`"):
            model(text(2, 5), attention_mask=torch.ones(shape))


def test_labels_of_another_shape() -> None:
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
    """A new family in one line: it then passes what the others pass."""

    @pytest.fixture(autouse=True)
    def _clean(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))

    def phi(self) -> PreTrainedModel:
        settings = PhiConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=POSITIONS, pad_token_id=1, bos_token_id=2, eos_token_id=3,
        )  # fmt: skip
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(settings).eval()

    @torch.no_grad()
    def test_a_new_family(self) -> None:
        base = self.phi()
        assert_refused(base, config(), "'phi'")
        register_family(Family("Phi", ("phi",), layers="layers", causal=True))
        expected = base(text(2, WINDOW)).logits
        model = add_recurrence(base, config(overlap=3))
        assert torch.equal(model(text(2, WINDOW)).logits, expected)
        whole = model(text(2, 20))
        first = model(text(2, 20)[:, :11])
        second = model(text(2, 20)[:, 11:], state=first.state)
        torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole.logits, rtol=1e-4, atol=1e-5)
        ids = text(2, 5)
        for _ in range(2 * WINDOW):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        assert (
            model.generate(text(2, 5), max_new_tokens=2 * WINDOW, do_sample=False, eos_token_id=None).tolist()
            == ids.tolist()
        )

    def test_is_cleaned_up(self) -> None:
        assert set(families._FAMILIES) >= set(DECODERS)
        assert_refused(self.phi(), config(), "'phi'")
