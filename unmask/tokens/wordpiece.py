"""Training a WordPiece tokenizer. The same text always gives the same vocabulary.

The trainer of the `tokenizers` library alone does not: it numbers the letters in the order of a hash map, and breaks
ties between equally frequent pairs by these numbers, so two runs over the same text differ by some tens of entries.
Here the letters are counted first and handed to the trainer in a fixed order, which makes all that follows fixed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.errors import TokenizerError
from unmask.tokens.letters import Texts, count_letters, default_vocab_size
from unmask.tokens.special import SPECIAL_TOKENS, with_special_tokens

_TOO_LONG = re.compile(r"\w{101,}")  # words that WordPiece gives up on, and that would take the trainer hours
PREFIX = "##"


def train_wordpiece(texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False) -> Tokenizer:
    """Trains a WordPiece tokenizer with BERT's normaliser and pre-tokenizer.

    Args:
        texts: Called twice, gives the texts; only counts of words and letters are held in memory.
        vocab_size: Entries, special tokens included; None fits them to the text (see `default_vocab_size`), with
            room for its letters.
        lowercase: Whether case is folded.

    Returns:
        A tokenizer whose ids 0 to 4 are `[PAD] [UNK] [CLS] [SEP] [MASK]`. It may hold fewer entries than asked
        where the text has no more words.

    Raises:
        TokenizerError: The letters that make up nearly all of the text do not fit the vocabulary.

    Source: Schuster and Nakajima 2012; trained by merges as in the `tokenizers` library. The rarest letters become
    `[UNK]` where they would take more than about three quarters of the vocabulary.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = count_letters(tokenizer.normalizer, texts())
    needed = len(SPECIAL_TOKENS) + len(_alphabet(tokenizer, letters.ranked[: letters.needed]))
    if vocab_size is None:
        vocab_size = max(default_vocab_size(letters.num_bytes), needed * 3 // 2)
    if needed > vocab_size:
        raise TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold the letters of this text, at the beginning of words and within "
            f"them; give at least --vocab-size {needed + 64}"
        )
    alphabet = _alphabet(tokenizer, letters.ranked[: max(letters.needed, vocab_size * 3 // 8)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix=PREFIX,
        limit_alphabet=0,  # no letters but those above
        show_progress=False,
    )
    tokenizer.train_from_iterator((_TOO_LONG.sub(" ", text) for text in texts()), trainer)
    return _finished(tokenizer)


def _alphabet(tokenizer: Tokenizer, letters: Sequence[str]) -> list[str]:
    """Letters as they begin words, and as they stand within them where the pre-tokenizer lets them."""
    inside = [letter for letter in letters if len(tokenizer.pre_tokenizer.pre_tokenize_str(f"a{letter}a")) == 1]
    return sorted(letters) + sorted(PREFIX + letter for letter in inside)


def _finished(trained: Tokenizer) -> Tokenizer:
    """The trained vocabulary in a tokenizer of its own, in which only the special tokens are special."""
    vocab = trained.get_vocab(with_added_tokens=True)
    model = models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=PREFIX)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = trained.normalizer
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    return with_special_tokens(tokenizer, mask_takes_space=False)
