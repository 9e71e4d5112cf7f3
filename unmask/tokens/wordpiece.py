"""Training a WordPiece tokenizer. The same text always gives the same vocabulary.

The trainer of the `tokenizers` library alone does not: it numbers the letters in the order of a hash map, and breaks
ties between equally frequent pairs by these numbers, so two runs over the same text differ by some tens of entries.
Here the letters are counted first and handed to the trainer in a fixed order, which makes all that follows fixed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from unmask.errors import TokenizerError
from unmask.tokens.tokenizer import SPECIAL_TOKENS

COVERED = 0.9995
_TOO_LONG = re.compile(r"\w{101,}")  # words that WordPiece gives up on, and that would take the trainer hours
PREFIX = "##"


def default_vocab_size(num_bytes: int) -> int:
    """A vocabulary that fits the corpus: 8,192 entries at 10 MB, growing with the power 0.45, a multiple of 64.

    A rare entry is seen too seldom to be learned: with this rule the average entry stands some hundred times in a
    megabyte of text and some thousand times in 100 MB. At least 512 and at most 32,768 entries.
    """
    size = 8192 * (num_bytes / 10e6) ** 0.45
    return min(max(round(size / 64) * 64, 512), 32_768)


def train_wordpiece(
    texts: Callable[[], Iterable[str]], *, vocab_size: int | None = None, lowercase: bool = False
) -> Tokenizer:
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
    counts, num_bytes = _count_letters(tokenizer, texts())
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    covering = _covering(ranked, counts)
    needed = len(SPECIAL_TOKENS) + len(_alphabet(tokenizer, covering))
    if vocab_size is None:
        vocab_size = max(default_vocab_size(num_bytes), needed * 3 // 2)
    if needed > vocab_size:
        raise TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold the letters of this text, at the beginning of words and within "
            f"them; give at least --vocab-size {needed + 64}"
        )
    alphabet = _alphabet(tokenizer, ranked[: max(len(covering), vocab_size * 3 // 8)])
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix=PREFIX,
        limit_alphabet=0,  # no letters but those above
        show_progress=False,
    )
    tokenizer.train_from_iterator((_TOO_LONG.sub(" ", text) for text in texts()), trainer)
    return _finished(tokenizer)


def _count_letters(tokenizer: Tokenizer, texts: Iterable[str]) -> tuple[Counter[str], int]:
    counts: Counter[str] = Counter()
    num_bytes = 0
    for text in texts:
        num_bytes += len(text.encode())
        counts.update(tokenizer.normalizer.normalize_str(text))
    for letter in [letter for letter in counts if letter.isspace()]:
        del counts[letter]
    return counts, num_bytes


def _covering(ranked: list[str], counts: Counter[str]) -> list[str]:
    """The most frequent letters, up to a share of the text that leaves hardly a word unknown."""
    total, gone = counts.total(), 0
    for number, letter in enumerate(ranked):
        if gone >= COVERED * total:
            return ranked[:number]
        gone += counts[letter]
    return ranked


def _alphabet(tokenizer: Tokenizer, letters: list[str]) -> list[str]:
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
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer
