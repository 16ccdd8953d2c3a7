"""The registry of language models: what every one of them must do, settings from a command line, folders."""

import json
import math

import pytest
import torch
from torch import Tensor, nn

from recurrify.errors import UserError
from recurrify_papers.models.language import (
    ARCHITECTURES,
    architecture_name,
    count_parameters,
    language_model,
    load_language_model,
    parse_settings,
    save_language_model,
)

VOCABULARY = 11
ATTENTION = ["heads=2", "head_width=4", "inner=12"]
BLOCKS = ["target_length=8", "window=6", "block=4", "states=3"]
RECURRENCE = ["rsa.counts=0,0,0,0,1,1", "rsa.dilations=2,3"]
TINY = {
    "xl": ["memory_length=6", *ATTENTION],
    "rsa-xl": ["memory_length=6", *ATTENTION, *RECURRENCE],
    "brt": [*ATTENTION, *BLOCKS],
    "rsa-brt": [*ATTENTION, *BLOCKS, *RECURRENCE],
    "lstm": [],
    "gru": [],
    "transformer": ATTENTION,
    "rsa": [*ATTENTION, *RECURRENCE],
}
ALL = pytest.mark.parametrize("arch", TINY)


def tiny(arch: str, **more: object) -> nn.Module:
    settings = parse_settings(arch, ["layers=1", "width=8", *TINY[arch]])
    return language_model(arch, VOCABULARY, **{**settings, **more})


def ids(length: int, batch: int = 2) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def test_every_architecture_is_tested_here():
    assert list(TINY) == list(ARCHITECTURES)


@pytest.mark.parametrize(("plain", "recurrent"), [("xl", "rsa-xl"), ("brt", "rsa-brt"), ("transformer", "rsa")])
def test_with_one_seed_recurrence_is_all_that_tells_twins_apart(plain, recurrent):
    starts = []
    for arch in (plain, recurrent):
        torch.manual_seed(3)
        starts.append(tiny(arch, layers=3).state_dict())
    without, with_recurrence = starts
    assert all(torch.equal(value, with_recurrence[name]) for name, value in without.items())
    assert all(".encoding." in name for name in with_recurrence.keys() - without.keys())
    for parameter in ("mu", "nu"):
        own = [value for name, value in with_recurrence.items() if name.endswith(f".encoding.{parameter}")]
        assert len({value.item() for value in own}) == len(own) == 3


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


@ALL
def test_compiles_whole_and_goes_on_from_its_state(arch):
    model = tiny(arch).eval()
    state = model(ids(8)).state
    # PyTorch compiles its own recurrent cells on demand only: on a GPU they are one kernel already.
    with torch._dynamo.config.patch(allow_rnn=True):
        output = torch.compile(model, fullgraph=True, backend="eager")(ids(8), state)
    expected = model(ids(8), state)
    torch.testing.assert_close((output.logits, *output.state), (expected.logits, *expected.state))
    torch.compiler.reset()


@ALL
@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
def test_an_id_that_no_symbol_has_is_refused_with_a_sentence(arch, wrong):
    tokens = ids(8)
    tokens[1, 3] = wrong
    with pytest.raises(UserError, match=f"Id {wrong} is not in the model's vocabulary of {VOCABULARY}, .* 0 to 10: "):
        tiny(arch)(tokens)


@ALL
def test_rows_of_a_batch_know_nothing_of_each_other(arch):
    model = tiny(arch).double().eval()
    state = model(ids(8)).state
    tokens = ids(7)
    together = model(tokens, state).logits
    alone = model(tokens[:1], model(ids(8)[:1]).state).logits
    torch.testing.assert_close(together[:1], alone)


@ALL
def test_a_few_steps_of_training_learn_more_than_how_often_each_symbol_comes(arch):
    torch.manual_seed(0)
    model = tiny(arch, width=32, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    text = torch.arange(17).remainder(4)[None].expand(2, -1)
    state = None
    for _ in range(40):
        output = model(text[:, :-1], state)
        state = output.state
        loss = nn.functional.cross_entropy(output.logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3 * math.log(4)


@ALL
def test_saved_and_loaded_it_is_the_same_model(arch, tmp_path):
    model = tiny(arch).eval()
    save_language_model(model, tmp_path / "model")
    loaded = load_language_model(tmp_path / "model")
    assert (architecture_name(loaded), loaded.config) == (arch, model.config)
    assert not loaded.training
    torch.testing.assert_close(loaded(ids(8)).logits, model(ids(8)).logits, rtol=0, atol=0)


def test_settings_are_read_by_the_types_of_their_fields():
    assignments = [
        "layers=4",
        "dropout=0",
        "same_length=True",
        "clamp=400",
        "rsa.counts=0,0,0,0,1,1",
        "rsa.dilations = 6, 12",
        "rsa.sharing=none",
        "rsa.gate_start=-3",
        "rsa.truncation=None",
    ]
    settings = parse_settings("rsa-xl", assignments)
    assert settings == {
        "layers": 4,
        "dropout": 0.0,
        "same_length": True,
        "clamp": 400,
        "rsa.counts": (0, 0, 0, 0, 1, 1),
        "rsa.dilations": (6, 12),
        "rsa.sharing": "none",
        "rsa.gate_start": -3.0,
        "rsa.truncation": None,
    }
    with torch.device("meta"):
        config = language_model("rsa-xl", 27, **settings).config
    assert (config.layers, config.clamp, config.rsa.dilations, config.rsa.gate_start) == (4, 400, (6, 12), -3.0)
    assert parse_settings("brt", ["gate=lstm", "skip=false", "recurrent_layer=none"]) == {
        "gate": "lstm",
        "skip": False,
        "recurrent_layer": None,
    }


def test_the_published_recurrence_is_the_default_and_follows_the_heads():
    with torch.device("meta"):
        rsa = language_model("rsa-xl", 204, heads=4).config.rsa
    assert (rsa.heads, rsa.counts, rsa.dilations) == (4, (0, 0, 0, 0, 2, 2), (3, 6, 9, 12))


@pytest.mark.parametrize(
    ("arch", "assignment", "words"),
    [
        ("rwkv", "layers=2", "one of xl, rsa-xl"),
        ("xl", "layers", "name=value"),
        ("xl", "depth=2", "no setting `depth`: it has layers"),
        ("xl", "vocabulary=9", "no setting `vocabulary`"),
        ("lstm", "cell=gru", "no setting `cell`"),
        ("transformer", "carry_recurrence=true", "no setting"),
        ("xl", "rsa.counts=1,0,0,0,0,0", "take one of rsa-xl"),
        ("rsa-xl", "rsa.heads=4", "no setting `rsa.heads`"),
        ("xl", "layers=2.5", "a whole number: got '2.5'"),
        ("xl", "dropout=much", "a number: got 'much'"),
        ("xl", "same_length=1", "true or false"),
        ("xl", "clamp=far", "a whole number or none"),
        ("brt", "gate=gru", "fixed or lstm"),
        ("rsa", "rsa.counts=0;1", "whole numbers with commas"),
    ],
)
def test_bad_assignments_are_refused_with_a_sentence(arch, assignment, words):
    with pytest.raises(UserError, match=words):
        parse_settings(arch, [assignment])


def test_a_setting_given_twice_is_refused():
    with pytest.raises(UserError, match="once only"):
        parse_settings("xl", ["layers=2", "layers=3"])


@pytest.mark.parametrize(
    ("arch", "settings", "words"),
    [
        ("xl", {"layers": "2"}, "`layers` must be a whole number: got '2'"),
        ("xl", {"layers": True}, "got True"),
        ("xl", {"depth": 2}, "no setting `depth`"),
        ("xl", {"vocabulary": 204.0}, "`vocabulary`"),
        ("rsa-xl", {"rsa.counts": (0, 0, 0, 0, 2, 2.5)}, "`rsa.counts`"),
        ("rsa-xl", {"heads": 2}, "default `rsa.counts`.* gives 4 heads a recurrence"),
        ("rsa-xl", {"rsa.gate_start": float("nan")}, "`gate_start` must be finite"),
        ("brt", {"gate": "gru"}, "fixed or lstm"),
    ],
)
def test_bad_values_are_refused_with_a_sentence(arch, settings, words):
    with pytest.raises(UserError, match=words):
        language_model(arch, **{"vocabulary": 204, **settings})


def test_what_is_no_language_model_is_not_saved(tmp_path):
    with pytest.raises(UserError, match="got Linear"):
        save_language_model(nn.Linear(2, 2), tmp_path)


def test_broken_folders_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(UserError, match="no language model"):
        load_language_model(tmp_path)
    save_language_model(tiny("xl"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change in ({"format": "another"}, {"architecture": "rwkv"}, {"config": config["config"] | {"width": 16}}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match="cannot be loaded"):
            load_language_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be loaded"):
        load_language_model(tmp_path)
