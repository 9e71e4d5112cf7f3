"""A model as search uses it: how queries and passages become vectors, and how near these are.

What sentence-transformers writes beside a model decides, as far as nobody asks for something else:

    modules.json, 1_Pooling/config.json    pooling, as for `unmask embed`; or SPLADE (1_SpladePooling)
    config_sentence_transformers.json      `prompts`, what stands before queries and documents; `similarity_fn_name`
    sentence_bert_config.json              `max_seq_length`, which passages are fitted into

Whoever asks for passages longer than the model has them seen in windows that follow each other, of which the first has
the prompt and a title. The vector is the mean over all tokens (over first tokens, where these are pooled), or the
maximum where vectors are sparse.

Of documents' prompts the first that is not empty is taken, of `document`, `passage` and `corpus`. sentence-transformers
takes the first that is there, and fills in an empty `document` itself, so that a model whose file names `passage` alone
would be used without its prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.errors import ModelError, SettingsError
from unmask.folders.checksums import weights_fingerprint
from unmask.folders.layout_names import Pooling
from unmask.folders.sentence_files import SPLADE, pooling_file, sparse_file
from unmask.searching.exact_search import Vectors
from unmask.training.hardware import choose_device
from unmask.using.embedding import EmbedSettings, embed_texts
from unmask.using.loaded_model import Model, Precision, load
from unmask.using.sparse_embedding import sparse_texts
from unmask.values import load_json

Similarity = Literal["cosine", "dot"]
_SETTINGS, _LIMITS = "config_sentence_transformers.json", "sentence_bert_config.json"
_LEAST_TEXT = 8  # tokens of a passage, without special ones and the prompt
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_MOST_TOKENS = 512  # of a passage, where nobody asks for more
_LONGEST_PASSAGE = 1 << 16


@dataclass(frozen=True)
class EncodingSettings:
    """How texts become vectors for search.

    Attributes:
        pooling: As for `EmbedSettings`; or `splade`, for sparse vectors.
        similarity: `cosine`, for which vectors are divided by their length, or `dot`.
        query_prompt, document_prompt: What stands before each query, and before each passage.
        passage_tokens: Tokens of a passage at most, with special ones and the prompt.
        overlap_tokens: How many of them it shares with the passage before it.
    """

    pooling: Pooling | Literal["splade"]
    similarity: Similarity
    query_prompt: str
    document_prompt: str
    passage_tokens: int
    overlap_tokens: int


@dataclass(frozen=True, kw_only=True)
class AskedEncoding:
    """What a user asks for; None takes what the model's folder says. Attributes as for `EncodingSettings`."""

    pooling: Pooling | Literal["splade"] | None = None
    similarity: Similarity | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    passage_tokens: int | None = None
    overlap_tokens: int | None = None


class SearchEncoder:
    """A model with how it is used for search.

    Args:
        model: Any encoder.
        settings: How.
    """

    def __init__(self, model: Model, settings: EncodingSettings) -> None:
        self.model, self.settings = model, settings
        self.model.to(choose_device())

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        if self.is_sparse:
            return int(self.model.predictor.config.vocab_size)
        return int(self.model.embedder.config.hidden_size)

    @property
    def is_sparse(self) -> bool:
        """Whether vectors have a number for each token of the vocabulary, most of which are 0."""
        return self.settings.pooling == SPLADE

    def fingerprint(self) -> str:
        """A hash of weights, configuration and tokenizer: with another one, vectors are of another space."""
        parts = weights_fingerprint(self.model.folder), self.model.tokenizer.fingerprint
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def embed_queries(self, texts: Sequence[str], names: Sequence[str] = ()) -> Vectors:
        """Vectors [texts, width]; of a text longer than the model it is the mean (sparse: the maximum) of its parts.

        Raises:
            SettingsError: A text is empty, or holds what is no character.
        """
        for number, text in enumerate(texts):
            if not text.strip():
                raise SettingsError(f"query {number + 1} is empty; say what is looked for")
        return self._embed(self.settings.query_prompt, texts, names or [f"query {n + 1}" for n in range(len(texts))])

    def embed_documents(self, texts: Sequence[str], names: Sequence[str] = ()) -> Vectors:
        """Vectors [texts, width] of passages, which `PassageCutter` makes short enough.

        Raises:
            SettingsError: A text holds what is no character.
        """
        return self._embed(self.settings.document_prompt, texts, names)

    def _embed(self, prompt: str, texts: Sequence[str], names: Sequence[str]) -> Vectors:
        with_prompt = [prompt + text for text in texts] if prompt else texts
        tokenizer, unit = self.model.tokenizer, self.settings.similarity == "cosine"
        if self.settings.pooling == SPLADE:
            sparse = sparse_texts(self.model.predictor, tokenizer, with_prompt, "split", unit=unit, names=names).vectors
            self._check_finite(sparse.values)
            return sparse
        how = EmbedSettings(self.settings.pooling, unit, "split")
        found = embed_texts(self.model.embedder, tokenizer, with_prompt, how, names=names).vectors
        self._check_finite(found)
        return found

    def _check_finite(self, numbers: NDArray[np.float32]) -> None:
        if not np.isfinite(numbers).all():
            raise ModelError(f"{self.model.folder}: a vector is no finite number; the model is damaged or diverged")


def open_encoder(
    model: str | Path | Model, asked: AskedEncoding, *, precision: Precision = "float32", strict: bool = False
) -> SearchEncoder:
    """Loads a model for search.

    Args:
        model: A model, its folder, or its name on the hub.
        asked: What is asked for.
        precision, strict: As for `load`.

    Raises:
        UnmaskError: As `load` and `Model.embed_settings`; the folder asks for what is not offered; or an option is out
            of range.
    """
    loaded = model if isinstance(model, Model) else load(model, precision=precision, strict=strict)
    pooling = _pooling(loaded, asked)  # asks the hub for its files where they lack
    content, file = _read(loaded.folder / _SETTINGS), loaded.folder / _SETTINGS
    prompts = _prompts(content, file)
    if pooling != SPLADE and sparse_file(loaded.folder) is not None:
        content = {**content, "similarity_fn_name": None}  # which is said of sparse vectors
    found: dict[str, Any] = {
        "pooling": pooling,
        "similarity": _similarity(content, file, asked.similarity, usual="dot" if pooling == SPLADE else "cosine"),
        "query_prompt": prompts.get("query", ""),
        "document_prompt": next(filter(None, map(prompts.get, _DOCUMENT_PROMPTS)), ""),
    }
    found |= {name: value for name, value in asdict(asked).items() if value is not None and name in found}
    _check_prompts_are_pooled(loaded.folder, found)
    longest = _longest(loaded, asked.passage_tokens, is_sparse=pooling == SPLADE)
    overlap = longest // 8 if asked.overlap_tokens is None else asked.overlap_tokens
    prompt_tokens = len(loaded.tokenizer.encode_prompt(found["document_prompt"]))
    if longest - prompt_tokens < _LEAST_TEXT:
        raise SettingsError(
            f"the prompt before documents takes {prompt_tokens} of a passage's {longest} tokens, and {_LEAST_TEXT} are "
            "the least that text has; give a shorter --document-prompt, or more --passage-tokens"
        )
    if not 0 <= overlap <= (longest - prompt_tokens) // 2:
        raise SettingsError(
            f"--overlap-tokens {overlap}: a passage has {longest - prompt_tokens} tokens of text and shares at most "
            "half of them with the one before it"
        )
    return SearchEncoder(loaded, EncodingSettings(**found, passage_tokens=longest, overlap_tokens=overlap))


def _pooling(model: Model, asked: AskedEncoding) -> Pooling | Literal["splade"]:
    if asked.pooling in (None, SPLADE) and model.makes_sparse:
        model.check_head()
        return SPLADE
    if asked.pooling == SPLADE:
        raise ModelError(f"{model.folder}: makes no sparse vectors (its modules.json names no SpladePooling)")
    return model.embed_settings(pooling=asked.pooling).pooling


def _longest(model: Model, asked: int | None, *, is_sparse: bool) -> int:
    """Tokens of a passage, special ones included."""
    network = model.predictor if is_sparse else model.embedder
    takes = network.config.max_position_embeddings
    least = len(model.tokenizer.special.around) + _LEAST_TEXT
    if asked is not None:
        if not least <= asked <= _LONGEST_PASSAGE:
            raise SettingsError(f"--passage-tokens {asked}: a passage has {least} to {_LONGEST_PASSAGE:,} tokens")
        return asked
    said = _read(model.folder / _LIMITS).get("max_seq_length")
    if isinstance(said, int) and not isinstance(said, bool) and said >= least:
        takes = min(takes, said)
    return min(takes, _MOST_TOKENS)


def _prompts(content: dict[str, Any], file: Path) -> dict[str, str]:
    prompts = content.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ModelError(f"{file}: damaged (prompts is no table of texts); mend it, or remove it to go without prompts")
    return {str(name): text or "" for name, text in prompts.items()}


def _similarity(content: dict[str, Any], file: Path, asked: Similarity | None, *, usual: Similarity) -> Similarity:
    said = content.get("similarity_fn_name") or usual if asked is None else asked
    if said not in get_args(Similarity):
        where = "--similarity" if asked is not None else f"{file}: similarity_fn_name"
        raise SettingsError(f"{where} {json.dumps(said)[:100]} is not offered; ask for --similarity cosine or dot")
    return said


def _check_prompts_are_pooled(folder: Path, found: dict[str, Any]) -> None:
    """Some models leave the tokens of their prompts out of the mean, which is not offered."""
    file = pooling_file(folder)
    if file is None or not (found["query_prompt"] or found["document_prompt"]):
        return
    if _read(file).get("include_prompt") is False:
        raise ModelError(
            f"{file}: include_prompt is false, so that prompts would be left out of the mean, which is not offered; "
            "go without prompts (--query-prompt '' --document-prompt ''), or give another model"
        )


def _read(file: Path) -> dict[str, Any]:
    """A file beside the model; empty where there is none."""
    if not file.is_file():
        return {}
    try:
        content = load_json(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not readable as JSON ({error}); mend it or take it away") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: damaged (no table); mend it or take it away")
    return content
