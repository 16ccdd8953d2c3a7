"""The memory that served best where it was measured, by what positions a base has: what is added where none is named.

LOG.md has the measurements. With rotary positions a whole window of kept keys and values beat all that is learned. With
absolute ones so did `lookback`, the more it kept the better, as long as two kept positions and no more had to share a
place in front of the window.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from recurrify.recurrence.families import family_of
from recurrify.recurrence.kv import KVConfig
from recurrify.recurrence.lookback import LEAST_ROOM, LookbackConfig
from recurrify.recurrence.mechanism import RecurrenceConfig
from recurrify.recurrence.tail import TailConfig

MOST_KEPT = 256
"""As many as were measured; with more, what passes from window to window outgrows the window."""
EIGHTHS = 7
"""Of a base's positions go to a window at most, where the rest is for what is kept."""
TAIL = {"tail": 16, "pooled_slots": 1}


def best_settings(config: PretrainedConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """A mechanism and its settings for a base of this config, but for those that are `given`."""
    family = family_of(config)
    positions = family.positions(config)
    usual = RecurrenceConfig.window
    if family.causal and family.rotary:
        window = given.get("window") or (usual if positions is None else max(1, min(usual, positions // 2)))
        stride = max(1, window - given.get("overlap", 0))
        sinks = min(KVConfig.sinks, stride - 1)
        chosen = {"mechanism": KVConfig.mechanism, "keep": stride - sinks, "sinks": sinks}
        return {"window": window, **chosen, **_settings(given)}
    if family.causal:
        window = given.get("window") or (usual if positions is None else min(usual, EIGHTHS * positions // 8))
        stride = max(1, window - given.get("overlap", 0))
        free = MOST_KEPT if positions is None else positions - window
        if free >= LEAST_ROOM:
            chosen = {"mechanism": LookbackConfig.mechanism, "keep": min(MOST_KEPT, stride, 2 * free)}
            return {"window": window, **chosen, **_settings(given)}
    window = given.get("window") or (usual if positions is None else min(usual, positions))
    stride = max(1, window - given.get("overlap", 0))
    chosen = {"mechanism": TailConfig.mechanism, **TAIL, "tail": min(TAIL["tail"], stride)}
    return {"window": window, **chosen, **_settings(given)}


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "mechanism"}
