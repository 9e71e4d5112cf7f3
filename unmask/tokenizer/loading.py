"""Loads tokenizers from all forms in use, such as `tokenizer.json` and BERT's `vocab.txt`.

A `vocab.txt` is a WordPiece vocabulary, one entry per line, which does not say how text is normalised. A folder of
transformers has a configuration beside it: the names of special tokens and, for BERT's classes, whether case and
accents are kept. It, or the model's config.json, also names the class, which says what other files mean:

    tokenizer.json                                        read directly; for BERT's classes the configuration decides
                                                          about case and accents, as in transformers
    vocab.txt of BERT's classes, or without a class       WordPiece, built here
    vocab.txt of ESM's class                              built here
    other vocab.txt, vocab.json, SentencePiece's files    converted by transformers
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from unmask.core.errors import TokenizerError, parse_json
from unmask.core.files import absence, say_once
from unmask.core.hub import CONFIG as MODEL_CONFIG
from unmask.core.hub import hub_name, lasting_name, local_path
from unmask.tokenizer.tokenizer import ANY_CLASS, CONFIG, SPECIAL_TOKENS, SPELLINGS, Tokenizer, with_special_tokens
from unmask.tokenizer.trainers import PREFIX, TokenizerSettings

_ADDED, _ROLES = "added_tokens.json", "special_tokens_map.json"
OTHER_FORMS = ("vocab.json", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")
# Classes of transformers that read a vocab.txt as BERT does.
_AS_BERT = (
    None, "BertTokenizer", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "LayoutLMTokenizer",
    "LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer", "TokenizersBackend",
)  # fmt: skip
# Tokenizer classes of model types whose vocab.txt is not BERT's, for folders that name no class.
_CLASSES = {"mpnet": "MPNetTokenizer", "esm": "EsmTokenizer"}
# Tokenizers of these classes are saved under the same class. Others have settings beside the special tokens that would
# be lost, so they are saved under the general class.
_SAVED_CLASSES = ("XLMRobertaTokenizer", "CamembertTokenizer")
log = logging.getLogger(__name__)
_quiet = threading.RLock()


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        source: A `tokenizer.json` or a `vocab.txt`, or a folder that holds one (such as a transformers folder); or, as
            a string, the name of a model on the hub. Other forms in a folder are converted by transformers.

    Raises:
        TokenizerError: There is no tokenizer, it or its configuration is damaged, it lacks what an encoder needs, or it
            needs transformers, which is not installed or has no fast tokenizer of this kind.
    """
    file = source = local_path(source, weights=False)
    is_folder = os.path.isdir(source)
    if is_folder:
        file = next((f for name in ("tokenizer.json", "vocab.txt") if (f := source / name).is_file()), source)
    config = _content_of((source if is_folder else file.parent) / CONFIG)
    class_name = config.get("tokenizer_class")
    if class_name is None and is_folder and file.name == "vocab.txt":  # config.json may name it
        of_model = _content_of(source / MODEL_CONFIG, "give another copy of the model")
        class_name = of_model.get("tokenizer_class") or _CLASSES.get(str(of_model.get("model_type")))
    # transformers has some classes twice, as `...Fast` too.
    kind = class_name.removesuffix("Fast") if isinstance(class_name, str) and class_name != ANY_CLASS else None
    is_foreign_vocab = file.name == "vocab.txt" and kind not in (*_AS_BERT, ESM_CLASS)
    is_other_form = file == source and any((source / name).is_file() for name in OTHER_FORMS)
    roles: dict[str, str | None] = {**_names_of_roles(config)}
    if is_folder and (is_foreign_vocab or is_other_form):
        theirs = _convert(source)
        file, backend = source, theirs.backend_tokenizer
        roles = {**_names_of_roles(theirs.special_tokens_map)}
    elif not os.path.isfile(file):
        problem = "there is no tokenizer.json and no vocab.txt"
        if os.path.lexists(source) and not is_folder:
            problem = absence(source)
        raise TokenizerError(f"{source}: {problem}; give a folder that holds one, or that file")
    elif file.suffix != ".txt":
        hint = "; give its folder, as transformers saves it" if file.name in OTHER_FORMS else ""
        with _tokenizer_errors(f"{file}: not a tokenizer of the `tokenizers` library", hint):
            backend = tokenizers.Tokenizer.from_file(str(file))
        if kind in _AS_BERT and kind not in (None, "TokenizersBackend"):
            _set_flags(backend, _bert_flags(file, config))
    elif kind == ESM_CLASS:
        roles = {**_ESM_ROLES, **roles}
        if "eos_token" in config:  # it may be left out
            roles["sep"] = _names_of_roles({"sep_token": config["eos_token"]}).get("sep")
        backend = _read_esm_vocab(file, roles)
    else:
        backend = _read_vocab_txt(file, config)
        _add_tokens(backend, file.parent, config)
    with _tokenizer_errors(f"{file}: not a tokenizer of the `tokenizers` library"):
        try:
            return Tokenizer(backend, roles, kind if kind in _SAVED_CLASSES else ANY_CLASS)
        except TokenizerError as error:
            raise TokenizerError(f"{file}: {error}") from error


def load_for_new_model(source: str) -> Tokenizer:
    """Loads the tokenizer that a new model is to be trained with, as `load_tokenizer`; one beside a model is that
    model's, and stays as it is.

    Training puts `[CLS]` and `[SEP]` around texts. Tokenizers trained with the `tokenizers` library often do not
    (`ByteLevelBPETokenizer`, `train_new_from_iterator` of GPT-2's), so a finished model would never see the form that
    it was trained on. Their copy here puts these tokens around texts, and its mask takes the space before it where
    tokens include that.
    """
    tokenizer, file = load_tokenizer(source), local_path(source, weights=False)
    backend, special = tokenizer.backend, tokenizer.special
    folder = file if file.is_dir() else file.parent
    # A hub's weights are not fetched; on this disk, a configuration alone is no model.
    may_have = hub_name(source) is not None or any(f.suffix in (".bin", ".safetensors") for f in folder.iterdir())
    is_of_model = may_have and (folder / MODEL_CONFIG).is_file()
    if is_of_model or not special.around or backend.encode("", add_special_tokens=True).ids == special.around:
        return tokenizer
    mask = backend.get_added_tokens_decoder().get(special.mask)
    takes_space = tokenizer.word_starts.spelling.family in ("byte_level", "metaspace") or (mask and mask.lstrip)
    names = tokenizer.special_names
    with _tokenizer_errors(f"{source}: its special tokens cannot be put around texts"):
        with_special_tokens(backend, mask_takes_space=bool(takes_space), names=list(names.values()))
    around = " and ".join(token for role in ("cls", "sep") if (token := names[role]) is not None)
    say_once(f"{source}: puts no {around} around texts, but training does; the new model's tokenizer will add them")
    return Tokenizer(backend, names, tokenizer.class_name)


def with_commit(settings: TokenizerSettings) -> TokenizerSettings:
    """The settings with a commit added to the name of a tokenizer on the hub, so that it always means the same."""
    if settings.path is None or hub_name(settings.path) is None:
        return settings
    return settings.model_copy(update={"path": lasting_name(settings.path, local_path(settings.path, weights=False))})


def as_tokenizer(source: Any) -> Tokenizer:
    """Accepts our `Tokenizer`, a `tokenizers.Tokenizer`, a transformers fast tokenizer, or what `load_tokenizer`
    accepts. Anything else raises a TokenizerError (a slow transformers tokenizer has no `tokenizers` backend)."""
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
        f"{type(source).__name__} is not a supported tokenizer: give a tokenizers.Tokenizer, a transformers "
        "fast tokenizer, or a folder with a tokenizer.json or a vocab.txt"
    )


def _content_of(file: Path, way_out: str = "fix or remove it") -> dict[str, Any]:
    """The content of a configuration; empty if there is none."""
    try:
        content = parse_json(file) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file}: not valid JSON ({error}); {way_out}") from error
    return content if isinstance(content, dict) else {}


def _names_of_roles(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a configuration names, as strings or as objects with a `content`."""
    named = {role: config.get(f"{role}_token") for role in SPELLINGS}
    names = {role: token.get("content") if isinstance(token, dict) else token for role, token in named.items()}
    return {role: token for role, token in names.items() if isinstance(token, str)}


@contextmanager
def _tokenizer_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turns errors of the libraries that read tokenizers into a TokenizerError."""
    try:
        yield
    except TokenizerError:
        raise
    except BaseException as error:
        # A panic of Rust is not an `Exception` in Python.
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
        raise TokenizerError(f"{what}: {reason}{hint}") from error


def _read_entries(file: Path, whose: str, needed: Iterable[str]) -> dict[str, int]:
    """Reads the entries of a `vocab.txt` with their ids, the line numbers, as transformers does: of equal entries the
    last counts. Lines without an entry become `[unused7]` and the like; empty lines at the end are ignored. A
    TokenizerError names the `needed` entries that are missing."""
    try:
        lines = file.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file}: not UTF-8 ({error}); give {whose} vocabulary, one entry per line") from error
    id_of = {entry: id_ for id_, entry in enumerate(lines) if entry}
    vocab: dict[str, int] = {}
    for id_, line in enumerate(lines):
        entry = line
        if id_of.get(line) != id_:  # no text reaches this row of the model, but the library wants it named
            entry = f"[unused{id_}]"
            while entry in id_of:
                entry = entry.replace("unused", "unused0")
        vocab[entry] = id_
    repeated = [f"{line!r} (line {id_ + 1})" for id_, line in enumerate(lines) if line and id_of[line] != id_]
    if repeated:
        first = ", ".join(repeated[:3])
        log.warning("%s: %d entries are repeated, and only the last of each counts: %s", file, len(repeated), first)
    if missing := [token for token in needed if token not in vocab]:
        problem = f"{len(vocab):,} entries, but none is {' or '.join(missing)}"
        raise TokenizerError(f"{file}: {problem}; give {whose} vocabulary, one entry per line")
    return vocab


def _bert_flags(file: Path, config: Mapping[str, Any]) -> dict[str, bool | None]:
    """The flags of BERT's normalizer that a configuration has, by the normalizer's names."""
    names = {
        "lowercase": "do_lower_case",
        "strip_accents": "strip_accents",
        "handle_chinese_chars": "tokenize_chinese_chars",
    }
    flags: dict[str, bool | None] = {ours: config[theirs] for ours, theirs in names.items() if theirs in config}
    for ours, value in flags.items():
        if not (value is None or isinstance(value, bool)):
            raise TokenizerError(f"{file.parent / CONFIG}: {names[ours]} is {value!r}; give true, false or null")
    return flags


def _set_flags(backend: tokenizers.Tokenizer, flags: Mapping[str, bool | None]) -> None:
    """Sets these flags of BERT's normalizer, in place: as in transformers, they take precedence over tokenizer.json."""
    if isinstance(normalizer := backend.normalizer, normalizers.BertNormalizer):
        for name, value in flags.items():
            if value is not None or name == "strip_accents":  # None: as `lowercase`
                setattr(normalizer, name, value)
        backend.normalizer = normalizer


def _read_vocab_txt(file: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    flags = _bert_flags(file, config)
    lowercase, strip_accents = flags.get("lowercase"), flags.get("strip_accents")
    parts_ideographs = flags.get("handle_chinese_chars") is not False
    vocab = _read_entries(file, "BERT's", SPECIAL_TOKENS)
    if lowercase is None:  # a vocabulary without capitals comes from lowercased text
        lowercase = all(entry == entry.lower() for entry in vocab if entry not in SPECIAL_TOKENS and entry[:1] != "[")
        stripped = ("".join(sign for sign in normalize("NFD", entry) if category(sign) != "Mn") for entry in vocab)
        if lowercase and strip_accents is None and any(map(str.__ne__, vocab, stripped)):
            strip_accents = False  # BERT drops accents and takes Korean syllables apart, but here entries have them
        case = f"is folded{', but accents count' if strip_accents is False else ''}" if lowercase else "counts"
        log.info("%s: judging by its entries, case %s (set do_lower_case in %s to decide it)", file, case, CONFIG)
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix=PREFIX))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=parts_ideographs
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    return with_special_tokens(tokenizer, mask_takes_space=False)


def _add_tokens(backend: tokenizers.Tokenizer, folder: Path, config: Mapping[str, Any]) -> None:
    """Adds the tokens that files beside a `vocab.txt` define for ids after its own, as transformers does."""
    try:
        older, roles = (parse_json(f) if (f := folder / name).is_file() else {} for name in (_ADDED, _ROLES))
        extra = [token for each in (config, roles) for token in each.get("additional_special_tokens") or []]
        special = {token["content"] if isinstance(token, dict) else token for token in extra}
        tokens = {id_: AddedToken(t, special=t in special, normalized=t not in special) for t, id_ in older.items()}
        for id_, flags in (config.get("added_tokens_decoder") or {}).items():
            tokens[int(id_)] = AddedToken(**{flag: value for flag, value in flags.items() if flag != "__type"})
        for id_, token in sorted(tokens.items()):
            backend.add_tokens([token])
            if (ours := backend.token_to_id(token.content)) != id_:
                raise ValueError(f"{token.content!r} has the id {id_} there, but {ours} in the tokenizer")
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise TokenizerError(
            f"{folder}: its added tokens cannot be used ({error}); fix {_ADDED} or {CONFIG}"
        ) from error


# ESM's tokenizer and similar ones, which transformers has in Python only. A `vocab.txt` has one entry per line.
#
#     text      M K x L <mask> abc.            vocabulary  <cls> <pad> <eos> <unk> L A G ... M K . - <mask>
#     tokens    M K <unk> L <mask> <unk> .
#
# An entry matches wherever its letters occur, the longest first. White space separates and gives no token. Anything in
# between, up to the next entry or space, is one unknown token. Entries in angle brackets are special tokens. Models of
# nucleotides have entries of several letters, and some have no `<eos>`. Source: `EsmTokenizer` in transformers.

ESM_CLASS = "EsmTokenizer"
_ESM_ROLES = {"pad": "<pad>", "unk": "<unk>", "cls": "<cls>", "sep": "<eos>", "mask": "<mask>"}
_SPACE = r"[\s\x{1c}-\x{1f}]+"  # where Python's `str.split` splits
_BRACKETS = re.compile(r"<[^<>\s]+>")


def _read_esm_vocab(file: Path, roles: Mapping[str, str | None]) -> tokenizers.Tokenizer:
    """Builds ESM's tokenizer from parts of the `tokenizers` library, with the same ids. If `roles` gives None as
    separator, none is added after a text."""
    token_of = {role: token for role, token in roles.items() if token is not None}
    entries = _read_entries(file, "ESM's", token_of.values())
    special = [entry for entry in entries if entry in token_of.values() or _BRACKETS.fullmatch(entry)]
    letters = sorted((entry for entry in entries if entry and entry not in special), key=len, reverse=True)
    any_special, any_letters = (f"(?:{'|'.join(map(re.escape, choices))})" for choices in (special, letters))
    tokenizer = tokenizers.Tokenizer(models.WordLevel(dict(entries), unk_token=token_of["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPACE), "removed"),
            # In corpus text, names of special tokens are plain letters, so they must not be looked up as a whole.
            pre_tokenizers.Split(Regex(f"(?={any_special})."), "isolated"),
            pre_tokenizers.Split(Regex(any_letters), "isolated"),
        ]
    )
    cls, sep = token_of["cls"], token_of.get("sep")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A" if sep is None else f"{cls} $A {sep}",
        pair=None if sep is None else f"{cls} $A {sep} $B {sep}",
        special_tokens=[(token, entries[token]) for token in (cls, sep) if token is not None],
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Turns off warnings and progress bars of transformers meanwhile: our errors say what is missing. One thread
    at a time, since two would each restore what the other has set: these switches, and torch's generator while a model
    is made."""
    from transformers.utils import logging as theirs

    with _quiet:
        level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
        try:
            yield
        finally:
            theirs.set_verbosity(level)
            if bars:
                theirs.enable_progress_bar()


def _convert(folder: Path) -> Any:
    """The folder's tokenizer, converted to a fast one by transformers, without running code from the folder.

    Tokenizers that transformers has in Python only (BertJapanese's, PhoBERT's) cannot be converted.
    """
    try:
        import transformers
    except ImportError as error:
        raise TokenizerError(
            f"{folder}: there is no tokenizer.json, and transformers, which can convert other files, is not "
            "installed: pip install 'unmask[transformers]'"
        ) from error
    # Not every error of transformers names the missing package.
    models_of_pieces = [name for name in OTHER_FORMS if name.endswith(".model") and (folder / name).is_file()]
    hint = ""
    if models_of_pieces and find_spec("sentencepiece") is None:
        hint = f"; {models_of_pieces[0]} may need pip install sentencepiece protobuf"
    with quiet_transformers(), _tokenizer_errors(f"{folder}: no tokenizer that transformers reads", hint):
        theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    backend = getattr(theirs, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(
            f"{folder}: {type(theirs).__name__} exists in Python only and has no fast version; give a tokenizer.json"
        )
    if not set(backend.get_vocab()) - set(theirs.all_special_tokens):  # for no files it makes an empty one
        raise TokenizerError(f"{folder}: transformers finds no tokenizer here (it has no vocabulary){hint}")
    return theirs
