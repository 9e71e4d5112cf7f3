"""Training a Unigram tokenizer with Metaspace: SentencePiece's, ALBERT's and XLNet's kind.

The library sums probabilities in the order of a hash map, so two runs over the same text choose the same pieces but
differ by some 1e-15 in their scores, and so in the order of equally likely pieces. Here scores are rounded to 1e-6
and pieces sorted by score and spelling, which takes this noise away; a score that lies within the noise of a
rounding edge is the one thing that could still differ, about once in 10^5 vocabularies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.errors import TokenizerError
from unmask.tokens.letters import Texts, frequent_letters
from unmask.tokens.special import SPECIAL_TOKENS, with_special_tokens

MARK = "▁"
_DIGITS = 6


def train_unigram(texts: Texts, *, vocab_size: int, lowercase: bool = False) -> Tokenizer:
    """Trains a Unigram tokenizer whose pieces never join words or mix letters with punctuation.

    Args:
        texts: Called twice, gives the texts; only counts of words and letters are held in memory.
        vocab_size: Entries, special tokens included.
        lowercase: Whether case is folded.

    Returns:
        A tokenizer whose ids 0 to 4 are `[PAD] [UNK] [CLS] [SEP] [MASK]`. It may hold fewer entries than asked
        where the text has no more pieces. A run of white space is one space to it, as in SentencePiece.

    Raises:
        TokenizerError: The letters alone do not fit the vocabulary, or the text has too few words.

    Source: Kudo 2018, sections 3.2 and 3.3, as in the `tokenizers` library. Punctuation is split off first, so that
    words can be told apart. Letters beyond the 1,000 most frequent become `[UNK]`.
    """
    tokenizer = _untrained(models.Unigram(), lowercase=lowercase)
    letters = frequent_letters(tokenizer, texts())
    least = len(SPECIAL_TOKENS) + len(letters) + 1
    if least > vocab_size:
        raise TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold the {len(letters)} letters of this text; give at least "
            f"--vocab-size {least + 64}"
        )
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), unk_token="[UNK]", show_progress=False
    )
    try:
        tokenizer.train_from_iterator(_of_letters(texts, letters, lowercase), trainer)
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(f"no Unigram tokenizer can be trained on this text: {error}; give more text") from error
    vocab = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    pieces = [(piece, round(score, _DIGITS)) for piece, score in vocab.items() if piece not in SPECIAL_TOKENS]
    pieces.sort(key=lambda entry: (-entry[1], entry[0]))
    model = models.Unigram([*((token, 0.0) for token in SPECIAL_TOKENS), *pieces], unk_id=1, byte_fallback=False)
    return with_special_tokens(_untrained(model, lowercase=lowercase), mask_takes_space=True)


def _untrained(model: models.Unigram, *, lowercase: bool) -> Tokenizer:
    """The parts around the model. The first text gets a mark only, so that what follows `[MASK]` keeps its own."""
    tokenizer = Tokenizer(model)
    spaces = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(r"\s+"), " ")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *spaces] if lowercase else spaces)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first"), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="first")
    return tokenizer


class _KnownLetters(dict[int, str]):
    """A table for `str.translate` that turns all but some letters into spaces."""

    def __missing__(self, code: int) -> str:
        return " "


def _of_letters(texts: Texts, letters: list[str], lowercase: bool) -> Iterator[str]:
    """The texts without rare letters: the trainer would want an entry for each of them.

    The normaliser is not that of the tokenizer in training, which the library holds locked meanwhile.
    """
    normalizer = _untrained(models.Unigram(), lowercase=lowercase).normalizer
    table = _KnownLetters({ord(letter): letter for letter in letters})
    for text in texts():
        yield normalizer.normalize_str(text).translate(table)
