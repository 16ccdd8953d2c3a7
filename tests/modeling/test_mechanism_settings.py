"""Settings of memories: every invalid value raises one sentence that names the setting, for all mechanisms."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest

from recurrify import MechanismConfig, UserError
from recurrify.mechanisms import mechanism_config, mechanism_names
from recurrify.settings import declaration, setting
from support.checks import config


@pytest.mark.parametrize("mechanism", mechanism_names())
def test_values_of_another_type_or_below_the_limit_raise(mechanism: str) -> None:
    for entry in fields(mechanism_config(mechanism)):
        for value in invalid_values(entry):
            with pytest.raises(UserError, match=f"`{entry.name}`") as caught:
                mechanism_config(mechanism)(**{entry.name: value})
            assert str(caught.value).endswith(".")


@dataclass(frozen=True, kw_only=True)
class LimitedConfig(MechanismConfig):
    mechanism: ClassVar[str] = "limited"
    share: float = setting(0.5, at_most=1)
    rate: float = setting(1.0, positive=True)
    where: str = setting("all", choices=("all", "first"))
    layers: tuple[int, ...] = setting((1,), at_most=3)


@pytest.mark.parametrize("value", [{"share": 7.0}, {"rate": 0.0}, {"where": "last"}, {"layers": (2, 4)}])
def test_declared_limits_hold_in_a_mechanism(value: dict[str, Any]) -> None:
    LimitedConfig()
    with pytest.raises(UserError, match=f"`{next(iter(value))}` must be"):
        LimitedConfig(**value)


def invalid_values(entry: Any) -> list[Any]:
    least = declaration(entry).at_least
    found: list[Any] = [{"no": "such"}, float("nan"), float("inf"), "text"]
    if least is not None:
        found.append(least - 1 if isinstance(entry.default, int | None) else least - 0.5)
    if isinstance(entry.default, int) and not isinstance(entry.default, bool):
        found += [True, entry.default + 0.5]
    return found


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"overlap": 8}, "smaller than `window`: got overlap=8, window=8"),
        ({"window": 0}, "`window` must be at least 1 token: got window=0"),
        ({"window": "8"}, "`window` must be a whole number: got window='8'"),
        ({"bptt_windows": 0}, "`bptt_windows` must be a whole number of at least 1 or None: got bptt_windows=0"),
        ({"pooling": "sum"}, "`pooling` must be 'mean' or 'max' or 'attention': got pooling='sum'"),
        (
            {"insert_layer": "top"},
            "`insert_layer` must be a whole number of at least 1 or 'all': got insert_layer='top'",
        ),
        ({"standardize": "no"}, "`standardize` must be True or False: got standardize='no'"),
        ({"mechanism": "compress", "fade": -0.1}, "`fade` must be a number of at least 0: got fade=-0.1"),
        (
            {"mechanism": "kv", "keep": 8, "sinks": 1},
            "`keep` is 8 and `sinks` 1, .* only 8 positions .*keep=7 or less",
        ),
        (
            {"mechanism": "kv", "overlap": 5},
            "`keep` is 3 and `sinks` 1, .* only 3 positions .*overlap=5.*keep=2 or less",
        ),
        ({"mechanism": "lookback", "keep": 9}, "`keep` is 9, .* only 8 positions .*keep=8 or less"),
        (
            {"mechanism": "lookback", "overlap": 6},
            "`keep` is 3, .* only 2 positions .*overlap=6.*keep=2 or less.* less overlap",
        ),
        ({"mechanism": "tail", "tail": 9}, "`tail` is 9, .* only 8 positions"),
        ({"mechanism": "tail", "overlap": 5}, "`tail` is 4, .* only 3 positions .*overlap=5.*tail=3 or less"),
        ({"mechanism": "tail", "insert_layer": 3, "until_layer": 2}, "until_layer=2"),
        ({"mechanism": "tail", "gate_start": 0.0}, "gate_start=0 needs gates: add gated=True"),
    ],
)
def test_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        config(**settings)
    assert str(caught.value).endswith(".")
