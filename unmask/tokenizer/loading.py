"""Tokenizers in every form that users have them, BERT's `vocab.txt` among them.

A `vocab.txt` is a WordPiece vocabulary, an entry a line, without a word on how text is normalised. A folder of
transformers holds its settings beside the vocabulary: the names of special tokens, and for `vocab.txt` what is done to
letters. It also names the class, which says what other files mean:

    tokenizer.json                                        read as it is
    vocab.txt of BERT's classes, or of none               WordPiece, built here
    vocab.txt of ESM's                                    built here (`unmask.tokenizer.esm`)
    other vocab.txt, vocab.json, SentencePiece's files    transformers makes a tokenizer.json of it
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from unmask.errors import TokenizerError
from unmask.files import absence
from unmask.hub import TOKENIZER, local_path
from unmask.tokenizer.conversion import OTHER_FORMS, convert, understood
from unmask.tokenizer.esm import ESM_CLASS, USUAL, read_esm_vocab
from unmask.tokenizer.special_tokens import SPECIAL_TOKENS, SPELLINGS, with_special_tokens
from unmask.tokenizer.tokenizer import ANY_CLASS, CONFIG, Tokenizer
from unmask.values import load_json

log = logging.getLogger(__name__)

PREFIX = "##"
_MOST_BYTES = 256 << 20  # of a tokenizer; those of a million entries have 60 million
# Classes of transformers that read a vocab.txt as BERT does.
_AS_BERT = (
    None, "BertTokenizer", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "LayoutLMTokenizer",
    "LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer", "TokenizersBackend",
)  # fmt: skip
# What is read from such a folder is saved under the same name. Other classes have settings of their own beside the
# special tokens, which are not kept, so that a tokenizer.json of theirs is saved as that of any kind.
_KEPT_CLASSES = ("XLMRobertaTokenizer", "CamembertTokenizer")


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
    vocab = _read_entries(file, "BERT's")
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


def _read_entries(file: Path, whose: str) -> dict[str, int]:
    """The entries of a `vocab.txt` and their ids.

    Raises:
        TokenizerError: The file is not UTF-8, or holds an entry twice.
    """
    if (size := file.stat().st_size) > _MOST_BYTES:
        raise TokenizerError(f"{file}: {size:,} bytes, more than the {_MOST_BYTES:,} that a vocabulary may have")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file}: not UTF-8 ({error}); give {whose} vocabulary, an entry a line") from error
    vocab: dict[str, int] = {}
    for id_, line in enumerate(text.removesuffix("\n").split("\n")):
        entry = line.rstrip("\r")
        if entry in vocab:
            raise TokenizerError(
                f"{file}: line {id_ + 1} repeats {entry!r} of line {vocab[entry] + 1}; give a vocabulary whose entries "
                "differ"
            )
        vocab[entry] = id_
    return vocab


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        source: A `tokenizer.json` or a `vocab.txt`, or a folder that holds one (a transformers folder does); or, as a
            string, the name of a model on the hub. What a folder holds in other forms transformers reads.

    Raises:
        TokenizerError: There is none, it is damaged, it lacks what an encoder needs, the configuration beside a
            `vocab.txt` says of its text what is neither true nor false, or it needs transformers, which is not
            installed or has no fast tokenizer of this kind.
    """
    file = source = local_path(source, TOKENIZER)
    is_folder = os.path.isdir(source)
    if is_folder:
        file = next((f for name in ("tokenizer.json", "vocab.txt") if (f := source / name).is_file()), source)
    config = _read_config(source if is_folder else file.parent)
    kind = class_of(config)
    if is_folder and _is_of_others(source, file, kind):
        theirs = convert(source)
        return _wrapped(source, theirs.backend_tokenizer, _names_of_roles(theirs.special_tokens_map), kind)
    if not os.path.isfile(file):
        lack = "there is no tokenizer.json and no vocab.txt"
        if os.path.lexists(source) and not is_folder:
            lack = absence(source)
        raise TokenizerError(f"{source}: {lack}; give a folder that holds one, or that file")
    names: dict[str, str | None] = {**_names_of_roles(config)}
    if file.suffix != ".txt":
        backend = read_tokenizer_json(file)
    elif kind == ESM_CLASS:
        names = _names_in_esm(config)
        backend = read_esm_vocab(file, _read_entries(file, "ESM's"), names)
    else:
        backend = read_vocab_txt(
            file,
            lowercase=_flag(config, "do_lower_case", file),
            strip_accents=_flag(config, "strip_accents", file),
            part_ideographs=_flag(config, "tokenize_chinese_chars", file) is not False,
        )
    return _wrapped(file, backend, names, kind)


def _is_of_others(folder: Path, file: Path, kind: str | None) -> bool:
    """Whether a folder's tokenizer is in a form that transformers must convert.

    Args:
        folder: The folder.
        file: Its tokenizer.json or vocab.txt; the folder itself where it has neither.
        kind: The class that it names.
    """
    if file.name == "vocab.txt":
        return kind not in (*_AS_BERT, ESM_CLASS)
    return file == folder and any((folder / name).is_file() for name in OTHER_FORMS)


def read_tokenizer_json(file: Path) -> tokenizers.Tokenizer:
    """What the `tokenizers` library makes of a file.

    Raises:
        TokenizerError: It is too large, or none of its files.
    """
    if (size := file.stat().st_size) > _MOST_BYTES:
        raise TokenizerError(f"{file}: {size:,} bytes, more than the {_MOST_BYTES:,} that a tokenizer may have")
    with understood(file):
        return tokenizers.Tokenizer.from_file(str(file))


def _wrapped(
    where: Path, backend: tokenizers.Tokenizer, names: Mapping[str, str | None], kind: str | None
) -> Tokenizer:
    with understood(where):
        try:
            return Tokenizer(backend, names, kind if kind in _KEPT_CLASSES else ANY_CLASS)
        except TokenizerError as error:
            raise TokenizerError(f"{where}: {error}") from error


def class_of(config: Mapping[str, Any]) -> str | None:
    """The class that the configuration beside a tokenizer names; transformers has some twice, as `...Fast` too."""
    name = config.get("tokenizer_class")
    return name.removesuffix("Fast") if isinstance(name, str) and name != ANY_CLASS else None


def _names_in_esm(config: Mapping[str, Any]) -> dict[str, str | None]:
    """The special tokens that ESM's configuration names. Its separator is the end of a text, which may be left out."""
    names: dict[str, str | None] = {**USUAL, **_names_of_roles(config)}
    if "eos_token" in config:
        names["sep"] = _content(config["eos_token"])
    return names


def _read_config(folder: Path) -> dict[str, Any]:
    """What transformers wrote beside a tokenizer, where it did."""
    file = folder / CONFIG
    if not file.is_file():
        return {}
    try:
        config = load_json(file)
    except (OSError, ValueError) as error:
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
        if (token := _content(config.get(f"{role}_token"))) is not None:
            found[role] = token
    return found


def _content(token: Any) -> str | None:
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


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
