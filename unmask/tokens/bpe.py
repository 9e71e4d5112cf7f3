"""Training a byte-level BPE tokenizer: GPT-2's and RoBERTa's kind. Every text can be spelled, there is no unknown.

The library's trainer is deterministic here, unlike for WordPiece: its letters are the 256 bytes, handed over in a
fixed order, and ties between equally frequent pairs are broken by the numbers of the pairs' parts.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.errors import TokenizerError
from unmask.tokens.letters import Texts, default_vocab_size
from unmask.tokens.special import SPECIAL_TOKENS, with_special_tokens


def train_bpe(
    texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False, add_prefix_space: bool = False
) -> Tokenizer:
    """Trains a byte-level BPE tokenizer with GPT-2's pre-tokenizer.

    Args:
        texts: Called once, or twice to size the vocabulary; gives the texts; only counts of words are held in memory.
        vocab_size: Entries, special tokens and the 256 bytes included; None fits them to the text.
        lowercase: Whether case is folded.
        add_prefix_space: Whether a text is read as if a space stood before it, so that its first word is spelled
            like the same word elsewhere. Without, as in RoBERTa and ModernBERT, decoding gives exactly the text.
            With it, the library also puts a space behind every `[MASK]` of a prompt.

    Returns:
        A tokenizer whose ids 0 to 4 are `[PAD] [UNK] [CLS] [SEP] [MASK]` and 5 to 260 the bytes. It may hold fewer
        entries than asked where the text has no more pairs.

    Raises:
        TokenizerError: The bytes do not fit the vocabulary.

    Source: Sennrich et al. 2016 (BPE); Radford et al. 2019, section 2.2 (bytes).
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size is None:
        vocab_size = default_vocab_size(sum(len(text.encode()) for text in texts()))
    if vocab_size < least:
        raise TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold the {len(alphabet)} bytes and {len(SPECIAL_TOKENS)} special "
            f"tokens of byte-level BPE; give at least --vocab-size {least + 64}"
        )
    tokenizer = Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return with_special_tokens(tokenizer, mask_takes_space=True)
