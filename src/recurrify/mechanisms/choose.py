"""Which mechanism and which window a base gets if none is named, by its positions.

The measurements are in docs/log.md. With rotary positions, a whole window of kept keys and values beats every learned
memory. With absolute positions, `lookback` does; more kept positions are better as long as at most two share one free
position in front of the window. Without free positions, `carry` at every layer gains little, but unlike `tail` it does
no harm before training.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import PretrainedConfig

from recurrify.families import attention_reach, family_of, has_absolute_positions
from recurrify.mechanisms.carry import CarryConfig
from recurrify.mechanisms.config import MechanismConfig, NoRecurrence
from recurrify.mechanisms.kv import KVConfig
from recurrify.mechanisms.lookback import LEAST_ROOM, LookbackConfig
from recurrify.mechanisms.registry import check_names, mechanism_config

MOST_KEPT = 256
"""The most that was measured; with more, the state becomes larger than the window."""
LEAST_KEPT = 16
"""Fewer kept keys and values were not measured."""


def best_settings(config: PretrainedConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """A mechanism and its settings for a base of this config, but for those that are `given`."""
    given = {name: value for name, value in given.items() if name != "mechanism" and value is not None}
    NoRecurrence(**{name: given[name] for name in ("window", "overlap") if name in given})  # checks them
    family, positions = family_of(config), _positions(config)
    window = given.get("window") or _usual_window(config, given, positions)
    stride = max(1, window - given.get("overlap", 0))
    free = MOST_KEPT + stride if positions is None else positions - window
    kind: type[MechanismConfig]
    chosen: dict[str, Any]
    if family.causal and family.rotary and free >= min(LEAST_KEPT, stride):
        kept = min(stride, free)
        sinks = min(KVConfig.sinks, kept - 1)
        kind, chosen = KVConfig, {"keep": kept - sinks, "sinks": sinks}
    elif has_absolute_positions(config) and free >= LEAST_ROOM:
        kind, chosen = LookbackConfig, {"keep": min(MOST_KEPT, stride, 2 * free)}
    else:
        kind, chosen = CarryConfig, {"insert_layer": "all"}
    check_names(kind.mechanism, [field.name for field in fields(kind)], given, ", which was chosen for this base,")
    return {"mechanism": kind.mechanism, "window": window, **chosen, **given}


def _positions(config: PretrainedConfig) -> int | None:
    """As many as a model can use; None if it has no limit."""
    limits = (family_of(config).positions(config), attention_reach(config))
    return min((limit for limit in limits if limit is not None), default=None)


def _usual_window(config: PretrainedConfig, given: Mapping[str, Any], positions: int | None) -> int:
    """The paper's window, or the longest one that leaves free positions for kept keys."""
    if family_of(config).rotary:
        return MechanismConfig.window if positions is None else max(1, min(MechanismConfig.window, positions // 2))
    if not has_absolute_positions(config):
        return default_window(config, {"mechanism": CarryConfig.mechanism})
    keep = MOST_KEPT if positions is None else min(MOST_KEPT, positions // 4)
    wanted = given.get("keep")
    asked = {"keep": max(keep, wanted) if isinstance(wanted, int) else keep}
    asked |= {"room": given["room"]} if isinstance(given.get("room"), int) else {}
    return default_window(config, {"mechanism": LookbackConfig.mechanism, **asked})


def default_window(config: Any, recurrence: Mapping[str, Any]) -> int:
    """The paper's window, or all positions of a model that has fewer, except those that a memory needs. Models with and
    without a memory get the same window, so that they can be compared; a mechanism for absolute positions gets the
    window that its own settings leave."""
    kind = mechanism_config(recurrence["mechanism"])
    if family_of(config).rotary or (has_absolute_positions(config) and kind.positions != "absolute"):
        return _usual_window(config, {}, _positions(config))
    positions = family_of(config).positions(config)
    if positions is None:
        return MechanismConfig.window
    return max(1, min(MechanismConfig.window, kind.longest_window(recurrence, positions)))
