"""Training a tokenizer of any kind, as the settings say."""

from __future__ import annotations

from collections.abc import Callable

import tokenizers

from unmask.tokens.bpe import train_bpe
from unmask.tokens.chars import train_chars
from unmask.tokens.letters import Texts
from unmask.tokens.settings import TokenizerKind, TokenizerSettings
from unmask.tokens.tokenizer import Tokenizer
from unmask.tokens.unigram import train_unigram
from unmask.tokens.wordpiece import train_wordpiece

_TRAINERS: dict[TokenizerKind, Callable[[Texts, TokenizerSettings], tokenizers.Tokenizer]] = {
    "wordpiece": lambda texts, s: train_wordpiece(texts, vocab_size=s.vocab_size, lowercase=s.lowercase),
    "bpe": lambda texts, s: train_bpe(
        texts, vocab_size=s.vocab_size, lowercase=s.lowercase, add_prefix_space=bool(s.add_prefix_space)
    ),
    "unigram": lambda texts, s: train_unigram(texts, vocab_size=s.vocab_size, lowercase=s.lowercase),
    "char": lambda texts, s: train_chars(texts, vocab_size=s.vocab_size, lowercase=s.lowercase, bare=bool(s.bare)),
}


def train_tokenizer(texts: Texts, settings: TokenizerSettings) -> Tokenizer:
    """Trains the tokenizer that the settings ask for; the same text always gives the same one.

    Args:
        texts: Called once or twice, gives the training text; only counts of it are held in memory.
        settings: Kind, size of the vocabulary, case.

    Raises:
        TokenizerError: As the trainers.
    """
    return Tokenizer(_TRAINERS[settings.kind](texts, settings))
