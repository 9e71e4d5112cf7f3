"""Trains tokenizers: WordPiece, byte-level BPE, Unigram and characters. The same text gives the same vocabulary.

The trainers of the `tokenizers` library do not guarantee that; each kind below says what it does about it. All four
take `texts`, which yields the texts anew at each call (only counts of words and letters are held in memory);
`vocab_size`, special tokens included (None fits it to the text); and whether case is folded. Ids 0 to 4 are `[PAD]
[UNK] [CLS] [SEP] [MASK]`. If the text does not yield enough entries, there are fewer than `vocab_size`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Literal, Self

import tokenizers
from pydantic import Field, field_validator, model_validator
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.normalizers import Normalizer

from unmask.core.errors import TokenizerError
from unmask.core.hub import hub_name
from unmask.core.settings import Settings
from unmask.tokenizer.tokenizer import BARE_TOKENS, SPECIAL_TOKENS, Tokenizer, with_special_tokens

Texts = Callable[[], Iterable[str]]
TokenizerKind = Literal["wordpiece", "bpe", "unigram", "char"]


class TokenizerSettings(Settings):
    """Which tokenizer to use or train."""

    path: str | None = None
    """The tokenizer: a folder with a `tokenizer.json` or a `vocab.txt`, such a file, or the name of a model on the hub
    (the run records its commit). Unset: one is trained on the corpus."""
    kind: TokenizerKind = "wordpiece"
    """Kind to train: WordPiece, byte-level BPE, Unigram, or one token per character."""
    vocab_size: int | None = Field(default=None, ge=64, le=1_000_000)
    """Entries of the trained vocabulary, special tokens included. Unset: sized to the corpus. For characters it is the
    maximum; unset, all characters of the corpus."""
    lowercase: bool = False
    """Whether the trained tokenizer folds case."""
    bare: bool | None = None
    """For `char` only: whether `[PAD]` and `[MASK]` are the only special tokens, so that rows hold only text. The
    vocabulary then covers the whole corpus, held-out text included. Unset: no."""
    sample_bytes: int = Field(default=1 << 29, ge=1 << 16)
    """Approximate amount of text to train the tokenizer on, in documents, or pieces of long ones, chosen by hash.
    Characters use all text."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        """As `AbsolutePath`, but a name on the hub stays."""
        return path if path is None or hub_name(path) is not None else str(Path(path).absolute())

    @model_validator(mode="after")
    def _check(self) -> Self:
        fields = type(self).model_fields
        changed = [name for name in fields if name != "path" and getattr(self, name) != fields[name].default]
        if self.path is not None and changed:
            raise ValueError(f"{' and '.join(changed)} is for training a tokenizer, but path names an existing one")
        if self.bare is not None and self.kind != "char":
            raise ValueError(f'bare is for kind char, not {self.kind}; remove it, or set kind = "char"')
        return self


COVERED = 0.9995


def count_letters(
    normalizer: Normalizer | None, texts: Iterable[str], *, spaces: bool = False
) -> tuple[list[str], int, int]:
    """The letters of normalised text (white space only with `spaces`), most frequent first, then by code point; how
    many of them cover 99.95 % of the text; and the UTF-8 bytes of the text."""
    counts: Counter[str] = Counter()
    num_bytes = 0
    for text in texts:
        num_bytes += len(text.encode())
        counts.update(text if normalizer is None else normalizer.normalize_str(text))
    if not spaces:
        counts = Counter({letter: count for letter, count in counts.items() if not letter.isspace()})
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    enough = COVERED * counts.total()
    needed = bisect_left(list(accumulate(counts[letter] for letter in ranked)), enough) + 1 if ranked else 0
    return ranked, needed, num_bytes


def default_vocab_size(num_bytes: int) -> int:
    """A vocabulary size that fits the corpus: 8,192 at 10 MB, growing with the power 0.45; a multiple of 64 between 512
    and 32,768. The average entry occurs some hundred times in a megabyte of text, some thousand times in 100 MB."""
    size = 8192 * (num_bytes / 10e6) ** 0.45
    return min(max(round(size / 64) * 64, 512), 32_768)


def _size(vocab_size: int | None, usual: int, least: int, holds: str, spare: int = 64) -> int:
    """The vocabulary size: `vocab_size` or, if that is None, `usual`. Raises a TokenizerError below `least`."""
    size = max(usual, least) if vocab_size is None else vocab_size
    if size < least:
        raise TokenizerError(
            f"a vocabulary of {size} cannot hold {holds}; give at least {least + spare} entries",
            options=("vocab_size",),
        )
    return size


_TOO_LONG = re.compile(r"\w{101,}")  # WordPiece cannot represent such words, and training on them would take hours
PREFIX = "##"


def train_wordpiece(texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False) -> tokenizers.Tokenizer:
    """Trains a WordPiece tokenizer with BERT's normaliser and pre-tokenizer.

    The normaliser removes control and format characters (joiners, soft hyphens) only if this text has none. If
    zero-width spaces (U+200B) are frequent, they separate words.

    The library's trainer numbers letters in the order of a hash map, and breaks ties between equally frequent pairs by
    these numbers, so two runs over the same text differ by some tens of entries. Here the letters are counted first and
    passed in a fixed order, which makes the result deterministic. If letters would take more than about three quarters
    of the vocabulary, the rarest become `[UNK]`.

    Source: Schuster and Nakajima 2012; trained by merges as in the `tokenizers` library.
    """
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    uncleaned, cleaned = (
        normalizers.BertNormalizer(clean_text=clean_text, lowercase=lowercase, strip_accents=False)
        for clean_text in (False, True)
    )
    ranked, num_needed, num_bytes = count_letters(uncleaned, texts())
    has_controls = any(not cleaned.normalize_str(letter) for letter in ranked)
    tokenizer.normalizer = uncleaned if has_controls else cleaned
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if "\u200b" in ranked[:num_needed]:  # a zero-width space, which marks words in Khmer, Burmese, Lao and Thai
        parts = [pre_tokenizers.Split("\u200b", "removed"), pre_tokenizers.BertPreTokenizer()]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
        ranked.remove("\u200b")

    def alphabet(letters: Sequence[str]) -> list[str]:
        """Letters at the beginning of words and, unless they are words of their own, within words."""
        words = {letter: tokenizer.normalizer.normalize_str(f"a{letter}a") for letter in letters}
        inside = [each for each, word in words.items() if len(tokenizer.pre_tokenizer.pre_tokenize_str(word)) == 1]
        return sorted(letters) + sorted(PREFIX + letter for letter in inside)

    needed = len(SPECIAL_TOKENS) + len(alphabet(ranked[:num_needed]))
    usual = max(default_vocab_size(num_bytes), needed * 3 // 2)
    holds = "the letters of this text, both at the beginning of words and within them"
    vocab_size = _size(vocab_size, usual, needed, holds)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *alphabet(ranked[: max(num_needed, vocab_size * 3 // 8)])],
        continuing_subword_prefix=PREFIX,
        limit_alphabet=0,  # only the letters above
        show_progress=False,
    )
    tokenizer.train_from_iterator((_TOO_LONG.sub(" ", text) for text in texts()), trainer)
    # A new tokenizer with this vocabulary, in which only the special tokens are special.
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    finished = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=PREFIX))
    finished.normalizer, finished.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    finished.decoder = decoders.WordPiece(prefix=PREFIX)
    return with_special_tokens(finished, mask_takes_space=False)


_LONG = re.compile(r"\w{256}")  # words are cut behind it: each merge takes time in proportion to the length of its word


def train_bpe(texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE tokenizer with GPT-2's pre-tokenizer, the kind of GPT-2 and RoBERTa.

    It can spell any text, and decoding gives exactly the text. Ids 5 to 260 are the bytes, in a fixed order, which
    makes the library's trainer deterministic. It learns from at most 256 letters in a row.

    Source: Sennrich et al. 2016 (BPE); Radford et al. 2019, section 2.2 (bytes).
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(SPECIAL_TOKENS) + len(alphabet)
    usual = least if vocab_size else default_vocab_size(sum(len(text.encode()) for text in texts()))
    vocab_size = _size(vocab_size, usual, least, f"the {len(alphabet)} bytes and the special tokens of byte-level BPE")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )

    def parts(text: str) -> Iterable[str]:
        ends = [0, *(match.end() for match in _LONG.finditer(text)), len(text)]
        return (text[begin:end] for begin, end in pairwise(ends))

    tokenizer.train_from_iterator(chain.from_iterable(map(parts, texts())), trainer)
    return with_special_tokens(tokenizer, mask_takes_space=True)


MARK = "▁"


def train_unigram(texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False) -> tokenizers.Tokenizer:
    """Trains a Unigram tokenizer with Metaspace, the kind of SentencePiece, ALBERT and XLNet.

    Punctuation is split off first, so pieces never join words or mix letters with punctuation. A run of white space
    becomes one space, as in SentencePiece. Rare letters become `[UNK]` as in `train_wordpiece`.

    Source: Kudo 2018, sections 3.2 and 3.3, as in the `tokenizers` library.
    """
    tokenizer = _untrained(models.Unigram(), lowercase=lowercase)
    ranked, num_needed, num_bytes = count_letters(tokenizer.normalizer, texts())
    least = len(SPECIAL_TOKENS) + num_needed + 1
    if not ranked:
        raise TokenizerError("an empty text has no pieces to learn; give text")
    usual = max(default_vocab_size(num_bytes), least * 3 // 2)
    vocab_size = _size(vocab_size, usual, least, f"the {num_needed} letters that make up nearly all of this text")
    # Rare letters are left out: the trainer would give each an entry.
    table = defaultdict(lambda: " ", {ord(a): a for a in ranked[: max(num_needed, vocab_size * 3 // 4)]})
    normalizer = _untrained(models.Unigram(), lowercase=lowercase).normalizer  # training locks the other one
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), unk_token="[UNK]", show_progress=False
    )
    tokenizer.train_from_iterator((normalizer.normalize_str(text).translate(table) for text in texts()), trainer)
    vocab = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    scores = {piece: score for piece, score in vocab.items() if piece not in SPECIAL_TOKENS}
    # Removes randomness from the pieces' scores, and sorts the pieces by score and spelling alone. The library visits
    # words and letters in the order of a hash map. Two runs over the same text choose the same pieces, but sums of
    # probabilities differ by some 1e-15, so scores are rounded to 1e-6 (about once in 10^5 vocabularies one lies at a
    # rounding edge). Letters that the training dropped come back with the lowest score, the next one with 1e-4 more,
    # and so on: here all get the lowest.
    letters = [piece for piece in scores if len(piece) == 1]
    floor = min(scores[letter] for letter in letters)
    for letter in letters:
        steps = (scores[letter] - floor) / 1e-4
        if steps < len(letters) and abs(steps - round(steps)) < 1e-6:
            scores[letter] = floor
    rounded = ((piece, round(score, 6)) for piece, score in scores.items())
    pieces = sorted(rounded, key=lambda entry: (-entry[1], entry[0]))
    model = models.Unigram([*((token, 0.0) for token in SPECIAL_TOKENS), *pieces], unk_id=1, byte_fallback=False)
    return with_special_tokens(_untrained(model, lowercase=lowercase), mask_takes_space=True)


def _untrained(model: models.Unigram, *, lowercase: bool) -> tokenizers.Tokenizer:
    """A tokenizer around a model. Only the first text gets a mark, so that text after `[MASK]` keeps its own."""
    tokenizer = tokenizers.Tokenizer(model)
    spaces = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(r"\s+"), " ")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *spaces] if lowercase else spaces)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first"), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="first")
    return tokenizer


def train_chars(
    texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False, bare: bool = False
) -> tokenizers.Tokenizer:
    """Makes a token of each character of the text, white space included; decoding gives exactly the text.

    For sequences (proteins, DNA), small texts and languages without spaces. The characters follow the special tokens in
    the order of their code points. If there are more than `vocab_size`, the rarest become `[UNK]`. A `bare` tokenizer
    has only the special tokens `[PAD]` and `[MASK]`: any other character is an error.
    """
    special = BARE_TOKENS if bare else SPECIAL_TOKENS
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    ranked, _, _ = count_letters(tokenizer.normalizer, texts(), spaces=True)
    if bare:
        holds = f"the {len(ranked)} characters of this text, and a bare tokenizer has no [UNK]"
        _size(vocab_size, 0, len(ranked) + len(special), holds, spare=0)
    letters = sorted(ranked if vocab_size is None else ranked[: vocab_size - len(special)])
    if not letters:
        raise TokenizerError("an empty text has no characters to learn; give text")
    vocab = {token: id_ for id_, token in enumerate([*special, *letters])}
    # BPE without merges leaves characters as they are.
    tokenizer.model = models.BPE(vocab, [], unk_token=None if bare else "[UNK]")
    tokenizer.decoder = decoders.Fuse()
    return with_special_tokens(tokenizer, mask_takes_space=False)


def train_tokenizer(texts: Texts, settings: TokenizerSettings) -> Tokenizer:
    size, lowercase = settings.vocab_size, settings.lowercase
    if settings.kind == "char":
        return Tokenizer(train_chars(texts, vocab_size=size, lowercase=lowercase, bare=bool(settings.bare)))
    train = {"wordpiece": train_wordpiece, "bpe": train_bpe, "unigram": train_unigram}[settings.kind]
    return Tokenizer(train(texts, vocab_size=size, lowercase=lowercase))
