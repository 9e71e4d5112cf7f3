"""Training a Unigram tokenizer with Metaspace: SentencePiece's, ALBERT's and XLNet's kind.

The library goes through words and letters in the order of a hash map. Two runs over the same text choose the same
pieces, but their scores differ in two ways, and with them the order of the pieces. Both are taken away here:

- Sums of probabilities differ by some 1e-15. Scores are rounded to 1e-6. (A score within the noise of a rounding edge
  is the one thing that could still differ, about once in 10^5 vocabularies.)
- Letters that the training dropped are put back with the least score, the next one with 1e-4 more, and so on. All of
  them get the least one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.errors import TokenizerError
from unmask.tokens.letters import Texts, count_letters, default_vocab_size
from unmask.tokens.special import SPECIAL_TOKENS, with_special_tokens

MARK = "▁"
_DIGITS = 6
_STEP = 1e-4


def train_unigram(texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False) -> Tokenizer:
    """Trains a Unigram tokenizer whose pieces never join words or mix letters with punctuation.

    Args:
        texts: Called twice, gives the texts; only counts of words and letters are held in memory.
        vocab_size: Entries, special tokens included; None fits them to the text.
        lowercase: Whether case is folded.

    Returns:
        A tokenizer whose ids 0 to 4 are `[PAD] [UNK] [CLS] [SEP] [MASK]`. It may hold fewer entries than asked
        where the text has no more pieces. A run of white space is one space to it, as in SentencePiece.

    Raises:
        TokenizerError: The letters that make up nearly all of the text do not fit the vocabulary, or there is no text.

    Source: Kudo 2018, sections 3.2 and 3.3, as in the `tokenizers` library. Punctuation is split off first, so that
    words can be told apart. The rarest letters become `[UNK]` where they would take more than about three quarters of
    the vocabulary.
    """
    tokenizer = _untrained(models.Unigram(), lowercase=lowercase)
    counted = count_letters(tokenizer.normalizer, texts())
    least = len(SPECIAL_TOKENS) + counted.needed + 1
    if not counted.ranked:
        raise TokenizerError("no pieces can be learned from an empty text; give text")
    if vocab_size is None:
        vocab_size = max(default_vocab_size(counted.num_bytes), least * 3 // 2)
    if least > vocab_size:
        raise TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold the {counted.needed} letters that make up nearly all of this "
            f"text; give at least --vocab-size {least + 64}"
        )
    letters = counted.ranked[: max(counted.needed, vocab_size * 3 // 4)]
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), unk_token="[UNK]", show_progress=False
    )
    tokenizer.train_from_iterator(_of_letters(texts, letters, lowercase), trainer)
    vocab = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    pieces = _settled({piece: score for piece, score in vocab.items() if piece not in SPECIAL_TOKENS})
    model = models.Unigram([*((token, 0.0) for token in SPECIAL_TOKENS), *pieces], unk_id=1, byte_fallback=False)
    return with_special_tokens(_untrained(model, lowercase=lowercase), mask_takes_space=True)


def _settled(scores: dict[str, float]) -> list[tuple[str, float]]:
    """The pieces without what chance put into their scores, in an order that depends on scores and spelling alone."""
    letters = [piece for piece in scores if len(piece) == 1]
    least = min(scores[letter] for letter in letters)
    settled = dict(scores)
    for letter in letters:
        steps = (scores[letter] - least) / _STEP
        if steps < len(letters) and abs(steps - round(steps)) < 1e-6:
            settled[letter] = least
    pieces = [(piece, round(score, _DIGITS)) for piece, score in settled.items()]
    return sorted(pieces, key=lambda entry: (-entry[1], entry[0]))


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


def _of_letters(texts: Texts, letters: Sequence[str], lowercase: bool) -> Iterator[str]:
    """The texts without rare letters: the trainer would want an entry for each of them.

    The normaliser is not that of the tokenizer in training, which the library holds locked meanwhile.
    """
    normalizer = _untrained(models.Unigram(), lowercase=lowercase).normalizer
    table = _KnownLetters({ord(letter): letter for letter in letters})
    for text in texts():
        yield normalizer.normalize_str(text).translate(table)
