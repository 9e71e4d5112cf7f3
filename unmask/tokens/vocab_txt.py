"""BERT's `vocab.txt`: a WordPiece vocabulary, an entry a line, without a word on how text is normalised."""

from __future__ import annotations

import logging
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from unmask.errors import TokenizerError
from unmask.tokens.special import SPECIAL_TOKENS, with_special_tokens

log = logging.getLogger(__name__)

PREFIX = "##"


def read_vocab_txt(
    file: Path, *, lowercase: bool | None, strip_accents: bool | None = None, part_ideographs: bool = True
) -> Tokenizer:
    """Builds BERT's tokenizer from its vocabulary.

    Args:
        file: An entry a line; the number of the line, from 0 on, is the id.
        lowercase: Whether text is lowercased; None asks the vocabulary: where no entry has a capital letter, it was
            made of lowercased text. The guess is logged.
        strip_accents: Whether accents are taken away; None: where text is lowercased.
        part_ideographs: Whether each Chinese character is a word.

    Raises:
        TokenizerError: The file is not UTF-8, holds an entry twice, or lacks a special token.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file}: not UTF-8 ({error}); give BERT's vocabulary, an entry a line") from error
    entries = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    vocab: dict[str, int] = {}
    for id_, entry in enumerate(entries):
        if entry in vocab:
            raise TokenizerError(
                f"{file}: line {id_ + 1} repeats {entry!r} of line {vocab[entry] + 1}; give a vocabulary whose entries "
                "differ"
            )
        vocab[entry] = id_
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise TokenizerError(
            f"{file}: {len(vocab):,} entries, but none is {' or '.join(missing)}; give BERT's vocabulary, an entry a "
            "line, or a tokenizer.json"
        )
    if lowercase is None:
        lowercase = all(entry == entry.lower() for entry in vocab if entry not in SPECIAL_TOKENS and entry[:1] != "[")
        log.info(
            "%s: its entries say %s (do_lower_case in tokenizer_config.json would decide it)",
            file,
            "that case is folded" if lowercase else "that case is kept",
        )
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=PREFIX))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=part_ideographs
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    return with_special_tokens(tokenizer, mask_takes_space=False)
