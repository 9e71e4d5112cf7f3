"""The tokenizer of ESM and its like, which transformers has in Python only: a `vocab.txt`, an entry a line.

    text      M K x L <mask> abc.            vocabulary  <cls> <pad> <eos> <unk> L A G ... M K . - <mask>
    tokens    M K <unk> L <mask> <unk> .

An entry stands wherever its letters do, the longest first; white space parts and is no token; whatever lies between, up
to the next entry or space, is unknown as a whole. So it is built here of parts of the `tokenizers` library, which give
the same ids. Entries in angle brackets are special tokens.

Source: `EsmTokenizer` in transformers. Models of nucleotides have entries of several letters, and some no `<eos>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers, processors

from unmask.errors import TokenizerError

ESM_CLASS = "EsmTokenizer"
USUAL = {"pad": "<pad>", "unk": "<unk>", "cls": "<cls>", "sep": "<eos>", "mask": "<mask>"}
_SPACE = r"[\s\x{1c}-\x{1f}]+"  # what Python's `str.split` parts at
_BRACKETS = re.compile(r"<[^<>\s]+>")


def read_esm_vocab(file: Path, entries: Mapping[str, int], roles: Mapping[str, str | None]) -> tokenizers.Tokenizer:
    """Builds the tokenizer.

    Args:
        file: For errors.
        entries: Its entries and their ids.
        roles: The special tokens; those that nobody named are the usual ones. A separator of None is put behind no
            text.

    Raises:
        TokenizerError: The vocabulary lacks one of them.
    """
    named = {role: token for role, token in roles.items() if token is not None}
    if missing := [token for token in named.values() if token not in entries]:
        raise TokenizerError(
            f"{file}: {len(entries):,} entries, but none is {' or '.join(missing)}; give ESM's vocabulary, an entry a "
            "line, with the special tokens that tokenizer_config.json names"
        )
    special = [entry for entry in entries if entry in named.values() or _BRACKETS.fullmatch(entry)]
    letters = sorted((entry for entry in entries if entry and entry not in special), key=len, reverse=True)
    tokenizer = tokenizers.Tokenizer(models.WordLevel(dict(entries), unk_token=named["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPACE), "removed"),
            # Where special tokens are letters like any other, their names are not to be looked up as a whole.
            pre_tokenizers.Split(Regex(f"(?={_any(special)})."), "isolated"),
            pre_tokenizers.Split(Regex(_any(letters)), "isolated"),
        ]
    )
    cls, sep = named["cls"], named.get("sep")
    end = "" if sep is None else f" {sep}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A{end}",
        pair=None if sep is None else f"{cls} $A {sep} $B {sep}",
        special_tokens=[(token, entries[token]) for token in (cls, sep) if token is not None],
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _any(choices: list[str]) -> str:
    """A pattern of any of these."""
    return f"(?:{'|'.join(map(re.escape, choices))})"
