"""A control: every window reads the memory of another document."""

from collections.abc import Sequence

from torch import Tensor

from recurrify import State, UserError


class Exchange:
    """Gives every document the memory of another one in the batch, before each window.

    Added weights adapt to a kind of text even if nothing is remembered. A gain over the memories of other documents is
    memory; a gain over plain windows need not be.
    """

    def __init__(self) -> None:
        self.spare: dict[int, Tensor] = {}
        """By document, the latest memories of two of them: for the last document, which is read alone."""

    def __call__(self, documents: Sequence[int], state: State) -> State:
        """`documents` are those that the rows read."""
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
            raise UserError("Memories are exchanged between documents: give two or more that are longer than a window.")
        return others[0]
