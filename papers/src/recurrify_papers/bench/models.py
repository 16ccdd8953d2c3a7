"""The models that are measured, and how a training step of each runs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, set_seed

from recurrify import RecurrentForCausalLM, add_recurrence
from recurrify.evaluate import full_flops_per_token
from recurrify.modeling import recurrence_config
from recurrify.speed import Choices, compile_windows, graph_steps, quick_products, with_cudnn
from recurrify_papers.bench.sizes import Size, shape_settings
from recurrify_papers.bench.timing import NotMeasuredError

IGNORE = -100
MODES = ("eager", "compiled", "graphs")
GRAPHS = {
    "graphs": Choices(),
    "graphs-separate": Choices(joined=False),
    "graphs-layers": Choices(by_layer=True),
    "graphs-padded": Choices(padded=True),
    "graphs-layers-padded": Choices(by_layer=True, padded=True),
}
"""Modes that capture steps, by how their windows are compiled; the first is measured by default."""
KNOWN_MODES = (*MODES, *(mode for mode in GRAPHS if mode not in MODES))
PASSES_BEFORE_GRAPHS = 4
"""Passes of one shape after which a captured model replays it."""
BACKWARD = 2
"""A backward pass takes two matrix products for each one of the forward pass."""


def base_model(size: Size, device: torch.device, positions: int | None = None) -> Any:
    """The unmodified transformers model of this shape."""
    set_seed(0)
    settings = shape_settings(size)
    if size.family == "llama":
        return LlamaForCausalLM(LlamaConfig(**settings)).to(device)
    if positions is not None:
        settings["n_positions"] = positions
    return GPT2LMHeadModel(GPT2Config(**settings)).to(device)


def memories(size: Size) -> dict[str, dict[str, Any]]:
    """The mechanisms that can be measured at this shape, by the name on the command line."""
    found: dict[str, dict[str, Any]] = {
        "plain": {"mechanism": "none"},
        "carry": {"mechanism": "carry"},
        "tail": {"mechanism": "tail", "tail": size.keep // 4, "pooled_slots": 1},
    }
    kept = "kv" if size.family == "llama" else "lookback"
    fewer: dict[str, Any] = {"mechanism": kept, "keep": size.keep // 4}
    if kept == "kv":
        found["far"] = {"mechanism": "far", "keep": size.keep}
    return {**found, f"{kept}-{size.keep // 4}": fewer, kept: {**fewer, "keep": size.keep}}


def recurrent_model(size: Size, memory: str, device: torch.device, **changes: Any) -> RecurrentForCausalLM:
    base = base_model(size, device)
    set_seed(1)
    config = recurrence_config({**memories(size)[memory], "window": size.window, **changes})
    model: RecurrentForCausalLM = add_recurrence(base, config).to(device)
    return model


def random_tokens(size: Size, rows: int, length: int, device: torch.device | str = "cpu", seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, size.vocabulary, (rows, length), generator=generator).to(device)


def half(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU; a CPU computes in float32."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


class Stepper:
    """A model, its optimizer, and one way to compute its loss."""

    modes: tuple[str, ...] = ("eager", "compiled")
    passes = 1
    """Passes of one shape after which a step runs as it is timed."""

    def __init__(self, name: str, model: nn.Module, device: torch.device, flops_per_token: float) -> None:
        self.name, self.model, self.device = name, model.train(), device
        self.flops_per_token = (1 + BACKWARD) * flops_per_token
        """Of training. What checkpointing computes twice counts once."""
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def prepare(self, mode: str, checkpoint: bool, rows: int) -> None:
        """Choose how the next steps run, with at most `rows` rows at once."""

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        """Mean over all predictions; `inside_windows` leaves out the first token of each next window."""
        raise NotImplementedError

    def rows_of(self, ids: Tensor) -> Tensor:
        """The sequences as rows of a batch."""
        return ids

    def release(self) -> None:
        """Give back the memory of captured graphs."""

    def backward(self, rows: Tensor, share: float = 1.0, inside_windows: bool = False) -> Tensor:
        with half(self.device):
            loss = self.loss(rows, inside_windows)
        (loss * share).backward()
        return loss.detach()

    def step(self, ids: Tensor, rows: int) -> None:
        """One update, with `rows` rows at once."""
        self.optimizer.zero_grad(set_to_none=True)
        for part in self.rows_of(ids).split(rows):
            self.backward(part, part.numel() / ids.numel())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Transformers(Stepper):
    """The unmodified model: every window is a row of its own. With `length`, a window has that length."""

    def __init__(self, size: Size, device: torch.device, length: int | None = None) -> None:
        model = base_model(size, device, positions=length)
        self.window = length or size.window
        super().__init__("transformers", model, device, full_flops_per_token(model, self.window, 0))
        self.running: Any = model

    def prepare(self, mode: str, checkpoint: bool, rows: int) -> None:
        self.running = torch.compile(self.model, dynamic=False) if mode == "compiled" else self.model

    def rows_of(self, ids: Tensor) -> Tensor:
        return ids.reshape(-1, self.window)

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        with with_cudnn():  # torch's default choice of attention kernels
            loss: Tensor = self.running(ids, labels=ids, use_cache=False).loss
        return loss


class Recurrent(Stepper):
    """Plain windows or a memory, through recurrify."""

    def __init__(self, size: Size, memory: str, device: torch.device) -> None:
        self.recurrent = recurrent_model(size, memory, device)
        super().__init__(memory, self.recurrent, device, full_flops_per_token(self.recurrent))
        self.window, self.mode = size.window, "eager"
        if device.type == "cuda":
            self.modes = KNOWN_MODES

    def prepare(self, mode: str, checkpoint: bool, rows: int) -> None:
        self.mode = mode
        self.passes = PASSES_BEFORE_GRAPHS if mode in GRAPHS else 1
        self.recurrent.set_recurrence(checkpoint=checkpoint)
        self.recurrent.compiled_window = self.recurrent.graphed_steps = None
        if mode == "compiled":
            compile_windows(self.recurrent, rows)
        elif mode in GRAPHS:
            graph_steps(self.recurrent, rows, choices=GRAPHS[mode])

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        targets = ids.roll(-1, 1)
        if inside_windows:
            targets[:, self.window - 1 :: self.window] = IGNORE
        loss: Tensor = self.recurrent(ids, targets=targets, return_state=False).loss
        return loss

    def backward(self, rows: Tensor, share: float = 1.0, inside_windows: bool = False) -> Tensor:
        with quick_products():  # as `recurrify train` does
            return super().backward(rows, share, inside_windows)

    def release(self) -> None:
        self.recurrent.graphed_steps = None

    def capture(self, rows: Tensor) -> None:
        """Run until graphs are captured; the weights do not change."""
        if self.mode not in GRAPHS:
            return
        for _ in range(self.passes):
            self.backward(rows)
        self.optimizer.zero_grad(set_to_none=True)
        if not (self.recurrent.graphed_steps and self.recurrent.graphed_steps.steps):
            raise NotMeasuredError("not captured")


class NaiveLoop(Stepper):
    """The paper's carry without optimizations: all hidden states kept, pooled at the end, all logits at once."""

    modes = ("eager",)

    def __init__(self, size: Size, device: torch.device) -> None:
        twin = recurrent_model(size, "carry", device)
        self.window = size.window
        self.base: Any = base_model(size, device)
        assert twin.mechanism is not None
        self.mechanism: Any = twin.mechanism
        model = nn.ModuleDict({"base": self.base, "mechanism": twin.mechanism})
        super().__init__("naive loop", model, device, full_flops_per_token(twin))

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        body: Any = self.base.transformer
        receiver = self.mechanism.config.insert_layer - 1
        carried: Tensor | None = None
        logits = []
        for piece in ids.split(self.window, dim=1):
            hidden = body.wte(piece) + body.wpe(torch.arange(piece.shape[1], device=ids.device))
            outputs = []
            for number, block in enumerate(body.h):
                slots = 0
                if number == receiver and carried is not None:
                    hidden, slots = torch.cat([carried, hidden], dim=1), carried.shape[1]
                found = block(hidden)
                hidden = (found[0] if isinstance(found, tuple) else found)[:, slots:]
                outputs.append(hidden)
            logits.append(self.base.lm_head(body.ln_f(hidden)))
            weights = self.mechanism.layer_scores.softmax(0)[:, None, None, None]
            carried = self.mechanism.network((weights * torch.stack(outputs)).sum(0).mean(1))[:, None]
        return nn.functional.cross_entropy(torch.cat(logits, dim=1).flatten(0, 1).float(), ids.roll(-1, 1).flatten())
