"""Special tokens: what they are called, where they stand, and how a trained tokenizer gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, processors

from unmask.errors import TokenizerError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MOST_IDS = 1 << 24  # tables of a vocabulary have a row for each id, also where there are gaps
BARE_TOKENS = ("[PAD]", "[MASK]")
# The same roles as BERT, RoBERTa, XLNet and ESM spell them.
SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}
_BARE_WITHOUT = ("unk", "cls", "sep")


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special tokens that an encoder needs. A bare tokenizer of characters has only pad and mask."""

    pad: int
    unk: int | None
    cls: int | None
    sep: int | None
    mask: int

    @property
    def around(self) -> list[int]:
        """Those that stand around each text."""
        return [id_ for id_ in (self.cls, self.sep) if id_ is not None]


def find_special_ids(backend: tokenizers.Tokenizer, names: Mapping[str, str | None]) -> SpecialIds:
    """Finds the special tokens. Only a tokenizer that has neither [UNK] nor [CLS] nor [SEP] may lack them.

    Args:
        backend: A tokenizer.
        names: Role to token, where it is known, or to None where the tokenizer has none; the usual spellings are tried
            for other roles.

    Raises:
        TokenizerError: A role has no token.
    """
    found: dict[str, int | None] = {}
    left_out = {role for role, token in names.items() if token is None and role in _BARE_WITHOUT}
    for role, usual in SPELLINGS.items():
        named = names.get(role)
        spellings = () if role in left_out else usual if named is None else (named, *usual)
        ids = [id_ for token in spellings if (id_ := backend.token_to_id(token)) is not None]
        found[role] = ids[0] if ids else None
    bare = all(found[role] is None for role in _BARE_WITHOUT)
    for role, usual in SPELLINGS.items():
        if found[role] is None and role not in left_out and not (bare and role in _BARE_WITHOUT):
            raise TokenizerError(
                f"the tokenizer has no {role} token ({' or '.join(usual)}), which an encoder needs: for a new model, "
                f'add it with tokenizer.add_special_tokens(["{usual[0]}"]) and save the tokenizer again; a model that '
                "was trained without one has no embedding of it, and cannot be used here"
            )
    pad, mask = found["pad"], found["mask"]
    assert pad is not None, "never left out"
    assert mask is not None, "never left out"
    return SpecialIds(pad=pad, unk=found["unk"], cls=found["cls"], sep=found["sep"], mask=mask)


def with_special_tokens(tokenizer: tokenizers.Tokenizer, *, mask_takes_space: bool) -> tokenizers.Tokenizer:
    """Makes the special tokens special, and puts `[CLS]` and `[SEP]` around texts where the vocabulary has them.

    Args:
        tokenizer: Changed in place.
        mask_takes_space: Whether the space before `[MASK]` in a prompt belongs to it. It must where words carry the
            space before them: training hides `Ġking`, so a prompt must not offer a space and then a mask.
    """
    known = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is not None]
    if "[CLS]" in known:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
        )
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, lstrip=mask_takes_space and token == "[MASK]")
            for token in known
        ]
    )
    return tokenizer
