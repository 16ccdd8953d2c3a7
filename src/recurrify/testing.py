"""The contract that every mechanism must meet, for recurrify's own and for those of other packages.

    from recurrify.testing import check_mechanism
    check_mechanism(MyConfig(window=16, overlap=4))

Each check of `CHECKS` builds tiny random models and raises an AssertionError that says what is wrong.
"""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from recurrify.errors import UserError
from recurrify.mechanisms.base import CacheMechanism, SlotMechanism
from recurrify.mechanisms.config import MechanismConfig
from recurrify.modeling import add_recurrence
from recurrify.state import State

__all__ = ["CHECKS", "Case", "check_mechanism"]

VOCABULARY, WIDTH, LAYERS, HEADS = 60, 16, 3, 2
PAD = 1
FIRST_WORD = 4
"""Tokens below are special; texts are made of the others."""
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """What a check gets: a config, and how to make bases for it."""

    config: MechanismConfig
    base: Callable[[], Any]

    def recurrent(self, **changed: Any) -> Any:
        """A recurrent model in double precision, with added weights that are far from their initial values."""
        torch.manual_seed(0)
        model = add_recurrence(self.base().double().eval(), replace(self.config, **changed))
        if model.mechanism is None:
            raise UserError(f"{type(self.config).__name__} adds no mechanism: there is nothing to check.")
        with torch.no_grad():
            for weight in model.mechanism.parameters():
                weight.add_(0.2 * torch.randn_like(weight))
        return model.eval()


def check_mechanism(
    config: MechanismConfig, only: Iterable[str] | None = None, base: Callable[[], Any] | None = None
) -> None:
    """Run the contract suite on one config. A small window, such as 16 tokens, takes a few seconds.

    Args:
        config: The mechanism with the settings to check, without dropout. Choose an overlap, or settings that allow
            one.
        only: Names of `CHECKS`; None runs all of them.
        base: Returns a new tiny model to add the mechanism to, without dropout, with 60 token ids (1 is padding) and at
            least four windows of positions. By default GPT-2, or Llama for mechanisms that need rotary positions; and
            BERT, unless the mechanism is for decoders only.

    Raises:
        AssertionError: The mechanism does not meet the contract.
        UserError: The mechanism cannot be added to the base.
    """
    cases = [Case(config, one) for one in ([base] if base is not None else _default_bases(config))]
    for case in cases:
        case.recurrent()
    for name in CHECKS if only is None else only:
        try:
            for case in cases:
                CHECKS[name](case)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            raise AssertionError(f"{type(config).__name__}, check {name!r}: {reason}") from error


# ---- models and texts ---------------------------------------------------------------------------------------------


def _default_bases(config: MechanismConfig) -> list[Callable[[], Any]]:
    kinds = ["llama" if config.positions == "rotary" else "gpt2", *([] if config.decoders_only else ["bert"])]
    return [partial(_tiny_base, kind, 4 * config.window) for kind in kinds]


def _tiny_base(kind: str, positions: int) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": positions,
        "pad_token_id": PAD,
    }
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    base: Any
    if kind == "bert":
        base = BertForMaskedLM(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    elif kind == "llama":
        base = LlamaForCausalLM(LlamaConfig(**sizes, **ends, num_key_value_heads=1, tie_word_embeddings=True))
    else:
        no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        names = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": positions}
        base = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **names, **no_dropout, **ends))
    with torch.no_grad():  # larger weights than usual, so that every input has a visible effect
        for weight in base.parameters():
            weight.add_(torch.randn_like(weight) * (0.15 if weight.ndim > 1 else 0.1))
    return base


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_WORD, VOCABULARY, (rows, length), generator=generator)


def close(ours: Tensor | None, theirs: Tensor | None, what: str, tolerance: float = TOLERANCE) -> None:
    assert (ours is None) == (theirs is None), f"{what}: one of the two is None"
    if ours is not None and theirs is not None:
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}", check_dtype=False
        )


def same_state(ours: State, theirs: State, what: str) -> None:
    assert ours.live.tolist() == theirs.live.tolist(), f"{what}: other rows have a memory"
    assert ours.lengths.tolist() == theirs.lengths.tolist(), f"{what}: other open windows"
    if ours.live.any():
        assert ours.memory is not None
        assert theirs.memory is not None
        close(ours.memory[ours.live], theirs.memory[theirs.live], f"{what}: the memory differs")


def train_step(model: Any, ids: Tensor, **inputs: Any) -> tuple[Tensor, dict[str, Tensor | None], State]:
    model.zero_grad()
    output = model.train()(ids, labels=ids, **inputs)
    output.loss.backward()
    return output.loss.detach(), {name: value.grad for name, value in model.named_parameters()}, output.state


# ---- the contract --------------------------------------------------------------------------------------------------


@torch.no_grad()
def check_memory(case: Case) -> None:
    """The memory has the size that the mechanism says, also where it is read, and it changes the next window."""
    model, ids = case.recurrent(), text(2, case.config.window)
    state = model(ids).state
    assert state.memory is not None, "a full window left no memory"
    numbers = state.memory[0].numel()
    assert numbers == model.mechanism.state_size(), f"state_size() is not the memory's size, {numbers}"
    for layer, found in _counts_read(model.mechanism, state.memory).items():
        said = model.mechanism.slots().get(layer, 0)
        assert found == said, f"slots() says {said} for layer {layer}, but {found} are read there"
    later, changed = text(2, 5, seed=1), text(2, case.config.window, seed=2)
    changed[:, case.config.stride :] = ids[:, case.config.stride :]  # what the next window sees itself
    other = model(changed).state
    assert model(ids[:, :-1]).state.memory is None, "a window that is not full left a memory"
    change = (model(later, state=state).logits - model(later, state=other).logits).abs().max()
    assert change > 1e-8, "the next window does not depend on the memory"


def _counts_read(mechanism: Any, memory: Tensor) -> dict[int, int]:
    """{layer: count}: how many extra inputs, or kept keys, a memory really gives."""
    if isinstance(mechanism, SlotMechanism):
        return {layer: inputs.shape[1] for layer, inputs in mechanism.read(memory).items()}
    if isinstance(mechanism, CacheMechanism):
        _, layers, _, _, count, _ = mechanism.kept(memory).shape
        return dict.fromkeys(range(layers), count)
    return {}


@torch.no_grad()
def check_calls(case: Case) -> None:
    """Text in several calls gives the same as in one: of a decoder at any split, of an encoder at window borders."""
    window, stride = case.config.window, case.config.stride
    length = 2 * window + stride // 2 + 1
    model, ids = case.recurrent(), text(2, length)
    whole = model(ids)
    borders, anywhere = [[window], [window, window + stride]], [[1], [window - 1, window + 1], [*range(0, length, 3)]]
    for splits in anywhere if model.family.causal else borders:
        state, logits = None, []
        edges = sorted({0, *(split for split in splits if split < length), length})
        for start, stop in pairwise(edges):
            output = model(ids[:, start:stop], state=state)
            state = output.state
            logits.append(output.logits)
        what = f"calls that are split at {splits[:3]}"
        close(torch.cat(logits, 1), whole.logits, what)
        assert state is not None
        same_state(state, whole.state, what)


@torch.no_grad()
def check_batches(case: Case) -> None:
    """Rows of a padded batch give the same as each row alone, also in training, and if only some have a memory."""
    window = case.config.window
    for training in (False, True):
        model, state = case.recurrent().train(training), None
        for seed, lengths in enumerate(((2 * window + 5, window // 2, window), (window // 2, window + 1, 3))):
            for right in (False, True):
                state = _check_rows(model, lengths, seed, right, state if seed else None)


def _check_rows(model: Any, lengths: tuple[int, ...], seed: int, right: bool, state: State | None) -> State:
    width = max(lengths) + 1
    ids, mask = torch.full((len(lengths), width), PAD), torch.zeros(len(lengths), width, dtype=torch.long)
    rows = [text(1, length, seed=10 * seed + row) for row, length in enumerate(lengths)]
    for row, tokens in enumerate(rows):
        span = slice(0, tokens.shape[1]) if right else slice(width - tokens.shape[1], width)
        ids[row, span], mask[row, span] = tokens[0], 1
    output = model(ids, attention_mask=mask, state=state)
    for row, tokens in enumerate(rows):
        alone = model(tokens, state=None if state is None else state.select([row]))
        what = f"row {row} of a batch padded on the {'right' if right else 'left'}{', in training' * model.training}"
        close(output.logits[row][mask[row].bool()], alone.logits[0], what)
        same_state(output.state.select([row]), alone.state, what)
    return output.state


@torch.no_grad()
def check_reset(case: Case) -> None:
    """A row that is reset begins a new document; the other row continues."""
    model = case.recurrent()
    state, after = model(text(2, case.config.window + 1)).state, text(2, case.config.window + 3, seed=1)
    mixed, continued, fresh = (model(after, state=one) for one in (state.reset([1]), state, None))
    for row, expected, what in ((0, continued, "the row that was not reset"), (1, fresh, "the row that was reset")):
        close(mixed.logits[row], expected.logits[row], what)
        same_state(mixed.state.select([row]), expected.state.select([row]), what)


@torch.no_grad()
def check_overlap(case: Case) -> None:
    """The memory of a decoder's window does not depend on positions that the next window sees again."""
    config, overlap = case.config, case.config.overlap or max(1, case.config.window // 4)
    try:
        model = case.recurrent(overlap=overlap)
    except UserError:
        return  # these settings leave no overlap
    if config.writes_overlap or not model.family.causal:
        return
    ids = text(2, config.window)
    changed = ids.clone()
    changed[:, config.window - overlap :] = text(2, overlap, seed=1)
    close(
        model(changed).state.memory,
        model(ids).state.memory,
        "the memory depends on tokens behind `stride`, which the next window sees again (or set writes_overlap)",
        tolerance=1e-9,
    )


@torch.no_grad()
def check_resize(case: Case) -> None:
    """A model after `set_recurrence` gives the same as one that is built with those settings and the same weights."""
    window = case.config.window
    for name, value in (("window", 2 * window), ("overlap", 0 if case.config.overlap else window // 4)):
        model = case.recurrent()
        try:
            model.set_recurrence(**{name: value})
        except UserError:
            continue
        built = Case(model.recurrence, case.base).recurrent()
        built.load_state_dict(model.state_dict())
        ids, what = text(2, 2 * model.recurrence.window + 3), f"a model after set_recurrence({name}={value})"
        ours, theirs = model(ids), built(ids)
        close(ours.logits, theirs.logits, what)
        same_state(ours.state, theirs.state, what)


def check_gradients(case: Case) -> None:
    """Every added parameter is registered, and its gradient is not zero."""
    model = case.recurrent()
    added = model.added_parameters()
    assert bool(added) == case.config.learns, (
        f"learns={case.config.learns}, but there are {len(added)} added parameters"
    )
    _, gradients, _ = train_step(model, text(2, 3 * case.config.window))
    for name in added:
        gradient = gradients[name]
        assert gradient is not None, f"{name} has no gradient"
        assert gradient.isfinite().all(), f"the gradient of {name} is not finite"
        assert gradient.abs().max() > 0, f"the gradient of {name} is zero"


def check_horizon(case: Case) -> None:
    """Gradients reach earlier windows by all paths through the memory, and with bptt_windows=1 by none."""
    step, small = torch.zeros((), dtype=torch.double, requires_grad=True), 1e-3  # Llama's norms are in float32
    for horizon in (1, None):
        model = case.recurrent(overlap=0, bptt_windows=horizon, checkpoint=False).train()
        (gradient,) = torch.autograd.grad(_later_loss(model, step), step, allow_unused=True)
        reached = gradient is not None and bool(gradient)
        assert reached == (horizon is None), (
            "no gradient goes through the memory" if horizon is None else "bptt_windows=1 does not cut gradients"
        )
    with torch.no_grad():
        change = (_later_loss(model, step + small) - _later_loss(model, step - small)) / (2 * small)
    assert (gradient - change).abs() < 0.01 * change.abs() + 2e-5, (
        f"a part of the memory has no gradient: it is {gradient:g}, and by finite differences {change:g}"
    )


def _later_loss(model: Any, step: Tensor) -> Tensor:
    """The loss in the second and third window, with the first one's inputs moved by `step` in some direction."""
    window, calls = model.recurrence.window, count()
    ids = text(1, 3 * window)
    labels = ids.clone()
    labels[:, : window + 1] = -100

    def move(module: Any, given: Any, inputs: Tensor) -> Tensor:
        return inputs if next(calls) else inputs + step * inputs.roll(1, dims=-1)

    with model.get_input_embeddings().register_forward_hook(move):
        loss: Tensor = model(ids, labels=labels).loss
    return loss


def check_checkpoint(case: Case) -> None:
    """A checkpointed training step gives the same loss, gradients, memory and buffers as a plain one."""
    found, buffers = [], []
    for checkpoint in (False, True):
        model = case.recurrent(checkpoint=checkpoint)
        torch.manual_seed(5)
        found.append(train_step(model, text(2, 2 * case.config.window + 3)))
        buffers.append(dict(model.named_buffers()))
    (loss, gradients, state), (ours, our_gradients, our_state) = found
    close(ours, loss, "the loss of a checkpointed step")
    for name, gradient in gradients.items():
        close(our_gradients[name], gradient, f"the checkpointed gradient of {name}")
    same_state(our_state.detach(), state.detach(), "a checkpointed step")
    for name, value in buffers[0].items():
        close(buffers[1][name], value, f"the buffer {name} after a checkpointed step")


def check_parallel(case: Case) -> None:
    """Windows read in parallel give the same losses, gradients and memory as one at a time, also in rows that end
    earlier."""
    model = case.recurrent()
    if not (model.mechanism.in_parallel and model.family.causal):
        return
    window = case.config.window
    ids, mask = text(3, 5 * window + 3), torch.ones(3, 5 * window + 3, dtype=torch.long)
    mask[1, 3 * window :], mask[2, window // 2 :] = 0, 0
    default = model.tokens_at_once
    for given in ({}, {"attention_mask": mask}):
        found = []
        for most in (0, 3 * 3 * window, default):
            model.tokens_at_once = most
            found.append(train_step(model, ids, **given))
        (loss, gradients, state), *others = found
        for ours, our_gradients, our_state in others:
            close(ours, loss, "the loss of windows in parallel")
            for name, gradient in gradients.items():
                close(our_gradients[name], gradient, f"the gradient of {name} of windows in parallel")
            same_state(our_state.detach(), state.detach(), "windows in parallel")


def check_dtypes(case: Case) -> None:
    """A model in bfloat16, added weights in float32 on a bfloat16 base, and autocast all work."""
    ids = text(2, case.config.window + 3)
    model = case.recurrent()
    expected = model.float()(ids).logits.detach()
    for how in ("bfloat16", "float32 on bfloat16", "autocast") if model.family.causal else ("float32 on bfloat16",):
        model = case.recurrent().to(torch.float32 if how == "autocast" else torch.bfloat16)
        if how == "float32 on bfloat16":
            model.mechanism.float()
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
                _check_precision(model, ids, expected)
        except Exception as error:
            raise AssertionError(f"{how}: {error} (cast what you record to the type of your weights)") from error


def _check_precision(model: Any, ids: Tensor, expected: Tensor) -> None:
    output = model(ids)
    assert (output.logits.float() - expected).abs().mean() < 0.1 * expected.abs().mean(), "the logits are far off"
    loss, gradients, _ = train_step(model, ids, state=output.state.detach().reset([1]))
    if model.can_generate():  # across the end of a window
        prompt = ids[:, : model.recurrence.window - 1]
        model.eval().generate(prompt, max_new_tokens=3, eos_token_id=None, pad_token_id=PAD)
    assert loss.isfinite(), "the loss is not finite"
    bad = [name for name, one in gradients.items() if one is not None and not one.isfinite().all()]
    assert not bad, f"gradients that are not finite: {bad}"


@torch.no_grad()
def check_devices(case: Case) -> None:
    """What the mechanism creates is on the device of what it gets: here, the default device is another one."""
    model, window = case.recurrent(), case.config.window
    for name in ("open", "write"):
        setattr(model.mechanism, name, _elsewhere(getattr(model.mechanism, name)))
    ids, mask = text(2, 4 * window + 3), torch.ones(2, 4 * window + 3, dtype=torch.long)
    mask[1, : window + 3] = 0  # this row has no memory in the second window
    try:
        output = model(ids, attention_mask=mask)
        assert output.logits.device == output.state.memory.device == ids.device, "the result has moved"
        if model.can_generate():
            model.generate(ids[:, : window + 1], max_new_tokens=3, eos_token_id=None, pad_token_id=PAD)
    except Exception as error:
        raise AssertionError(f"a tensor is created without `device=` ({error})") from error


def _elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        with torch.device("meta"):
            return function(*args, **named)

    return run


@torch.no_grad()
def check_generate(case: Case) -> None:
    """`generate` writes what a loop over whole forward passes writes, across several windows."""
    model, new = case.recurrent(), 2 * case.config.window + 3
    if not model.can_generate():
        return
    ids = text(2, 5)
    found = model.generate(
        ids, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=PAD, suppress_tokens=[PAD]
    )
    logits = model(found).logits[:, 4:-1]
    logits[..., PAD] = -torch.inf
    best = logits.max(-1).values
    chosen = logits.gather(-1, found[:, 5:, None])[..., 0]
    close(chosen, best, "a generated token is not the most likely one of a whole forward pass")


@torch.no_grad()
def check_saving(case: Case) -> None:
    """A saved model, and saved added weights on their base, load with the same config and give the same."""
    model, ids = case.recurrent(), text(2, 2 * case.config.window + 3)
    expected = model(ids)
    with tempfile.TemporaryDirectory() as folder:
        model.base.save_pretrained(Path(folder, "base"))
        model.config.base_name_or_path = str(Path(folder, "base"))
        for added_only in (False, True) if case.config.learns else (False,):
            model.save_pretrained(Path(folder, "model"), added_only=added_only)
            loaded = type(model).from_pretrained(Path(folder, "model"), dtype=torch.double)
            assert loaded.recurrence == model.recurrence, f"the config after loading is {loaded.recurrence}"
            output = loaded(ids)
            close(output.logits, expected.logits, "the loaded model")
            same_state(output.state, expected.state, "the loaded model")


CHECKS: dict[str, Callable[[Case], None]] = {
    "memory": check_memory,
    "calls": check_calls,
    "batches": check_batches,
    "reset": check_reset,
    "overlap": check_overlap,
    "resize": check_resize,
    "gradients": check_gradients,
    "horizon": check_horizon,
    "checkpoint": check_checkpoint,
    "parallel": check_parallel,
    "dtypes": check_dtypes,
    "devices": check_devices,
    "generate": check_generate,
    "saving": check_saving,
}
"""The contract, one function each."""
