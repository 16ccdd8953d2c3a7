"""What the pages of help list, for they are shown without loading what has it; tests hold each against that."""

BEST = "best"
"""In place of a mechanism's name: what served best for models of its kind."""
MECHANISMS = ("carry", "compress", "kv", "lookback", "memory_tokens", "none", "rsa", "summary", "tail")
SHIPPED = ("shipped:base", "shipped:plain", "shipped:recurrent")
CORPORA = ("stdlib", "wikitext-103", "pg19")
ALPHABETS = ("characters", "bytes", "all-bytes", "bytes-without-newlines")
ARCHITECTURES = ("xl", "rsa-xl", "brt", "rsa-brt", "lstm", "gru", "transformer", "rsa")

TEXT_PROBES = ("passkey", "needle", "recall", "variables", "copying", "reversal", "entities", "hidden")
SYMBOL_PROBES = ("recall", "variables", "copying", "reversal")
PROBED_SIZES = {"layers": 4, "width": 64, "heads": 4}
PROBED_WINDOW = 32
PROBED_REPETITIONS = 600

FORECASTERS = (
    "informer",
    "rsa-informer",
    "transformer",
    "rsa-transformer",
    "lstm",
    "gru",
    "linear",
    "last-value",
    "seasonal",
)
TABLE_1_FORECASTERS = ("informer", "rsa-informer", "linear", "seasonal", "last-value")

USUAL_BENCH_KINDS = ("plain", "carry", "tail")
BENCH_KINDS = (*USUAL_BENCH_KINDS, "lookback")
BENCH_WAYS = ("eager", "compiled", "graphs")
BENCH_PARTS = {
    "ceilings": "the device's matrix products and bandwidth",
    "training": "training steps beside transformers' own GPT-2",
    "profile": "where a training step's time goes",
    "lengths": "memory and speed of a step against a sequence's length",
    "generation": "time per token, from the beginning to far past the context",
    "evaluation": "scoring documents side by side",
    "naive": "training beside a naive loop over windows",
    "peers": "training beside the field's own packages",
}
BENCH_SIZES = {
    "tiny": "the demo's shape: minutes on two cores",
    "small": "25 M parameters: a smaller GPU",
    "gpt2": "GPT-2 small, windows of 300, as in the paper: one large GPU",
}

BEYOND = ("mechanisms", "starts", "frozen", "tokens", "unfamiliar", "rotary")
EXPERIMENT_SIZES = {
    "paper": "as published: GPT-2 small on PG-19 and WikiText-103 from the hub; days on one GPU",
    "small": "a base of 34 M parameters pretrained here, novels and enwik8: for one large GPU",
    "tiny": "the shipped model on Python's own source, offline, minutes on two cores: checks the machinery",
}
