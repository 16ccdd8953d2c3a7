"""What every language model must do, its settings, and its folder."""

import json
import math

import pytest
import torch
from torch import nn

from recurrify.errors import UserError
from recurrify_papers.models.language import (
    ARCHITECTURES,
    architecture_name,
    checked_settings,
    count_parameters,
    language_model,
    load_language_model,
    save_language_model,
)
from recurrify_papers.scratch.settings import ARCHITECTURES as NAMES
from recurrify_papers.scratch.settings import WITH_RECURRENCE
from support.language import ids

VOCABULARY = 11
ATTENTION = {"heads": 2, "head_width": 4, "inner": 12}
BLOCKS = {"target_length": 8, "window": 6, "block": 4, "states": 3}
RECURRENCE = {"rsa.counts": (0, 0, 0, 0, 1, 1), "rsa.dilations": (2, 3)}
TINY: dict[str, dict[str, object]] = {
    "xl": {"memory_length": 20, **ATTENTION},
    "rsa-xl": {"memory_length": 20, **ATTENTION, **RECURRENCE},
    "brt": {**ATTENTION, **BLOCKS},
    "rsa-brt": {**ATTENTION, **BLOCKS, **RECURRENCE},
    "lstm": {},
    "gru": {},
    "transformer": ATTENTION,
    "rsa": {**ATTENTION, **RECURRENCE},
}
ALL = pytest.mark.parametrize("arch", TINY)
WITH_MEMORY = pytest.mark.parametrize("arch", [arch for arch in TINY if arch != "transformer"])
WITH_HEADS = pytest.mark.parametrize("arch", [arch for arch in TINY if arch not in ("lstm", "gru")])


def tiny(arch: str, **more: object) -> nn.Module:
    """A small model with larger weights than the initial ones, so that every part shows in the result."""
    torch.manual_seed(1)
    settings = {"layers": 2, "width": 8, "dropout": 0.0, **TINY[arch], **more}
    model = language_model(arch, VOCABULARY, **settings).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encoding" not in name and "bias.table" not in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    return model


def test_every_architecture_is_tested_here():
    assert tuple(TINY) == tuple(ARCHITECTURES) == NAMES
    assert tuple(name for name, one in ARCHITECTURES.items() if one.recurrence is not None) == WITH_RECURRENCE


@pytest.mark.parametrize(
    ("arch", "size"),
    [
        ("xl", 47_880_396),
        ("rsa-xl", 47_880_466),
        ("brt", 46_575_308),
        ("rsa-brt", 46_575_378),
        ("lstm", 47_900_364),
        ("gru", 47_833_500),
        ("transformer", 44_210_380),
        ("rsa", 44_210_450),
    ],
)
def test_sizes_for_enwik8(arch, size):
    with torch.device("meta"):
        assert count_parameters(language_model(arch, 204)) == size


@pytest.mark.parametrize(("plain", "recurrent"), [("xl", "rsa-xl"), ("brt", "rsa-brt"), ("transformer", "rsa")])
def test_recurrence_alone_differs_from_the_plain_model(plain, recurrent):
    """With one seed the other weights are equal, and with closed gates the logits are, too."""
    models = []
    for arch in (plain, recurrent):
        torch.manual_seed(3)
        models.append(language_model(arch, VOCABULARY, layers=2, width=8, **TINY[arch]).eval())
    one, other = models
    without, with_recurrence = one.state_dict(), other.state_dict()
    assert all(torch.equal(value, with_recurrence[name]) for name, value in without.items())
    assert all(".encoding." in name for name in with_recurrence.keys() - without.keys())
    gates = [value for name, value in other.named_parameters() if name.endswith(".encoding.mu")]
    assert len({gate.item() for gate in gates}) == 2
    assert not torch.allclose(other(ids(9)).logits, one(ids(9)).logits)
    with torch.no_grad():
        for gate in gates:
            gate.fill_(-math.inf)
    torch.testing.assert_close(other(ids(9)).logits, one(ids(9)).logits)


@pytest.mark.parametrize("cuts", [(1, 2, 12), tuple(range(1, 15))], ids=str)
@pytest.mark.parametrize("arch", ["xl", "rsa-xl", "brt", "rsa-brt", "lstm", "gru"])
def test_segments_with_state_equal_the_whole_text(arch, cuts):
    model = tiny(arch)
    tokens = ids(15)
    whole = model(tokens)
    state, logits = model.first_state(2), []
    for segment in torch.tensor_split(tokens, cuts, dim=1):
        output = model(segment, state)
        logits.append(output.logits)
        state = output.state
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.logits)
    torch.testing.assert_close(tuple(state), tuple(whole.state))


@ALL
def test_logits_do_not_depend_on_later_symbols(arch):
    model = tiny(arch)
    state = model(ids(6)).state
    tokens = ids(13)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % VOCABULARY
    before, after = model(tokens, state).logits, model(changed, state).logits
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=0)
    assert not torch.allclose(before[:, 7], after[:, 7])


@ALL
def test_rows_of_a_batch_are_independent(arch):
    model = tiny(arch)
    together = model(ids(7), model(ids(8)).state).logits
    alone = model(ids(7)[:1], model(ids(8)[:1]).state).logits
    torch.testing.assert_close(together[:1], alone)


@WITH_MEMORY
def test_state_changes_the_logits_and_has_no_gradient(arch):
    model = tiny(arch)
    state = model(ids(6)).state
    assert not any(part.requires_grad for part in state)
    leaves = type(state)(*(part.clone().requires_grad_() for part in state))
    logits = model(ids(5), leaves).logits
    logits.sum().backward()
    assert all(part.grad is None for part in leaves)
    for name, part in state._asdict().items():
        changed = model(ids(5), state._replace(**{name: part + 1})).logits
        assert part.numel() == 0 or not torch.allclose(changed, logits), name


@ALL
def test_every_parameter_gets_a_gradient(arch):
    model = tiny(arch)
    model(ids(8)).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.numel() == 0 or (parameter.grad != 0).any(), name


@ALL
def test_dropout_acts_in_training_only(arch):
    model = tiny(arch, dropout=0.5)
    assert not torch.allclose(model(ids(5)).logits, model(ids(5)).logits)
    model.eval()
    torch.testing.assert_close(model(ids(5)).logits, model(ids(5)).logits, rtol=0, atol=0)


@pytest.mark.parametrize("arch", ["rsa-xl", "rsa-brt", "rsa"])
def test_compiles_as_one_graph_with_its_state(arch):
    model = tiny(arch, layers=1).eval()
    state = model(ids(8)).state
    output = torch.compile(model, fullgraph=True, backend="eager")(ids(8), state)
    expected = model(ids(8), state)
    torch.testing.assert_close((output.logits, *output.state), (expected.logits, *expected.state))
    torch.compiler.reset()


@ALL
def test_saved_model_loads_unchanged(arch, tmp_path):
    model = tiny(arch).float().eval()
    save_language_model(model, tmp_path / "model")
    loaded = load_language_model(tmp_path / "model")
    assert (architecture_name(loaded), loaded.config) == (arch, model.config)
    assert not loaded.training
    torch.testing.assert_close(loaded(ids(8)).logits, model(ids(8)).logits, rtol=0, atol=0)


@ALL
def test_wrong_ids_and_states_raise(arch):
    model = tiny(arch)
    tokens = ids(8)
    tokens[1, 3] = VOCABULARY
    with pytest.raises(UserError, match=f"Id {VOCABULARY} is not in the model's vocabulary"):
        model(tokens)
    with pytest.raises(UserError, match="batch of 3"):
        model(ids(4, batch=3), model(ids(4)).state)


@WITH_HEADS
def test_head_width_defaults_to_an_equal_share(arch):
    shape = {"layers": 1, "width": 24, "heads": 4, "inner": 8}
    with torch.device("meta"):
        assert language_model(arch, 7, **shape).config.head_width == 6
        assert language_model(arch, 7, **shape, head_width=5).config.all_heads == 20
    with pytest.raises(UserError, match=r"got width=24, heads=5; set head_width=4"):
        language_model(arch, 7, **shape | {"heads": 5})
    with pytest.raises(UserError, match="`head_width` must be at least 1: got 0"):
        language_model(arch, 7, **shape, head_width=0)


def test_settings_may_be_text():
    """As a command line gives them: numbers that are JSON, and other text."""
    given = {
        "layers": 4,
        "dropout": 0,
        "same_length": True,
        "clamp": "none",
        "rsa.counts": "0,0,0,0,1,1",
        "rsa.dilations": [6, 12],
        "rsa.sharing": "none",
        "rsa.truncation": None,
    }
    settings = checked_settings("rsa-xl", given)
    assert settings == given | {"clamp": None, "rsa.counts": (0, 0, 0, 0, 1, 1), "rsa.dilations": (6, 12)}
    assert checked_settings("rsa-xl", {"rsa.dilations": 3}) == {"rsa.dilations": (3,)}
    with torch.device("meta"):
        config = language_model("rsa-xl", 27, **given).config
    assert (config.layers, config.clamp, config.rsa.dilations) == (4, None, (6, 12))


def test_published_recurrence_is_the_default():
    with torch.device("meta"):
        rsa = language_model("rsa-xl", 204, heads=4).config.rsa
    assert (rsa.heads, rsa.counts, rsa.dilations) == (4, (0, 0, 0, 0, 2, 2), (3, 6, 9, 12))


@pytest.mark.parametrize(
    ("arch", "settings", "words"),
    [
        ("rwkv", {}, "one of xl, rsa-xl"),
        ("xl", {"depth": 2}, "no setting `depth`: it has layers"),
        ("lstm", {"cell": "gru"}, "no setting `cell`"),
        ("xl", {"rsa.counts": (1, 0, 0, 0, 0, 0)}, "use one of rsa-xl"),
        ("xl", {"layers": 2.5}, "`layers` must be a whole number: got 2.5"),
        ("xl", {"layers": True}, "got True"),
        ("xl", {"vocabulary": 204.0}, "`vocabulary`"),
        ("xl", {"dropout": "much"}, "a number: got 'much'"),
        ("xl", {"same_length": 1}, "true or false"),
        ("rsa", {"rsa.counts": "0;1"}, "whole numbers with commas"),
        ("rsa-xl", {"rsa.counts": (0, 0, 0, 0, 2, 2.5)}, "`rsa.counts`"),
        ("rsa-xl", {"heads": 2}, "default `rsa.counts`.* gives 4 heads a recurrence"),
        ("rsa-xl", {"rsa.gate_start": float("nan")}, "`gate_start` must be finite"),
        ("xl", {"layers": 0}, "`layers`"),
        ("xl", {"dropout": 1.0}, "`dropout`"),
        ("xl", {"width": 7, "head_width": 4}, "even"),
        ("xl", {"memory_length": -1}, "got -1"),
        ("xl", {"same_length": True, "memory_length": 1}, "at least 2"),
        ("xl", {"clamp": 0}, "`clamp`"),
        ("brt", {"window": 1}, "`window` must be at least 2"),
        ("brt", {"target_length": 128}, "use --length 256 or --set block=64"),
        ("brt", {"target_length": 301}, "two or more whole blocks"),
        ("lstm", {"width": 0}, "`width`"),
    ],
)
def test_bad_values_raise(arch, settings, words):
    with pytest.raises(UserError, match=words):
        language_model(arch, **{"vocabulary": 204, **settings})


def test_broken_folders_raise(tmp_path):
    with pytest.raises(UserError, match="got Linear"):
        save_language_model(nn.Linear(2, 2), tmp_path)
    with pytest.raises(UserError, match="no language model"):
        load_language_model(tmp_path)
    save_language_model(tiny("xl"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change in ({"architecture": "rwkv"}, {"config": config["config"] | {"width": 16}}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match="cannot be loaded"):
            load_language_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        load_language_model(tmp_path)
