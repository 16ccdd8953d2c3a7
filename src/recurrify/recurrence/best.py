"""What is chosen where it is not named: a mechanism by what positions a base has, and how long windows are.

LOG.md has the measurements. With rotary positions a whole window of kept keys and values beat all that is learned. With
absolute ones so did `lookback`, the more it kept the better, as long as two kept positions and no more had to share a
place in front of the window.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from recurrify.recurrence.families import family_of
from recurrify.recurrence.kv import KVConfig
from recurrify.recurrence.lookback import LEAST_ROOM, LookbackConfig, enough_room
from recurrify.recurrence.mechanism import RecurrenceConfig
from recurrify.recurrence.tail import TailConfig

MOST_KEPT = 256
"""As many as were measured; with more, what passes from window to window outgrows the window."""
TAIL, POOLED = 16, 1


def best_settings(config: PretrainedConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """A mechanism and its settings for a base of this config, but for those that are `given`."""
    family = family_of(config)
    positions = family.positions(config)
    rotary = family.causal and family.rotary
    if rotary:
        usual = RecurrenceConfig.window if positions is None else min(RecurrenceConfig.window, positions // 2)
    elif family.causal:
        keep = MOST_KEPT if positions is None else min(MOST_KEPT, positions // 4)
        usual = default_window(config, {"mechanism": LookbackConfig.mechanism, "keep": keep})
    else:
        usual = default_window(config, {"mechanism": TailConfig.mechanism})
    window = given.get("window") or max(1, usual)
    stride = max(1, window - given.get("overlap", 0))
    free = MOST_KEPT if positions is None else positions - window
    chosen: dict[str, Any]
    if rotary:
        sinks = min(KVConfig.sinks, stride - 1)
        chosen = {"mechanism": KVConfig.mechanism, "keep": stride - sinks, "sinks": sinks}
    elif family.causal and free >= LEAST_ROOM:
        chosen = {"mechanism": LookbackConfig.mechanism, "keep": min(MOST_KEPT, stride, 2 * free)}
    else:
        chosen = {"mechanism": TailConfig.mechanism, "tail": min(TAIL, stride), "pooled_slots": POOLED}
    return {"window": window, **chosen, **{name: value for name, value in given.items() if name != "mechanism"}}


def default_window(config: Any, recurrence: Mapping[str, Any]) -> int:
    """The paper's window, or all positions of a model that has fewer, but for those that a memory needs."""
    positions = family_of(config).positions(config)
    if positions is None:
        return RecurrenceConfig.window
    if recurrence["mechanism"] == LookbackConfig.mechanism:
        keep, room = int(recurrence.get("keep", LookbackConfig.keep)), recurrence.get("room")
        # What is kept has been in a window, however little room that leaves.
        least = min(positions, keep + int(recurrence.get("overlap", 0)))
        positions = max(least, positions - enough_room(keep)) if room is None else positions - room
    return max(1, min(RecurrenceConfig.window, positions))
