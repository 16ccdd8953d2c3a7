"""What the paper printed: Yoshida, Ettinger and Gimpel, "Adding Recurrence to Pretrained Transformers" (2020/21)."""

from recurrify_papers.sizes import Size

SOURCE = "Adding Recurrence to Pretrained Transformers"
Perplexities = dict[str, dict[int, tuple[float, float]]]
"""Per word, by model and overlap: on the validation and on the test set."""

TABLE_1: Perplexities = {
    "plain": {0: (29.00, 30.47), 5: (27.99, 29.36), 10: (27.58, 28.88), 30: (26.72, 27.96), 50: (26.17, 27.31)},
    "carry": {0: (27.70, 29.01), 5: (26.88, 28.12), 10: (26.51, 27.77), 30: (25.90, 27.12), 50: (25.53, 26.73)},
}
"""WikiText-103, windows of 300."""
TABLE_2: Perplexities = {
    "plain": {
        0: (172.25, 147.71),
        5: (165.93, 142.30),
        10: (162.66, 139.49),
        30: (156.21, 134.30),
        50: (152.64, 131.25),
        75: (149.54, 128.46),
        100: (147.05, 126.51),
        150: (143.62, 123.53),
        200: (141.14, 121.40),
    },
    "carry": {
        0: (155.27, 133.02),
        5: (150.00, 128.78),
        10: (147.53, 127.05),
        30: (142.35, 122.22),
        50: (140.10, 119.93),
    },
}
"""PG-19, windows of 300."""
TABLE_3 = {"disjoint": {"f1": 48.17, "exact_match": 43.55}, "recurrent": {"f1": 49.12, "exact_match": 44.55}}
"""HotpotQA, distractor setting, development set."""
TOPIC_NUMBERS = {"plain": {"divergence": 0.5951}, "carry": {"divergence": 0.5331, "closer share": 0.60}}
"""Section 5.3.1; closer "at least 60 % of the time", p < 0.00001."""
HYPERPARAMETERS = {
    "base model": "GPT-2 small (12 layers, 768 wide, 124 M parameters)",
    "data": "WikiText-103 (raw); PG-19, first 1,250 training books by file name",
    "window": "300",
    "windows in a training sequence": "20",
    "length": "2 epochs",
    "optimiser": "Adam",
    "learning rate": "chosen for both models from the same candidates, which are not printed",
    "learning rate of the memory": "the same",
    "schedule": "linear warm-up over 100 steps, then constant",
    "validation": "every 2 M tokens, first 15,000 tokens of each book, early stopping",
    "network": "3 hidden layers of 200",
    "insertion layer": "2",
    "seeds": "not stated",
}


def hyperparameters(size: Size) -> list[dict[str, str]]:
    """The paper's settings and ours, by name."""
    training = {"epochs": 2.0, "valid_every": 2_000_000, "warmup_steps": 100, **size.training}
    length = f"{training['max_tokens']:,} tokens" if "max_tokens" in training else f"{training['epochs']:g} epochs"
    schedule = training.get("schedule", "constant")
    base = size.base or "GPT-2 architecture: {layers} layers, {width} wide, pretrained here".format(**size.pretraining)
    ours = {
        "base model": base,
        "data": f"{size.wiki}; {size.books}",
        "window": str(size.window),
        "windows in a training sequence": str(training["windows"]),
        "length": length,
        "optimiser": "AdamW without weight decay",
        "learning rate": f"chosen for each model from {', '.join(f'{rate:g}' for rate in size.rates)}",
        "learning rate of the memory": "the same" if size.added_rate == 1 else f"{size.added_rate:g} times the base's",
        "schedule": f"linear warm-up over {training['warmup_steps']} steps, then {schedule}",
        "validation": f"every {training['valid_every']:,} tokens, first {size.valid_tokens:,} tokens of each document",
        "network": "3 hidden layers of 200",
        "insertion layer": "2",
        "seeds": f"{len(size.seeds)} without overlap, 1 elsewhere",
    }
    return [{"name": name, "published": value, "ours": ours[name]} for name, value in HYPERPARAMETERS.items()]


def at(table: Perplexities, model: str, overlap: int) -> dict[str, float]:
    """The printed perplexities of a row by split; empty where none is printed."""
    found = table.get(model, {}).get(overlap)
    return {} if found is None else {"valid": found[0], "test": found[1]}
