"""`State` by itself: its methods return new states and do not change the old one."""

import pytest
import torch

from recurrify import State, UserError


@pytest.fixture
def state() -> State:
    return State(
        memory=torch.arange(6.0).view(3, 1, 2).requires_grad_(),
        live=torch.tensor([True, True, False]),
        tokens=torch.tensor([[7, 8, 9], [5, 0, 0], [6, 4, 0]]),
        lengths=torch.tensor([3, 1, 2]),
    )


def test_fresh() -> None:
    state = State.fresh(2)
    assert state.memory is None
    assert state.live.tolist() == [False, False]
    assert state.tokens.shape == (2, 0)
    assert state.lengths.tolist() == [0, 0]
    assert state.rows == 2


@pytest.mark.parametrize("rows", [[0, 2], torch.tensor([0, 2]), torch.tensor([True, False, True])])
def test_reset(state: State, rows: list[int] | torch.Tensor) -> None:
    after = state.reset(rows)
    assert after.live.tolist() == [False, True, False]
    assert after.lengths.tolist() == [0, 1, 0]
    assert after.tokens[1, 0] == 5
    assert torch.equal(after.memory[1], state.memory[1])
    assert state.lengths.tolist() == [3, 1, 2], "the state it was called on has changed"
    assert state.live.tolist() == [True, True, False]


def test_reset_clears_nan(state: State) -> None:
    """Memory of such rows is masked by a product with zero, which keeps NaN."""
    state = state.detach()
    assert state.memory is not None
    state.memory[0] = torch.nan
    after = state.reset([0])
    assert after.memory is not None
    assert (after.memory[0] == 0).all()
    assert torch.equal(after.memory[1], state.memory[1])
    assert state.memory[0].isnan().all(), "the state it was called on has changed"


def test_reset_with_a_list_of_booleans(state: State) -> None:
    assert state.reset([True, False, True]).lengths.tolist() == [0, 1, 0]


def test_reset_of_no_rows(state: State) -> None:
    for nothing in ([], torch.tensor([False] * 3)):
        after = state.reset(nothing)
        assert after.lengths.tolist() == state.lengths.tolist()
        assert after.live.tolist() == state.live.tolist()


def test_reset_of_every_row_is_a_fresh_state(state: State) -> None:
    after = state.reset([0, 1, 2])
    for ours, theirs in zip(after[1:4], State.fresh(3)[1:4], strict=True):
        assert torch.equal(ours, theirs)
    assert after.memory is None


def test_select(state: State) -> None:
    chosen = state.select([2, 0, 0])
    assert chosen.rows == 3
    assert chosen.lengths.tolist() == [2, 3, 3]
    assert chosen.live.tolist() == [False, True, True]
    assert chosen.tokens.tolist() == [[6, 4, 0], [7, 8, 9], [7, 8, 9]]
    assert torch.equal(chosen.memory, state.memory[[2, 0, 0]])
    assert State.fresh(3).select([1]).memory is None


def test_detach(state: State) -> None:
    assert state.memory.requires_grad
    cut = state.detach()
    assert not cut.memory.requires_grad
    assert torch.equal(cut.memory, state.memory)
    assert State.fresh(1).detach().memory is None


def test_to(state: State) -> None:
    moved = state.to("meta")
    assert moved.memory.device.type == moved.tokens.device.type == "meta"
    assert moved.live.device.type == moved.lengths.device.type == "cpu"


@pytest.mark.parametrize("rows", [[3], [-4], [0.5], [[0, 1]], [True], "ab", None, 1, [None]])
def test_malformed_rows_raise(state: State, rows: object) -> None:
    for change in (state.select, state.reset):
        with pytest.raises(UserError, match="Rows must be whole numbers"):
            change(rows)  # type: ignore[arg-type]
