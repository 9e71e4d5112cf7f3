"""Tokenizers in every form that users have them, BERT's `vocab.txt` among them.

A `vocab.txt` is a WordPiece vocabulary, an entry a line, without a word on how text is normalised. A folder of
transformers holds its settings beside the vocabulary: the names of special tokens, and for `vocab.txt` what is done to
letters. It also names the class, which says what other files mean:

    tokenizer.json                                        read as it is
    vocab.txt of BERT's classes, or of none               WordPiece, built here
    vocab.txt of ESM's                                    built here (`unmask.tokenizer.loading`)
    other vocab.txt, vocab.json, SentencePiece's files    transformers makes a tokenizer.json of it
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from unmask.core.errors import TokenizerError, load_json, shown, too_high
from unmask.core.files import absence
from unmask.core.hub import TOKENIZER, local_path
from unmask.tokenizer.tokenizer import (
    ANY_CLASS,
    CONFIG,
    MOST_IDS,
    SPECIAL_TOKENS,
    SPELLINGS,
    Tokenizer,
    with_special_tokens,
)

# ----------------------------------------
# Tokenizers without a tokenizer.json, which transformers makes fast ones of.
#
# Its conversions are what its own models run with, so ids are those of transformers. Tokenizers that it has in Python
# only (BertJapanese's, PhoBERT's) cannot be converted: nothing else would give their ids.

_MOST_LAYERS = 10_000  # or labels, heads, ...
_LINE = 300  # letters of what a library said
OTHER_FORMS = ("vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")


def convert(folder: Path) -> Any:
    """The folder's tokenizer as a fast one of transformers, made without running code from the folder.

    Args:
        folder: With a vocabulary, and a tokenizer_config.json or config.json that says what it is.

    Raises:
        TokenizerError: transformers is not installed, cannot read the folder, or has no fast tokenizer of this kind.
    """
    try:
        import transformers
    except ImportError as error:
        raise TokenizerError(
            f"{folder}: there is no tokenizer.json, and transformers, which makes one of other files, is not "
            "installed: pip install 'unmask[transformers]'"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    _check_ids(folder / "vocab.json")
    _check_config(folder / CONFIG)
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise TokenizerError(
            f"{folder}: no tokenizer that transformers reads ({_reason(error)}){_hint(folder)}"
        ) from error
    backend = getattr(theirs, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(
            f"{folder}: transformers runs {type(theirs).__name__} in Python only and has no fast form of it, which is "
            "what is read here; give a folder with a tokenizer.json"
        )
    special = set(theirs.all_special_tokens)
    if not any(token not in special for token in backend.get_vocab()):  # what it makes where it finds nothing
        raise TokenizerError(f"{folder}: no tokenizer that transformers reads (it has no vocabulary){_hint(folder)}")
    return theirs


def _check_ids(file: Path) -> None:
    """Ids far apart end the process within the library."""
    if not file.is_file():
        return
    try:
        entries = load_json(file)
        highest = max((id_ for id_ in entries.values() if isinstance(id_, int)), default=0)
    except (OSError, ValueError, AttributeError) as error:
        raise TokenizerError(f"{file}: no table of entries and their ids ({error}); give another copy") from error
    if highest >= MOST_IDS:
        raise TokenizerError(
            f"{file}: the vocabulary has the id {shown(highest)}, but ids up to {MOST_IDS - 1:,} are read; give a "
            "tokenizer whose ids count its entries"
        )


def _check_config(file: Path) -> None:
    """transformers reads it to know the tokenizer's kind, and makes lists of as many entries as there are layers."""
    if not file.is_file():
        return
    try:
        found = too_high(load_json(file), _MOST_LAYERS)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file}: not JSON ({error}); give another copy") from error
    if found is not None:
        raise TokenizerError(
            f"{file}: {shown(found[0])} = {shown(found[1])} is no number that a model has of anything; give the "
            "configuration that belongs to it"
        )


def is_of_library(error: BaseException) -> bool:
    """Whether it is an error, or a panic of Rust, which Python takes for more than an error."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def understood(file: Path) -> Iterator[None]:
    """Makes errors of ours of whatever the `tokenizers` library raises of a file.

    Raises:
        TokenizerError: It cannot read it, or encode with what it has read.
    """
    try:
        yield
    except TokenizerError:
        raise
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise TokenizerError(f"{file}: not a tokenizer of the `tokenizers` library: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:_LINE]


def _hint(folder: Path) -> str:
    """The way out where a package is missing, which transformers does not name in each of its errors."""
    files = [name for name in OTHER_FORMS if name.endswith(".model") and (folder / name).is_file()]
    if not files or find_spec("sentencepiece") is not None:
        return ""
    return f"; {files[0]} may need pip install sentencepiece protobuf"


# ----------------------------------------
# The tokenizer of ESM and its like, which transformers has in Python only: a `vocab.txt`, an entry a line.
#
#     text      M K x L <mask> abc.            vocabulary  <cls> <pad> <eos> <unk> L A G ... M K . - <mask>
#     tokens    M K <unk> L <mask> <unk> .
#
# An entry stands wherever its letters do, the longest first; white space parts and is no token; whatever lies between,
# up
# to the next entry or space, is unknown as a whole. So it is built here of parts of the `tokenizers` library, which
# give
# the same ids. Entries in angle brackets are special tokens.
#
# Source: `EsmTokenizer` in transformers. Models of nucleotides have entries of several letters, and some no `<eos>`.

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
