"""Which memory and window a base gets if none is named."""

from typing import Any

import pytest
import torch

from recurrify import CarryConfig, KVConfig, LookbackConfig, UserError, add_recurrence
from recurrify.mechanisms import recurrence_config
from recurrify.mechanisms.choose import best_settings, default_window
from recurrify.modeling.loading import load_model
from support.checks import ABSOLUTE, ROTARY
from support.models import DECODERS, ENCODERS, text, tiny


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "bert", "roberta"])
@pytest.mark.parametrize("positions", [64, 600])
def test_plain_windows_have_the_length_of_the_chosen_memory(family: str, positions: int) -> None:
    config = tiny(family, max_position_embeddings=positions).config
    assert default_window(config, {"mechanism": "none"}) == best_settings(config, {})["window"]


@pytest.mark.parametrize(
    ("settings", "keep"),
    [
        ({"mechanism": "kv", "window": 64}, 60),
        ({"mechanism": "kv", "window": 64, "overlap": 20, "sinks": 0}, 44),
        ({"mechanism": "kv", "window": 64, "keep": 5}, 5),
        ({"mechanism": "kv"}, 64),
        ({"mechanism": "lookback", "window": 32}, 32),
        ({"mechanism": "lookback"}, 64),
    ],
    ids=str,
)
def test_default_keep_fits_the_window(settings: dict[str, Any], keep: int) -> None:
    assert recurrence_config(settings).to_dict()["keep"] == keep


@pytest.mark.parametrize("changes", [{"window": "8"}, {"window": 8, "overlap": 8}, {"sinks": -1}], ids=str)
def test_invalid_settings_raise_before_keep_is_chosen(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        recurrence_config({"mechanism": "kv", **changes})


@torch.no_grad()
@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_choice_depends_on_positions(family: str) -> None:
    model = add_recurrence(tiny(family)).eval()
    kinds = {**dict.fromkeys(ABSOLUTE, LookbackConfig), **dict.fromkeys(ROTARY, KVConfig)}
    assert type(model.recurrence) is kinds.get(family, CarryConfig)
    out = model(text(1, 2 * model.recurrence.window + 3))
    assert all(torch.isfinite(found).all() for found in (out[0], out.state.memory))


@pytest.mark.parametrize(
    ("positions", "given", "expected"),
    [
        (1024, {}, {"window": 300, "keep": 256, "room": 257}),
        (256, {}, {"window": 224, "keep": 64, "room": 32}),
        (64, {"window": 64}, {"window": 64, "insert_layer": "all"}),
        (64, {"window": 60}, {"window": 60, "keep": 8, "room": 4}),
        (64, {"window": 40, "overlap": 30}, {"window": 40, "overlap": 30, "keep": 10, "room": 11}),
        (64, {"keep": 5}, {"window": 56, "keep": 5, "room": 6}),
        (64, {"keep": 32}, {"window": 48, "keep": 32, "room": 16}),
    ],
    ids=str,
)
def test_given_settings_are_kept(
    positions: int, given: dict[str, Any], expected: dict[str, Any], tmp_path: Any
) -> None:
    tiny("gpt2", max_position_embeddings=positions).save_pretrained(tmp_path)
    load_model("shipped:base")[1].save_pretrained(tmp_path)
    model, _ = load_model(str(tmp_path), {"mechanism": "best", **given})
    assert {name: getattr(model.recurrence, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "given", "expected"),
    [
        ({"max_position_embeddings": 64, "sliding_window": None}, {}, {"window": 32, "keep": 28, "sinks": 4}),
        (
            {"max_position_embeddings": 64, "sliding_window": None},
            {"window": 44},
            {"window": 44, "keep": 16, "sinks": 4},
        ),
        (
            {"max_position_embeddings": 64, "sliding_window": None},
            {"window": 60},
            {"window": 60, "insert_layer": "all"},
        ),
        ({"max_position_embeddings": 64, "sliding_window": 40}, {}, {"window": 20, "keep": 16, "sinks": 4}),
    ],
    ids=str,
)
def test_rotary_base_keeps_as_many_as_positions_allow(
    changes: dict[str, Any], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    base = tiny("mistral", **changes)
    model = add_recurrence(base, recurrence_config(best_settings(base.config, given)))
    assert {name: getattr(model.recurrence, name) for name in expected} == expected


def test_unregistered_rotary_positions_are_not_moved() -> None:
    base = tiny("gpt2")
    base.config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    assert best_settings(base.config, {})["mechanism"] == "carry"
    with pytest.raises(UserError, match="absolute positions"):
        add_recurrence(base, LookbackConfig(window=8, keep=4))


@pytest.mark.parametrize(
    ("given", "words"),
    [({"limit": 3}, "'lookback', which was chosen.* no setting 'limit'"), ({"window": "8"}, "`window`")],
    ids=str,
)
def test_invalid_settings_raise(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_model("shipped:base", {"mechanism": "best", **given})
