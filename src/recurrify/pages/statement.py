"""What a demo result says, in sentences that claim no more than its intervals allow."""

from collections.abc import Mapping
from typing import Any

from recurrify.pages import numbers
from recurrify.pages.tables import Gain, gains, scores, unit

CORPORA = {"stdlib": "the source code of Python's standard library"}


def what_was_done(result: Mapping[str, Any]) -> str:
    """The experiment in one paragraph."""
    settings = result.get("settings") or {}
    window = settings.get("window")
    size = f" of {numbers.count(window)} tokens" if window is not None else ""
    sentences = [
        f"A small pretrained language model reads text in windows{size}. recurrify let a memory of each window enter "
        "the next, and fine-tuned the model; the plain model it is compared with was fine-tuned in the same way "
        "without a memory."
    ]
    if settings.get("mechanism"):
        sentences.append(f"The memory: {settings['mechanism']}.")
    corpus = settings.get("corpus")
    if corpus is not None:
        text = CORPORA.get(corpus, f"the corpus “{corpus}”")
        if corpus == "stdlib" and settings.get("python"):
            text += f" ({settings['python']})"
        sentences.append(f"The text is {text}{_test_size(settings)}.")
    sizes = settings.get("parameters") or {}
    if sizes.get("base") is not None and sizes.get("recurrent") is not None:
        plain, recurrent = numbers.count(sizes["base"]), numbers.count(sizes["recurrent"])
        live = f", the one trained live {numbers.count(sizes['live'])}" if sizes.get("live") is not None else ""
        sentences.append(f"The plain model has {plain} parameters, the recurrent one {recurrent}{live}.")
    return " ".join(sentences)


def _test_size(settings: Mapping[str, Any]) -> str:
    documents, tokens = settings.get("test_documents"), settings.get("test_tokens")
    if documents is None:
        return ""
    size = f"; both were scored on {numbers.count(documents)} documents held out of training"
    return size if tokens is None else f"{size}, {numbers.count(tokens)} tokens"


def headline(result: Mapping[str, Any]) -> str:
    """The shipped pair without overlap: the number the page is about."""
    gain = _without_overlap(result, "shipped")
    if gain is None:
        return "This result holds no comparison of the shipped pair without overlap."
    # From which score to which is worth telling only where the difference is.
    scores_told = "" if gain.within_noise else _both_scores(result)
    return f"With the shipped weights and no overlap, recurrence {_effect(gain, unit(result))}{scores_told}."


def live_sentence(result: Mapping[str, Any]) -> str:
    """The same comparison for the pair that was trained during the run."""
    gain = _without_overlap(result, "live")
    if gain is None:
        return "No pair was trained live, or it was not compared without overlap."
    tokens = (result.get("settings") or {}).get("live_tokens")
    training = []
    if tokens is not None:
        training.append(f"{numbers.count(tokens)} tokens")
    if gain.seeds is not None:
        training.append("one seed" if gain.seeds == 1 else f"{gain.seeds} seeds")
    details = f" ({', '.join(training)})" if training else ""
    return f"In the pair trained live just now{details}, recurrence {_effect(gain, unit(result))}."


def _without_overlap(result: Mapping[str, Any], weights: str) -> Gain | None:
    return next((gain for gain in gains(result) if gain.weights == weights and gain.overlap == 0), None)


def _effect(gain: Gain, by: str) -> str:
    if gain.within_noise:
        # Told as a change of perplexity, so that a fall is negative as a reader expects.
        change = numbers.percent(-gain.relative, signed=True)
        if gain.interval is None:
            return f"changes perplexity per {by} by {change}; without an interval that counts as within noise"
        ends = (-gain.interval[1], -gain.interval[0])
        interval = numbers.percent_range(ends, signed=True)
        return f"changes perplexity per {by} by {change} (95 % interval {interval}), which is within noise"
    if gain.relative > 0:
        verb, size, ends_or_none = "lowers", gain.relative, gain.interval
    else:
        verb, size = "raises", -gain.relative
        ends_or_none = None if gain.interval is None else (-gain.interval[1], -gain.interval[0])
    text = f"{verb} perplexity per {by} by {numbers.percent(size)}"
    return text if ends_or_none is None else f"{text} (95 % interval {numbers.percent_range(ends_or_none)})"


def _both_scores(result: Mapping[str, Any]) -> str:
    found = {score.model: score.perplexity for score in scores(result, "shipped") if score.overlap == 0}
    plain, recurrent = found.get("plain"), found.get("recurrent")
    if plain is None or recurrent is None:
        return ""
    return f", from {numbers.perplexity(plain)} to {numbers.perplexity(recurrent)}"
