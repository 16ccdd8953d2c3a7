"""A control for what a memory holds: the memories of other documents.

Added weights learn about a kind of text even where nothing is remembered. What a model gains with its own memories over
those of other documents is memory; what it gains over plain windows need not be.
"""

from collections.abc import Sequence

from torch import Tensor

from recurrify.errors import UserError
from recurrify.state import State


class Exchange:
    """Before each window, every document gets the memory that another one has, which is read beside it."""

    def __init__(self) -> None:
        self.spare: dict[int, Tensor] = {}
        """By document, the latest memories of two of them: for the one that is left over at the end."""

    def __call__(self, documents: Sequence[int], state: State) -> State:
        """`documents` says what is read in each row."""
        rows = state.live.nonzero()[:, 0]
        if state.memory is None or len(rows) == 0:
            return state
        on_device, reading = rows.to(state.memory.device), [documents[row] for row in rows.tolist()]
        own = state.memory[on_device]
        if len(reading) > 1:
            given = own.roll(1, 0)
            self.spare = {reading[0]: own[:1], reading[1]: own[1:2]}
        else:
            given = self._others(reading[0])
        memory = state.memory.clone()
        memory[on_device] = given
        return state._replace(memory=memory)

    def _others(self, document: int) -> Tensor:
        others = [memory for of, memory in self.spare.items() if of != document]
        if not others:
            raise UserError(
                "Memories can be exchanged between documents alone: give at least two that are longer than a window."
            )
        return others[0]
