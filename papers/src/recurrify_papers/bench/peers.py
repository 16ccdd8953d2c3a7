"""The field's own packages on the same task, where they are installed; none of them is ever required.

Each is built with as many layers as bring its weights, embeddings and output left out, nearest to ours, with our
width, heads, window and tokens, and trained by its own training wrapper.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import set_seed

from recurrify.speed.backends import with_cudnn
from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.models import random_tokens
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.stepping import Ours, Stepper
from recurrify_papers.bench.timing import Entrant, Row, Timed, ratio, still_missing

BATCH = 4
MEMORY_TOKENS = 16
NOT_INSTALLED = "not installed"


class Peer(NamedTuple):
    """A package and how its model is made and asked for a loss."""

    package: str
    module: str
    build: Callable[[Size, int], nn.Module]
    """From the size and the number of layers."""
    least_layers: int = 1


def _memory_transformer(size: Size, layers: int) -> nn.Module:
    library = import_module("recurrent_memory_transformer_pytorch")
    model = library.RecurrentMemoryTransformer(
        size.width,
        num_tokens=size.vocabulary,
        depth=layers,
        num_memory_tokens=MEMORY_TOKENS,
        seq_len=size.window,
        heads=size.heads,
        dim_head=size.width // size.heads,
        use_flash_attn=torch.cuda.is_available(),
    )
    return _AskingForLoss(library.RecurrentMemoryTransformerWrapper(model))


class _AskingForLoss(nn.Module):
    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, ids: Tensor) -> Any:
        found = self.wrapped(ids, return_loss=True)
        return found[0] if isinstance(found, tuple) else found


def _block_recurrent(size: Size, layers: int) -> nn.Module:
    library = import_module("block_recurrent_transformer_pytorch")
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
    wrapped: nn.Module = library.RecurrentTrainerWrapper(model)
    return wrapped


def _x_transformers(size: Size, layers: int) -> nn.Module:
    library = import_module("x_transformers")
    heads = {"attn_dim_head": size.width // size.heads, "attn_flash": torch.cuda.is_available()}
    decoder = library.Decoder(dim=size.width, depth=layers, heads=size.heads, rotary_pos_emb=True, **heads)
    model = library.TransformerWrapper(
        num_tokens=size.vocabulary, max_seq_len=size.window, max_mem_len=size.window, attn_layers=decoder
    )
    wrapped: nn.Module = library.XLAutoregressiveWrapper(model)
    return wrapped


PEERS = (
    Peer("recurrent-memory-transformer-pytorch", "recurrent_memory_transformer_pytorch", _memory_transformer),
    Peer("block-recurrent-transformer-pytorch", "block_recurrent_transformer_pytorch", _block_recurrent, 2),
    Peer("x-transformers", "x_transformers", _x_transformers),
)


class PeerStepper(Stepper):
    """A peer's own wrapper, which cuts the sequence into windows itself and wants one token more."""

    def __init__(self, peer: Peer, model: nn.Module, device: torch.device) -> None:
        super().__init__(peer.package, model.to(device), device, 0.0)

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        with with_cudnn():  # torch's default
            loss: Tensor = self.model(torch.cat([ids, ids[:, :1]], dim=1))
        return loss


def covers_installed(earlier: dict[str, Any]) -> bool:
    """Whether all are there, but for those that are still not installed."""
    absent = {row["name"] for row in earlier.get("rows") or [] if row.get("trouble") == NOT_INSTALLED}
    new = [peer for peer in PEERS if peer.package in absent and find_spec(peer.module) is not None]
    return bool(earlier.get("finished")) and not new


def measure_peers(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """All in turns; whole rounds of an `earlier` run are not repeated."""
    size, device = bench.size, bench.device
    ids = random_tokens(size, BATCH, size.windows * size.window, device)
    ours = {kind: Ours(size, kind, device) for kind in ("carry", "tail")}
    target = body_weights(ours["carry"].recurrent.base)
    missing = [peer for peer in PEERS if find_spec(peer.module) is None]
    absent: list[Row] = [
        {"name": peer.package, "trouble": NOT_INSTALLED, "seconds": [], "tokens_per_second": None} for peer in missing
    ]
    if missing:
        names = " ".join(peer.package for peer in missing)
        bench.say(f"not installed, so not measured: {names}; to compare with them: pip install {names}")
    steppers: list[tuple[Stepper, int]] = [(one, size.layers) for one in ours.values()]
    for peer in PEERS:
        if peer not in missing:
            steppers.append(_built(peer, size, device, target))
    entrants = [_entrant(one, ids) for one, _ in steppers]
    # Who was not installed then may be now.
    rows_before = [row for row in (earlier or {}).get("rows") or [] if row["trouble"] != NOT_INSTALLED]
    before = {row["name"]: row for row in rows_before}

    def result(found: list[Timed]) -> dict[str, Any]:
        rows = [_row(*pair, timed, ids.numel()) for pair, timed in zip(steppers, found, strict=True)]
        by = {row["name"]: row["seconds"] for row in absent + rows}
        ratios = [ratio(f"{kind} / {peer.package}", by[kind], by[peer.package]) for kind in ours for peer in PEERS]
        return {
            "rows": absent + rows,
            "ratios": [one for one in ratios if one is not None],
            "checks": [],
            "missing": still_missing([one.kind for one, _ in steppers], found, size.rounds),
        }

    with bench.bar("peers", bench.turns_of(len(entrants))) as advance:
        left = [before.get(one.kind) for one, _ in steppers]
        found = bench.turns(advance).take(entrants, left, lambda some: bench.keep(result(some)))
    return result(found)


def _row(stepper: Stepper, layers: int, timed: Timed, tokens: int) -> Row:
    return {
        "name": stepper.kind,
        "layers": layers,
        "body_weights": body_weights(getattr(stepper, "recurrent", None) or stepper.model),
        "weights": sum(value.numel() for value in stepper.model.parameters()),
        "batch": BATCH,
        "tokens_per_second": timed.rate(tokens),
        **vars(timed),
    }


def _built(peer: Peer, size: Size, device: torch.device, target: int) -> tuple[Stepper, int]:
    set_seed(0)
    few, more = (body_weights(peer.build(size, peer.least_layers + extra)) for extra in (0, 1))
    layers = max(peer.least_layers, peer.least_layers + round((target - few) / (more - few)))
    return PeerStepper(peer, peer.build(size, layers), device), layers


def body_weights(model: nn.Module) -> int:
    """Weights of matrices that are neither an embedding nor an output over the vocabulary."""
    tables = [one for one in model.modules() if isinstance(one, nn.Embedding)]
    vocabulary = max(one.num_embeddings for one in tables)
    outputs = [one for one in model.modules() if isinstance(one, nn.Linear) and one.out_features == vocabulary]
    outside = {id(one.weight) for one in (*tables, *outputs)}
    return sum(value.numel() for value in model.parameters() if id(value) not in outside and value.ndim >= 2)


def _entrant(stepper: Stepper, ids: Tensor) -> Entrant:
    """As each comes out of the box: nobody is compiled."""

    def wake() -> None:
        if isinstance(stepper, Ours):
            stepper.prepare("eager", False, len(ids))

    return Entrant(stepper.kind, lambda: stepper.step(ids, len(ids)), wake, stepper.rest, stepper.own_bytes)
