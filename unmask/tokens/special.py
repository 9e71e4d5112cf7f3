"""Special tokens: what they are called, where they stand, and how a trained tokenizer gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, processors

from unmask.errors import TokenizerError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The same roles as BERT, RoBERTa, XLNet and ESM spell them.
SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special tokens that an encoder needs."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


def find_special_ids(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> SpecialIds:
    """Finds the special tokens.

    Args:
        backend: A tokenizer.
        names: Role to token, where it is known; the usual spellings are tried for other roles.

    Raises:
        TokenizerError: A role has no token.
    """
    found: dict[str, int] = {}
    for role, usual in SPELLINGS.items():
        spellings = [names[role], *usual] if role in names else usual
        ids = [id_ for token in spellings if (id_ := backend.token_to_id(token)) is not None]
        if not ids:
            raise TokenizerError(
                f"the tokenizer has no {role} token ({' or '.join(spellings)}); an encoder needs one: add it with "
                f'tokenizer.add_special_tokens(["{spellings[0]}"]) and save the tokenizer again'
            )
        found[role] = ids[0]
    return SpecialIds(**found)


def with_special_tokens(tokenizer: tokenizers.Tokenizer, *, mask_takes_space: bool) -> tokenizers.Tokenizer:
    """Makes the five tokens special and puts `[CLS]` and `[SEP]` around texts. Their entries must be there.

    Args:
        tokenizer: Changed in place.
        mask_takes_space: Whether the space before `[MASK]` in a prompt belongs to it. It must where words carry the
            space before them: training hides `Ġking`, so a prompt must not offer a space and then a mask.
    """
    ids = {token: tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=list(ids.items())
    )
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, lstrip=mask_takes_space and token == "[MASK]")
            for token in SPECIAL_TOKENS
        ]
    )
    return tokenizer
