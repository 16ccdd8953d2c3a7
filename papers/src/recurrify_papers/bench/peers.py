"""Other packages on the same task, where they are installed; none of them is required.

Each has our width, heads, window and tokens, and as many layers as bring the size of its layers nearest to ours. It is
trained by its own wrapper.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import set_seed

from recurrify.console import say
from recurrify.speed import with_cudnn
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.models import Recurrent, Stepper, random_tokens
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import Entrant, Row, interleave, ratio

BATCH = 4


class Peer(NamedTuple):
    package: str
    build: Callable[[Any, Size, int], nn.Module]
    """From the imported module, the size and the number of layers; called with ids, it returns a loss."""
    least_layers: int = 1

    @property
    def module(self) -> str:
        return self.package.replace("-", "_")


def _memory_transformer(library: Any, size: Size, layers: int) -> nn.Module:
    model = library.RecurrentMemoryTransformer(
        size.width,
        num_tokens=size.vocabulary,
        depth=layers,
        num_memory_tokens=16,
        seq_len=size.window,
        heads=size.heads,
        dim_head=size.width // size.heads,
        use_flash_attn=torch.cuda.is_available(),
    )
    return _LossOnly(library.RecurrentMemoryTransformerWrapper(model))


class _LossOnly(nn.Module):
    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, ids: Tensor) -> Any:
        found = self.wrapped(ids, return_loss=True)
        return found[0] if isinstance(found, tuple) else found


def _block_recurrent(library: Any, size: Size, layers: int) -> Any:
    model = library.BlockRecurrentTransformer(
        num_tokens=size.vocabulary,
        dim=size.width,
        depth=layers,
        heads=size.heads,
        dim_head=size.width // size.heads,
        max_seq_len=size.window,
        block_width=size.window,
        use_flash_attn=torch.cuda.is_available(),
    )
    return library.RecurrentTrainerWrapper(model)


def _x_transformers(library: Any, size: Size, layers: int) -> Any:
    heads = {"attn_dim_head": size.width // size.heads, "attn_flash": torch.cuda.is_available()}
    decoder = library.Decoder(dim=size.width, depth=layers, heads=size.heads, rotary_pos_emb=True, **heads)
    model = library.TransformerWrapper(
        num_tokens=size.vocabulary, max_seq_len=size.window, max_mem_len=size.window, attn_layers=decoder
    )
    return library.XLAutoregressiveWrapper(model)


PEERS = (
    Peer("recurrent-memory-transformer-pytorch", _memory_transformer),
    Peer("block-recurrent-transformer-pytorch", _block_recurrent, 2),
    Peer("x-transformers", _x_transformers),
)


class PeerStepper(Stepper):
    """A package's own training wrapper, which cuts the sequence into windows and needs one token more."""

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        with with_cudnn():
            loss: Tensor = self.model(torch.cat([ids, ids[:, :1]], dim=1))
        return loss


def measure_peers(bench: Bench) -> Iterator[Row]:
    """Uncompiled, with the defaults of each package."""
    installed = [peer for peer in PEERS if find_spec(peer.module) is not None]
    missing = [peer.package for peer in PEERS if peer not in installed]
    if missing:
        say(f"not installed, not measured: {', '.join(missing)} (pip install {' '.join(missing)})")
    if not installed:
        return
    size, device = bench.size, bench.device
    ids = random_tokens(size, BATCH, size.windows * size.window, device)
    carry = Recurrent(size, "carry", device)
    steppers: list[Stepper] = [carry]
    steppers += [_stepper(peer, size, device, layer_weights(carry.recurrent.base)) for peer in installed]
    entrants = [Entrant(one.name, partial(one.step, ids, BATCH)) for one in steppers]
    timings = interleave(entrants, size.rounds, device)
    rows = [
        {
            "model": one.name,
            "layer_weights": layer_weights(one.recurrent.base if isinstance(one, Recurrent) else one.model),
            "tokens_per_second": timing.rate(ids.numel()),
            **vars(timing),
        }
        for one, timing in zip(steppers, timings, strict=True)
    ]
    ratios = [one for row in rows[1:] for one in ratio(f"carry / {row['model']}", rows[0]["seconds"], row["seconds"])]
    yield {"rows": rows, "ratios": ratios, "checks": []}


def _stepper(peer: Peer, size: Size, device: torch.device, target: int) -> Stepper:
    set_seed(0)
    build = partial(peer.build, import_module(peer.module), size)
    few, more = (layer_weights(build(peer.least_layers + extra)) for extra in (0, 1))
    layers = max(peer.least_layers, peer.least_layers + round((target - few) / (more - few)))
    return PeerStepper(peer.package, build(layers).to(device), device, 0.0)


def layer_weights(model: nn.Module) -> int:
    """Weights of matrices that are neither an embedding nor an output over the vocabulary."""
    tables = [one for one in model.modules() if isinstance(one, nn.Embedding)]
    vocabulary = max(one.num_embeddings for one in tables)
    outputs = [one for one in model.modules() if isinstance(one, nn.Linear) and one.out_features == vocabulary]
    outside = {id(one.weight) for one in (*tables, *outputs)}
    return sum(value.numel() for value in model.parameters() if id(value) not in outside and value.ndim >= 2)
