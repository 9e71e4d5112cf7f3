"""Tokenizers in every form that users have them, BERT's `vocab.txt` among them.

A `vocab.txt` is a WordPiece vocabulary, an entry a line, without a word on how text is normalised. A folder of
transformers holds its settings beside the vocabulary: the names of special tokens, and for `vocab.txt` what is done to
letters.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from unmask.errors import TokenizerError
from unmask.hub import TOKENIZER, local_path
from unmask.tokenizer.special_tokens import SPECIAL_TOKENS, SPELLINGS, with_special_tokens
from unmask.tokenizer.tokenizer import CONFIG, Tokenizer

log = logging.getLogger(__name__)

PREFIX = "##"


def read_vocab_txt(
    file: Path, *, lowercase: bool | None, strip_accents: bool | None = None, part_ideographs: bool = True
) -> tokenizers.Tokenizer:
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
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=PREFIX))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=part_ideographs
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    return with_special_tokens(tokenizer, mask_takes_space=False)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        source: A `tokenizer.json` or BERT's `vocab.txt`, or a folder that holds one (a transformers folder does); or,
            as a string, the name of a model on the hub.

    Raises:
        TokenizerError: There is none, it is damaged, it lacks what an encoder needs, or the configuration beside a
            `vocab.txt` says of its text what is neither true nor false.
    """
    file = source = local_path(source, TOKENIZER)
    if source.is_dir():
        file = next((f for name in ("tokenizer.json", "vocab.txt") if (f := source / name).is_file()), source)
    if not file.is_file():
        raise TokenizerError(
            f"{source}: there is no tokenizer.json and no vocab.txt; give a folder that holds one, or that file"
        )
    config = _read_config(file.parent)
    if file.suffix == ".txt":
        backend = read_vocab_txt(
            file,
            lowercase=_flag(config, "do_lower_case", file),
            strip_accents=_flag(config, "strip_accents", file),
            part_ideographs=_flag(config, "tokenize_chinese_chars", file) is not False,
        )
    else:
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exceptions
            raise TokenizerError(f"{file}: not a tokenizer of the `tokenizers` library: {error}") from error
    try:
        return Tokenizer(backend, _names_of_roles(config))
    except TokenizerError as error:
        raise TokenizerError(f"{file}: {error}") from error


def _read_config(folder: Path) -> dict[str, Any]:
    """What transformers wrote beside a tokenizer, where it did."""
    file = folder / CONFIG
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{file}: not readable as JSON ({error}); mend it or take it away") from error
    return config if isinstance(config, dict) else {}


def _flag(config: Mapping[str, Any], name: str, file: Path) -> bool | None:
    """What the configuration beside a `vocab.txt` says of how text is read; None where it leaves that open."""
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise TokenizerError(f"{file.parent / CONFIG}: {name} is {value!r}; give true, false or null")


def _names_of_roles(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a configuration names, as strings or as tables with a `content`."""
    found = {}
    for role in SPELLINGS:
        token = config.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[role] = token
    return found


def as_tokenizer(source: Any) -> Tokenizer:
    """Takes a tokenizer in any of the forms that users have.

    Args:
        source: Ours, a `tokenizers.Tokenizer`, a transformers fast tokenizer, or what `load_tokenizer` takes.

    Raises:
        TokenizerError: It is none of these (a slow transformers tokenizer has no `tokenizers` backend).
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, tokenizers.Tokenizer):
        return Tokenizer(source)
    if isinstance(source, str | Path):
        return load_tokenizer(source)
    backend = getattr(source, "backend_tokenizer", None)
    if isinstance(backend, tokenizers.Tokenizer):
        return Tokenizer(backend, _names_of_roles(source.special_tokens_map))
    raise TokenizerError(
        f"{type(source).__name__} is not a tokenizer that can be used: give a tokenizers.Tokenizer, a transformers "
        "fast tokenizer, or a folder with a tokenizer.json or a vocab.txt"
    )
