"""A tokenizer of whole words for the tiny models."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from support.models import VOCABULARY


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<unk>", "<pad>", "<s>", "</s>", *[f"w{number}" for number in range(4, VOCABULARY)]]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
