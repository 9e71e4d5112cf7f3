"""A tokenizer of characters: for sequences (proteins, DNA), small texts and languages without spaces."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers

from unmask.errors import TokenizerError
from unmask.tokens.letters import Texts, count_letters
from unmask.tokens.special import BARE_TOKENS, SPECIAL_TOKENS, with_special_tokens


def train_chars(
    texts: Texts, *, vocab_size: int | None = None, lowercase: bool = False, bare: bool = False
) -> Tokenizer:
    """Makes a token of each character of the text, white space included; decoding gives exactly the text.

    Args:
        texts: Called once, gives the texts.
        vocab_size: Most entries, special tokens included: rarer characters become `[UNK]`. None takes all.
        lowercase: Whether case is folded.
        bare: Whether `[PAD]` and `[MASK]` are the only special tokens: nothing stands around a text, and a character
            that was not met is an error.

    Returns:
        A tokenizer whose ids 0 to 4 are `[PAD] [UNK] [CLS] [SEP] [MASK]` (bare: 0 and 1 are `[PAD] [MASK]`); the
        characters follow in the order of their code points, so the same characters always give the same tokenizer.

    Raises:
        TokenizerError: There is no text, or the characters do not fit a bare tokenizer.
    """
    special = BARE_TOKENS if bare else SPECIAL_TOKENS
    limit = None if vocab_size is None else vocab_size - len(special)
    tokenizer = Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    ranked = count_letters(tokenizer.normalizer, texts(), spaces=True).ranked
    if bare and limit is not None and len(ranked) > limit:
        raise TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold the {len(ranked)} characters of this text, and a bare tokenizer "
            f"has no [UNK]; give at least --vocab-size {len(ranked) + len(special)}, or none"
        )
    letters = sorted(ranked[:limit])
    if not letters:
        raise TokenizerError("no characters can be learned from an empty text; give text")
    vocab = {token: id_ for id_, token in enumerate([*special, *letters])}
    tokenizer.model = models.BPE(
        vocab, [], unk_token=None if bare else "[UNK]"
    )  # BPE without merges leaves characters as they are
    tokenizer.decoder = decoders.Fuse()
    return with_special_tokens(tokenizer, mask_takes_space=False)
