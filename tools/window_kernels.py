"""Milliseconds of the products and of the attention of one layer in a training window, by the way they are computed.

    python tools/window_kernels.py --out papers/results/window-kernels.json

64 rows of 300 tokens in bf16, forward and backward pass, as CUDA graphs: linear layers of the same input apart and as
one product, by each BLAS library of torch; attention of a window, and of a window behind kept keys by each kernel,
with the relative difference of its results from float32. `--smoke` runs everything once on a CPU, small and untimed.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing import in_a_graph, in_short
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from recurrify.results import provenance, save_result
from recurrify.speed.backends import attend_to_earlier, with_padded_queries


class Shape(NamedTuple):
    width: int
    heads: int
    kv_heads: int
    inner: int | None
    kept: int


SHAPES = {"smollm2": Shape(576, 9, 3, 1536, 260), "gpt2": Shape(768, 12, 12, None, 257)}
HEAD = 64
Row = dict[str, Any]


def products(shape: Shape, tokens: int, device: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Forward and backward pass of layers that read the same input."""
    groups = {"q, k, v": (shape.heads * HEAD, shape.kv_heads * HEAD, shape.kv_heads * HEAD)}
    if shape.inner is not None:
        groups["gate, up"] = (shape.inner, shape.inner)
    source = torch.randn(tokens, shape.width, device=device, dtype=dtype, requires_grad=True)
    for name, sizes in groups.items():
        weights = [torch.randn(one, shape.width, device=device, dtype=dtype, requires_grad=True) for one in sizes]
        outgoing = [torch.randn(tokens, one, device=device, dtype=dtype) for one in sizes]
        together = torch.cat(outgoing, dim=1)

        def apart(weights: list[Tensor] = weights, outgoing: list[Tensor] = outgoing) -> Any:
            return torch.autograd.grad(
                [functional.linear(source, one) for one in weights], [source, *weights], outgoing
            )

        def joined(weights: list[Tensor] = weights, together: Tensor = together) -> Any:
            return torch.autograd.grad(functional.linear(source, torch.cat(weights)), [source, *weights], together)

        yield f"{name}: apart", apart
        yield f"{name}: joined", joined


def attention(shape: Shape, rows: int, window: int, device: str, dtype: torch.dtype) -> Iterator[tuple[str, Any]]:
    """Forward passes of attention, with their inputs."""
    generator = torch.Generator(device).manual_seed(0)

    def random(heads: int, length: int) -> Tensor:
        return torch.randn(rows, heads, length, HEAD, device=device, generator=generator).to(dtype).requires_grad_()

    query = random(shape.heads, window)
    own, kept = ([random(shape.kv_heads, length) for _ in range(2)] for length in (window, window + shape.kept))
    shared = shape.kv_heads < shape.heads

    def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=shared)

    def earlier(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_to_earlier(query, key, value, HEAD**-0.5, 0.0)

    def expanded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return earlier(query, *(one.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for one in (key, value)))

    def padded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with with_padded_queries():
            return earlier(query, key, value)

    backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION) if device == "cuda" else (SDPBackend.MATH,)
    for backend in backends:
        yield f"own keys: {backend.name}", (causal, [query, *own], backend)
        yield f"kept keys, padded queries: {backend.name}", (padded, [query, *kept], backend)
    yield "kept keys: flash", (earlier, [query, *kept], None)
    if shared:
        yield "kept keys: flash, heads repeated", (expanded, [query, *kept], None)


def exact(inputs: list[Tensor], outgoing: Tensor) -> list[Tensor]:
    """The result and gradients in float32."""
    query, key, value = (one.detach().float().requires_grad_() for one in inputs)
    allowed = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    allowed = allowed.tril(key.shape[2] - query.shape[2])
    shared = key.shape[1] < query.shape[1]
    with sdpa_kernel(SDPBackend.MATH):
        out = functional.scaled_dot_product_attention(query, key, value, allowed, enable_gqa=shared)
    return [out.detach(), *torch.autograd.grad(out, (query, key, value), outgoing.float())]


def attend(call: Any, inputs: list[Tensor], backend: Any, outgoing: Tensor) -> list[Tensor]:
    if backend is None:
        out = call(*inputs)
    else:
        with sdpa_kernel(backend):
            out = call(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, outgoing)]


def timed(step: Callable[[], Any], smoke: bool) -> float:
    if smoke:
        step()
        return 0.0
    return in_a_graph(step, calls=5)


def measure(smoke: bool) -> Iterator[Row]:
    device, dtype = ("cpu", torch.float32) if smoke else ("cuda", torch.bfloat16)
    rows, window = (2, 12) if smoke else (64, 300)
    for name, shape in SHAPES.items():
        blas = ("default",) if smoke else ("cublas", "cublaslt")
        for library in blas:
            if not smoke:
                torch.backends.cuda.preferred_blas_library(library)
            for what, step in products(shape, rows * window, device, dtype):
                yield {"shape": name, "what": f"{what} ({library})", "milliseconds": timed(step, smoke)}
        if not smoke:
            torch.backends.cuda.preferred_blas_library("default")
        for what, (call, inputs, backend) in attention(shape, rows, window, device, dtype):
            row: Row = {"shape": name, "what": what}
            outgoing = torch.randn_like(inputs[0])
            try:
                found, wanted = attend(call, inputs, backend, outgoing), exact(inputs, outgoing)
                row["relative_differences"] = [
                    float((one.float() - two).norm() / two.norm()) for one, two in zip(found, wanted, strict=True)
                ]
                row["milliseconds"] = timed(
                    lambda call=call, inputs=inputs, backend=backend, outgoing=outgoing: attend(
                        call, inputs, backend, outgoing
                    ),
                    smoke,
                )
            except Exception as error:  # one kernel that fails must not hide the others
                row["failed"] = in_short(error)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--smoke", action="store_true", help="Small sizes on a CPU, without times.")
    arguments = parser.parse_args()
    started, measured = time.time(), []
    for row in measure(arguments.smoke):
        print(*row.values(), flush=True)
        measured.append(row)
    settings = {"shapes": {name: shape._asdict() for name, shape in SHAPES.items()}, "torch": torch.__version__}
    result = {"kind": "window-kernels", "result": measured, "provenance": provenance(settings, seed=0, started=started)}
    save_result(arguments.out, result)


if __name__ == "__main__":
    main()
