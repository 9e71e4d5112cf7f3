"""Training a WordPiece tokenizer. The same text always gives the same vocabulary.

The trainer of the `tokenizers` library alone does not: it numbers the letters in the order of a hash map, and breaks
ties between equally frequent pairs by these numbers, so two runs over the same text differ by some tens of entries.
Here the letters are counted first and handed to the trainer in a fixed order, which makes all that follows fixed.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.errors import TokenizerError
from unmask.tokens.letters import MAX_LETTERS, Texts, frequent_letters
from unmask.tokens.special import SPECIAL_TOKENS, with_special_tokens

PREFIX = "##"


def default_vocab_size(num_bytes: int) -> int:
    """A vocabulary that fits the corpus: 8,192 entries at 10 MB, growing with the power 0.45, a multiple of 64.

    A rare entry is seen too seldom to be learned: with this rule the average entry stands some hundred times in a
    megabyte of text and some thousand times in 100 MB. At least 512 and at most 32,768 entries.
    """
    size = 8192 * (num_bytes / 10e6) ** 0.45
    return min(max(round(size / 64) * 64, 512), 32_768)


def train_wordpiece(texts: Texts, *, vocab_size: int, lowercase: bool = False) -> Tokenizer:
    """Trains a WordPiece tokenizer with BERT's normaliser and pre-tokenizer.

    Args:
        texts: Called twice, gives the texts; only counts of words and letters are held in memory.
        vocab_size: Entries, special tokens included.
        lowercase: Whether case is folded.

    Returns:
        A tokenizer whose ids 0 to 4 are `[PAD] [UNK] [CLS] [SEP] [MASK]`. It may hold fewer entries than asked
        where the text has no more words.

    Raises:
        TokenizerError: The letters alone do not fit the vocabulary.

    Source: Schuster and Nakajima 2012; trained by merges as in the `tokenizers` library. Letters beyond the 1,000
    most frequent become `[UNK]`, as there.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = frequent_letters(tokenizer, texts())
    inside = [letter for letter in letters if len(tokenizer.pre_tokenizer.pre_tokenize_str(f"a{letter}a")) == 1]
    alphabet = letters + [PREFIX + letter for letter in inside]
    if len(SPECIAL_TOKENS) + len(alphabet) > vocab_size:
        raise TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold the {len(letters)} letters of this text, at the beginning of "
            f"words and within them; give at least --vocab-size {len(SPECIAL_TOKENS) + len(alphabet) + 64}"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix=PREFIX,
        limit_alphabet=MAX_LETTERS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return _finished(tokenizer)


def _finished(trained: Tokenizer) -> Tokenizer:
    """The trained vocabulary in a tokenizer of its own, in which only the special tokens are special."""
    vocab = trained.get_vocab(with_added_tokens=True)
    model = models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=PREFIX)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = trained.normalizer
    tokenizer.pre_tokenizer = trained.pre_tokenizer
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    return with_special_tokens(tokenizer, mask_takes_space=False)
