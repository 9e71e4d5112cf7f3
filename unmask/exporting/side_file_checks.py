"""The check of the small files beside weights and tokenizer.json: that they can be read, and agree with the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.errors import ModelError, UnmaskError
from unmask.exporting.checked_model import CheckedModel
from unmask.exporting.checks import Check, count
from unmask.folders.sentence_files import MODULES, pooling_file, read_normalize, read_pooling, sparse_file
from unmask.tokenizer.special_tokens import SPELLINGS
from unmask.values import load_json, shown

_OF_TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json")
_OF_SENTENCES = ("sentence_bert_config.json", "config_sentence_transformers.json")
_UNBOUNDED = 1 << 20  # tokens above which a longest input says that there is none


def side_files_agree(subject: CheckedModel) -> Check | str:
    """Pooling and settings of the tokenizer are readable, and as config.json and tokenizer.json have it.

    Returns:
        What came of it; a reason where there are no such files.
    """
    names = (*_OF_TOKENIZERS, MODULES, *_OF_SENTENCES)
    there = [name for name in names if (subject.folder / name).is_file()]
    if not there:
        return "there are no files beside the weights, config.json and tokenizer.json"
    wrong: list[str] = []
    for name in there:
        try:
            wrong += _WRONG[name](subject, subject.folder / name)
        except UnmaskError as error:
            wrong.append(str(error))
    return count(wrong, ", ".join(there))


def _wrong_tokens(subject: CheckedModel, file: Path) -> Iterator[str]:
    """Special tokens that are not those of tokenizer.json, and inputs longer than the model takes."""
    content, tokenizer = _table(file), subject.tokenizer
    for role in SPELLINGS:
        said = content.get(f"{role}_token")
        said = said.get("content") if isinstance(said, dict) else said
        found = tokenizer.special_names[role]
        if said is not None and said != found:
            yield f"{file.name} says {role}_token = {shown(said)}, tokenizer.json has {shown(found)}"
    added = content.get("added_tokens_decoder") or {}
    if not isinstance(added, dict):
        yield f"{file.name}: added_tokens_decoder = {shown(added)} is no table"
        return
    for id_, token in added.items():
        said = token.get("content") if isinstance(token, dict) else token
        found = tokenizer.backend.id_to_token(int(id_)) if id_.isdecimal() and len(id_) < 10 else None
        if said != found:
            yield f"{file.name} says that {shown(id_)} is {shown(said)}, tokenizer.json has {shown(found)}"
            return
    yield from _too_long(subject, content.get("model_max_length"), f"{file.name}: model_max_length")


def _wrong_modules(subject: CheckedModel, file: Path) -> Iterator[str]:
    """A pooling that cannot be made, or is of another width than the model."""
    pooling, name = sparse_file(subject.folder), "vocab_size"
    if pooling is None:
        read_pooling(subject.folder)
        read_normalize(subject.folder)
        pooling, name = pooling_file(subject.folder), "hidden_size"
    if pooling is None:
        return
    said, width = _table(pooling).get("word_embedding_dimension"), subject.config.get(name)
    if said is not None and said != width:
        where = pooling.relative_to(subject.folder).as_posix()
        yield f"{where} says word_embedding_dimension = {shown(said)}, config.json {name} = {shown(width)}"


def _wrong_sentences(subject: CheckedModel, file: Path) -> Iterator[str]:
    yield from _too_long(subject, _table(file).get("max_seq_length"), f"{file.name}: max_seq_length")


def _too_long(subject: CheckedModel, said: Any, what: str) -> Iterator[str]:
    """RoBERTa's kind has two positions more than it takes tokens, and released folders count either way."""
    if said is None:
        return
    if isinstance(said, bool) or not isinstance(said, int | float) or not said > 0:
        yield f"{what} = {shown(said)} is no number of tokens"
        return
    longest = subject.config.get("max_position_embeddings")
    if isinstance(longest, int) and longest < said < _UNBOUNDED:
        yield f"{what} = {said} is more than the model's {longest} positions"


def _table(file: Path) -> dict[str, Any]:
    try:
        content = load_json(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file.name}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file.name}: {shown(content)} is no table")
    return content


_WRONG = {
    **dict.fromkeys(_OF_TOKENIZERS, _wrong_tokens),
    MODULES: _wrong_modules,
    **dict.fromkeys(_OF_SENTENCES, _wrong_sentences),
}
