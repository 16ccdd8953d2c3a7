"""Small fast tokenizers like those of BERT, GPT-2 and RoBERTa, made from a few texts."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def like_bert(texts: Sequence[str], words: int = 200) -> PreTrainedTokenizerFast:
    """Lower case, no accents, word pieces, `[CLS] a [SEP] b [SEP]` with token types.

    The first words are single tokens, and others are split into letters. A trainer would order ties at random.
    """
    normalizer, splitter = (
        normalizers.BertNormalizer(lowercase=True, strip_accents=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    found = [word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
    letters = sorted(set("".join(found)))
    tokens = [*SPECIAL.values(), *letters, *(f"##{letter}" for letter in letters), *list(dict.fromkeys(found))[:words]]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizer, splitter
    ids = [(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=names, **SPECIAL)


def like_gpt2(texts: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """Byte pairs; one special token begins and ends a text."""
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=_byte_pairs(texts, size, [end]), eos_token=end, bos_token=end)


def like_roberta(texts: Sequence[str], size: int = 300) -> PreTrainedTokenizerFast:
    """Byte pairs; spaces belong to the next word; `<s> a </s></s> b </s>` without token types."""
    made = _byte_pairs(texts, size, list(SPECIAL.values()))
    ids = [(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=ids
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=["input_ids", "attention_mask"], **SPECIAL)


def _byte_pairs(texts: Sequence[str], size: int, special: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return made
