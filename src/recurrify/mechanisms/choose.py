"""What is chosen where it is not named: a mechanism by what positions a base has, and how long windows are.

LOG.md has the measurements. With rotary positions a whole window of kept keys and values beat all that is learned. With
absolute ones so did `lookback`, the more it kept the better, as long as two kept positions and no more had to share a
place in front of the window. Where windows leave no room for that, the paper's vector at every layer gains little, but
starts without harm, which a tail does not.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import PretrainedConfig

from recurrify.errors import UserError
from recurrify.families import attention_reach, family_of, has_absolute_positions
from recurrify.mechanisms.carry import CarryConfig
from recurrify.mechanisms.config import MechanismConfig, NoRecurrence
from recurrify.mechanisms.kv import KVConfig
from recurrify.mechanisms.lookback import LEAST_ROOM, LookbackConfig, enough_room

MOST_KEPT = 256
"""As many as were measured; with more, what passes from window to window outgrows the window."""
LEAST_KEPT = 16
"""With room for fewer keys and values than that, nobody has measured what they are worth."""


def best_settings(config: PretrainedConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """A mechanism and its settings for a base of this config, but for those that are `given`."""
    given = {name: value for name, value in given.items() if name != "mechanism" and value is not None}
    NoRecurrence(**{name: given[name] for name in ("window", "overlap") if name in given})  # refuses what cannot be
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
    unknown = sorted(set(given) - {field.name for field in fields(kind)})
    if unknown:
        raise UserError(
            f"The mechanism {kind.mechanism!r}, which was chosen for this base, has no setting "
            f"{', '.join(map(repr, unknown))}: name the `mechanism` that has it."
        )
    return {"mechanism": kind.mechanism, "window": window, **chosen, **given}


def _positions(config: PretrainedConfig) -> int | None:
    """As many as a model can use, as far as it is limited."""
    limits = (family_of(config).positions(config), attention_reach(config))
    return min((limit for limit in limits if limit is not None), default=None)


def _usual_window(config: PretrainedConfig, given: Mapping[str, Any], positions: int | None) -> int:
    """The paper's, or as long a one as leaves room for what is to be kept."""
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
    """The paper's window, or all positions of a model that has fewer, but for those that a memory needs: as many as
    what is chosen where nothing is named, so that models can be compared; `lookback` goes by what it keeps."""
    by_keeping = recurrence["mechanism"] == LookbackConfig.mechanism
    if family_of(config).rotary or (has_absolute_positions(config) and not by_keeping):
        return _usual_window(config, {}, _positions(config))
    positions = family_of(config).positions(config)
    if positions is None:
        return MechanismConfig.window
    if recurrence["mechanism"] == LookbackConfig.mechanism:
        keep, room = int(recurrence.get("keep", LookbackConfig.keep)), recurrence.get("room")
        # What is kept has been in a window, however little room that leaves.
        least = min(positions, keep + int(recurrence.get("overlap", 0)))
        positions = max(least, positions - enough_room(keep)) if room is None else positions - room
    return max(1, min(MechanismConfig.window, positions))
