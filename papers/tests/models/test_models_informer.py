"""Informer and RSA-Informer equal naive versions; mistakes of other implementations are tested."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify.attention import RecurrenceEncoding, RSAConfig, rem_matrix
from recurrify.errors import UserError
from recurrify_papers.models.informer import (
    Embedding,
    Informer,
    InformerConfig,
    SelfAttention,
    add_recurrence,
    position_waves,
)
from recurrify_papers.models.prob_sparse import prob_sparse_attention, sample_keys, sparse_count, sums_so_far

RSA = RSAConfig(heads=6, counts=(1, 1, 1, 1, 1, 1), dilations=(2, 3, 4))
PLAIN = InformerConfig(
    channels=3, time_features=2, past=14, label=6, horizon=5, width=12, heads=6, inner=16, dropout=0.0, factor=2
)
MODELS = {
    "informer": PLAIN,
    "full": replace(PLAIN, attention="full"),
    "distilled": replace(PLAIN, distil=True),
    "rsa": replace(PLAIN, rsa=RSA),
    "rsa-selected": replace(PLAIN, rsa=RSA, recurrence_rows="selected"),
    "rsa-full": replace(PLAIN, rsa=RSA, attention="full"),
    "mixed": replace(PLAIN, mix=True, rsa=RSA),
}
EVERY = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
BOTH_WAYS = pytest.mark.parametrize("causal", [False, True], ids=["unmasked", "masked"])


def inputs(batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((PLAIN.past, PLAIN.channels), (PLAIN.past, PLAIN.time_features), (PLAIN.horizon, PLAIN.time_features))
    past, past_time, future_time = (torch.randn(batch, *shape, generator=generator).double() for shape in shapes)
    return past, past_time, future_time


def heads(rows: int = 11, batch: int = 2, count: int = 6, width: int = 4) -> list[Tensor]:
    return [torch.randn(batch, count, rows, width, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def naive_prob_sparse(query: Tensor, key: Tensor, value: Tensor, sample: Tensor, causal: bool, factor: int) -> Tensor:
    """Query by query and head by head, as the paper describes it."""
    batch, count, rows, width = query.shape
    output = torch.zeros_like(value)
    for b in range(batch):
        for h in range(count):
            measured = []
            for q in range(rows):
                scores = [(query[b, h, q] @ key[b, h, k]).item() for k in sample[q].tolist()]
                measured.append(max(scores) - sum(scores) / rows)
            chosen = sorted(range(rows), key=lambda q: -measured[q])[: sparse_count(rows, factor)]
            for q in range(rows):
                if q in chosen:
                    seen = q + 1 if causal else rows
                    scores = key[b, h, :seen] @ query[b, h, q] / math.sqrt(width)
                    output[b, h, q] = torch.softmax(scores, 0) @ value[b, h, :seen]
                else:
                    output[b, h, q] = value[b, h, : q + 1].sum(0) if causal else value[b, h].mean(0)
    return output


@BOTH_WAYS
def test_prob_sparse_equals_the_naive_version_and_its_gradients(causal):
    tensors = heads()
    sample = sample_keys(11, 11, 2, torch.device("cpu"), training=True)
    fast, chosen = prob_sparse_attention(*tensors, sample, causal=causal, factor=2)
    naive = naive_prob_sparse(*tensors, sample, causal, 2)
    assert chosen.shape[-1] == 6 < 11
    torch.testing.assert_close(fast, naive)
    weight = torch.randn_like(fast)
    for ours, theirs in zip(
        torch.autograd.grad((fast * weight).sum(), tensors),
        torch.autograd.grad((naive * weight).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@BOTH_WAYS
def test_prob_sparse_with_all_queries_is_full_attention(causal):
    query, key, value = heads(rows=5)
    sample = sample_keys(5, 5, 9, torch.device("cpu"), training=True)
    attended, _ = prob_sparse_attention(query, key, value, sample, causal=causal, factor=9)
    full = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.testing.assert_close(attended, full)


def test_sparse_counts_are_the_published_ones():
    assert [sparse_count(length, 5) for length in (1, 2, 24, 96, 720)] == [1, 2, 20, 25, 35]


@BOTH_WAYS
@pytest.mark.parametrize("selected", [False, True], ids=["all", "selected"])
def test_recurrence_uses_the_rows_of_the_queries(causal, selected):
    """The failed reproduction took the first rows of P for whatever queries were chosen."""
    encoding = RecurrenceEncoding(RSA).double()
    attended, _, value = heads()
    chosen = torch.stack([torch.randperm(11)[:4] for _ in range(12)]).view(2, 6, 4)
    mixed = add_recurrence(attended, value, encoding, causal, chosen if selected else None)
    matrix, gate = rem_matrix(encoding, 11, causal=causal), encoding.gate()
    for b in range(2):
        for h in range(6):
            for row in range(11):
                expected = attended[b, h, row]
                if not selected or row in chosen[b, h]:
                    expected = (1 - gate) * expected + gate * (matrix[h, row] @ value[b, h])
                torch.testing.assert_close(mixed[b, h, row], expected)


def naive_self_attention(attention: SelfAttention, hidden: Tensor) -> Tensor:
    """The decoder's, whole matrices and number by number: mixed, all rows of a head come before those of the next."""
    query, key, value = (
        part.view(2, 11, 6, 2).permute(0, 2, 1, 3)
        for part in (attention.query(hidden), *attention.key_value(hidden).split(12, dim=-1))
    )
    if attention.config.attention == "full":
        scores = (query @ key.transpose(2, 3) / math.sqrt(2)).masked_fill(torch.ones(11, 11).triu(1) > 0, -math.inf)
        attended = scores.softmax(-1) @ value
    else:
        sample = sample_keys(11, 11, attention.config.factor, torch.device("cpu"), training=False)
        attended = naive_prob_sparse(query, key, value, sample, True, attention.config.factor)
    if attention.encoding is not None:
        gate = attention.encoding.gate()
        attended = (1 - gate) * attended + gate * (rem_matrix(attention.encoding, 11) @ value)
    rows = [[[attended[b, h, t] for t in range(11)] for h in range(6)] for b in range(2)]
    if attention.config.mix:
        ordered = [torch.cat([number for head in sequence for number in head]) for sequence in rows]
    else:
        ordered = [torch.cat([head[t] for t in range(11) for head in sequence]) for sequence in rows]
    return attention.output(torch.stack(ordered).view(2, 11, 12))


@pytest.mark.parametrize("mix", [False, True], ids=["by row", "mixed"])
@pytest.mark.parametrize("rsa", [None, RSA], ids=["plain", "rsa"])
@pytest.mark.parametrize("attention", ["prob", "full"])
def test_decoder_self_attention_equals_the_naive_version_and_its_gradients(attention, rsa, mix):
    module = SelfAttention(replace(PLAIN, attention=attention, rsa=rsa, mix=mix), causal=True).double().eval()
    hidden = torch.randn(2, 11, 12, dtype=torch.float64, requires_grad=True)
    found, expected = module(hidden), naive_self_attention(module, hidden)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    for ours, theirs in zip(
        torch.autograd.grad((found * weight).sum(), [hidden, *module.parameters()]),
        torch.autograd.grad((expected * weight).sum(), [hidden, *module.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def self_attention(causal: bool, counts: tuple[int, ...], dilations: tuple[int, ...], dominant: int) -> Tensor:
    """(T, T): how much row i of a lone head's output follows the value of row j, with the attention gated away."""
    rsa = RSAConfig(heads=1, counts=counts, dilations=dilations, sharing="none", gate_start=60.0)
    config = replace(PLAIN, heads=1, width=2, rsa=rsa)
    attention = SelfAttention(config, causal).double()
    with torch.no_grad():
        for linear in (attention.query, attention.key_value, attention.output):
            linear.bias.zero_()
        attention.key_value.weight[2:].copy_(torch.eye(2))
        attention.output.weight.copy_(torch.eye(2))
        if dominant >= 0:
            attention.encoding.nu.fill_(1.0)
            attention.encoding.theta.fill_(0.7)
        else:
            attention.encoding.eta.fill_(-0.9)
    unit = torch.eye(13, dtype=torch.float64)
    hidden = torch.stack([unit, torch.zeros_like(unit)], dim=-1)  # batch j has its only value in row j
    return attention(hidden)[:, :, 0].detach().T


WAVE = {"cosine": math.cos, "sine": math.sin}


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["regular", "cosine", "sine"])
@pytest.mark.parametrize("dilation", [1, 3])
def test_each_kind_of_head_has_the_published_weights(causal, kind, dilation):
    """No squared waves, no lost γ, no identity taken off, weight 0 where the dilation does not divide; both ways in the
    encoder, the past alone in the decoder."""
    place = ("regular", "cosine", "sine").index(kind) + (3 if dilation > 1 else 0)
    counts = tuple(int(index == place) for index in range(6))
    found = self_attention(causal, counts, (dilation,) if dilation > 1 else (), -1 if kind == "regular" else 1)
    gamma, decay = 1 / (1 + math.exp(-1.0)), math.tanh(-0.9)
    for i in range(13):
        for j in range(13):
            distance = i - j if causal else abs(i - j)
            expected = 0.0
            if distance > 0 and distance % dilation == 0:
                steps = distance // dilation
                expected = decay**steps if kind == "regular" else gamma**steps * WAVE[kind](0.7 * steps)
            assert found[i, j].item() == pytest.approx(expected, abs=1e-9), (i, j)


@EVERY
def test_every_parameter_is_saved_and_gets_a_gradient(config):
    model = Informer(config).double()
    model(*inputs()).square().sum().backward()
    still = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert still == []
    assert {name for name, _ in model.named_parameters()} <= set(model.state_dict())
    rem = [name for name, _ in model.named_parameters() if "encoding." in name]
    assert len(rem) == (0 if config.rsa is None else 4 * (config.encoder_layers + config.decoder_layers))


@EVERY
def test_forecast_does_not_depend_on_the_batch(config):
    model = Informer(config).double().eval()
    past, past_time, future_time = inputs(3)
    together = model(past, past_time, future_time)
    alone = model(past[1:2], past_time[1:2], future_time[1:2])
    torch.testing.assert_close(together[1:2], alone)
    torch.testing.assert_close(together, model(past, past_time, future_time), rtol=0, atol=0)


@pytest.mark.parametrize("attention", ["prob", "full"])
def test_closed_gate_is_informer(attention):
    plain = replace(PLAIN, attention=attention)
    informer = Informer(plain).double().eval()
    recurrent = Informer(replace(plain, rsa=replace(RSA, gate_start=-800.0))).double().eval()
    missing, unexpected = recurrent.load_state_dict(informer.state_dict(), strict=False)
    assert not unexpected
    assert all("encoding" in name for name in missing)
    torch.testing.assert_close(recurrent(*inputs()), informer(*inputs()))


def test_decoder_is_causal():
    """Changing the calendar of the last row to forecast changes that row alone; full attention, for ProbSparse chooses
    its queries together, as published."""
    model = Informer(replace(PLAIN, attention="full", rsa=RSA)).double().eval()
    past, past_time, future_time = inputs()
    # The embedding's convolution sees one row to each side and round the ends, so it is left out of this question.
    with torch.no_grad():
        model.decoder_embedding.values.weight.zero_()
    later = future_time.clone()
    later[:, -1] += 1
    before, after = model(past, past_time, future_time), model(past, past_time, later)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_embedding_is_a_circular_convolution_and_a_linear_map():
    embedding = Embedding(PLAIN).double().eval()
    values, times, _ = inputs()
    convolved = embedding.values(values.transpose(1, 2)).transpose(1, 2)
    expected = convolved + embedding.times(times) + position_waves(convolved)
    torch.testing.assert_close(embedding(values, times), expected)


def test_same_seed_gives_the_same_weights_with_and_without_recurrence():
    starts = []
    for config in (PLAIN, MODELS["rsa"]):
        torch.manual_seed(3)
        starts.append(Informer(config).state_dict())
    without, with_recurrence = starts
    assert all(torch.equal(value, with_recurrence[name]) for name, value in without.items())
    gates = [value.item() for name, value in with_recurrence.items() if name.endswith("encoding.mu")]
    assert len(set(gates)) == len(gates) > 1


def test_distilling_halves_the_sequence():
    model = Informer(replace(PLAIN, distil=True, encoder_layers=3)).double()
    past, past_time, _ = inputs()
    assert model.encode(past, past_time).shape[1] == 4  # 14, 7, 4
    assert Informer(PLAIN).double().encode(past, past_time).shape[1] == 14


def test_recurrence_adds_only_its_parameters():
    sizes = [sum(p.numel() for p in Informer(config).parameters()) for config in (PLAIN, replace(PLAIN, rsa=RSA))]
    # In each of three self-attentions: the gate, two η, and two pairs of ν and θ.
    assert sizes[1] - sizes[0] == 3 * (1 + 2 + 4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"width": 13}, "`width`"),
        ({"label": 15}, "`label`"),
        ({"attention": "some"}, "`attention`"),
        ({"dropout": 1.0}, "`dropout`"),
        ({"horizon": 0}, "`horizon`"),
        ({"recurrence_rows": "selected", "attention": "full"}, "selects no rows"),
        ({"rsa": RSAConfig(heads=4, counts=(1, 0, 0, 0, 0, 0))}, "The heads of `rsa`"),
    ],
    ids=["width", "label", "attention", "dropout", "horizon", "rows", "heads"],
)
def test_invalid_configurations_raise(wrong, message):
    with pytest.raises(UserError, match=message):
        replace(PLAIN, **wrong)


@pytest.mark.gpu
def test_cumulative_sums_are_exact_in_16_bits():
    values = (100 + torch.randn(2, 3, 576, 64, device="cuda")).bfloat16().requires_grad_()
    factor = torch.randn(2, 3, 576, 64, device="cuda")
    found, expected = sums_so_far(values), values.double().cumsum(2)
    assert ((found - expected).abs() <= expected.abs() / 200).all()  # bf16's own rounding, once
    gradients = [torch.autograd.grad((sums * factor).sum(), values)[0].double() for sums in (found, expected)]
    assert (gradients[0] - gradients[1]).norm() <= 1e-2 * gradients[1].norm()
