"""Generation that does not wait for the host: the next token is chosen on the device, by the step that reads the last.

transformers' own loop looks at every token. This one looks at several steps at once, and drops what was written after
the end of the texts. Rows do not influence each other, so a row may be written on after its end.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from recurrify.modeling.generation import RecurrentCache, one_step

SEE_SCORES_ONLY = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper)
"""Logits processors that do not read the text, so that a captured step can hold them."""
ENDS = (MaxLengthCriteria, EosTokenCriteria)
STEPS_AT_ONCE = 16
"""Steps between two looks at whether all texts have ended."""


def needs_no_host(
    processors: LogitsProcessorList, criteria: StoppingCriteriaList, config: GenerationConfig, given: dict[str, Any]
) -> bool:
    """Whether `choose` and `sample` do all that is asked for: greedy decoding or sampling that returns tokens only."""
    cache = given.get("past_key_values")
    # Whoever passed a cache may read it afterwards, and it would hold the dropped tokens.
    resumes = isinstance(cache, RecurrentCache) and cache.seen > 0
    known = all(type(one) in SEE_SCORES_ONLY for one in processors) and all(type(one) in ENDS for one in criteria)
    bounded = criteria.max_length is not None and given.get("use_cache", False)
    return known and bounded and not resumes and not config.return_dict_in_generate


def choose(logits: Tensor, processors: LogitsProcessorList, samples: bool) -> Tensor:
    """The next tokens (B, 1), by logits (B, 1, V); with a seed those of transformers' loop."""
    scores = processors(None, logits[:, -1].float())
    if not samples:
        return scores.argmax(-1, keepdim=True)
    # What torch.multinomial computes, without its check of the probabilities, which waits for the device.
    chances = scores.softmax(-1)
    return (chances / torch.empty_like(chances).exponential_()).argmax(-1, keepdim=True)


def sample(
    model: Any,
    input_ids: Tensor,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    streamer: BaseStreamer | None,
    given: dict[str, Any],
) -> Tensor:
    """The prompts with their continuations, padded behind an end-of-text token, as `GenerationMixin._sample` gives
    them."""
    pieces, left = [input_ids], max(1, criteria.max_length - input_ids.shape[1])
    ends = [one.eos_token_id.to(input_ids.device) for one in criteria if isinstance(one, EosTokenCriteria)]
    unended = torch.ones(len(input_ids), 1, dtype=torch.bool, device=input_ids.device)
    steps = written(model, input_ids, processors, config.do_sample, given)
    while left > 0:
        piece = torch.cat(list(islice(steps, min(left, STEPS_AT_ONCE if streamer is None else 1))), dim=1)
        left -= piece.shape[1]
        if ends:
            is_end = torch.isin(piece, torch.cat(ends))
            wanted = unended & (is_end.cumsum(1) == is_end)  # up to the first end
            unended = unended & ~is_end.any(1, keepdim=True)
            columns = int(wanted.any(0).sum())
            left = left if columns == piece.shape[1] else 0
            piece = torch.where(wanted, piece, config._pad_token_tensor)[:, :columns]
        pieces.append(piece)
        if streamer is not None:
            for tokens in piece.cpu().unbind(1):
                streamer.put(tokens)
    if streamer is not None:
        streamer.end()
    return torch.cat(pieces, dim=1)


def written(
    model: Any, input_ids: Tensor, processors: LogitsProcessorList, samples: bool, given: dict[str, Any]
) -> Iterator[Tensor]:
    """Token after token (B, 1), without end."""

    def finish(hidden: Tensor) -> Tensor:
        return choose(model.head(hidden), processors, samples)

    prompt = model(**model.prepare_inputs_for_generation(input_ids, **given), return_dict=True)
    tokens, cache = choose(prompt.logits, processors, samples), prompt.past_key_values
    while True:
        yield tokens
        tokens = one_step(model, tokens, cache, finish)
