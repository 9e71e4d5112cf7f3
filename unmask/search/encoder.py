"""A model as search uses it: queries and passages in, vectors out.

The files that sentence-transformers writes beside a model decide, unless the user overrides them:

    modules.json, 1_Pooling/config.json    pooling, as for `unmask embed`; or SPLADE (1_SpladePooling)
    config_sentence_transformers.json      `prompts`, put before queries and documents; `similarity_fn_name`
    sentence_bert_config.json              `max_seq_length`, the limit for passages; version 6 saves it as
                                           `model_max_length` in tokenizer_config.json

The model reads passages beyond its limit in windows, the first of which has the prompt and a title. The passage's
vector is the mean of the windows' vectors, weighted by their tokens, or the maximum if vectors are sparse.

The document prompt is the first of `document`, `passage` and `corpus` that is not empty. sentence-transformers takes
the first that exists and fills in an empty `document` itself, so it would drop the prompt of a model whose file names
only `passage`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from unmask.core.errors import ModelError, SettingsError
from unmask.core.hub import LIMITS, MODULES, PROMPTS
from unmask.core.settings import Settings
from unmask.data.reading import check_characters
from unmask.model.folder import weights_fingerprint
from unmask.model.pooling import SPLADE, module_file, read_side_file
from unmask.search.exact import Vectors
from unmask.search.passages import DocumentPart, TextPassage, cut_passages
from unmask.tasks.embed import EmbedSettings, embed_texts, sparse_texts
from unmask.tasks.loaded_model import Model, Precision, as_model
from unmask.tokenizer.tokenizer import CONFIG as TOKENIZER

Similarity = Literal["cosine", "dot"]
_LEAST_TEXT = 8  # minimum tokens of a passage, without special tokens and the prompt
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_MOST_TOKENS = 512  # maximum tokens of a passage by default
_LONGEST_PASSAGE = 1 << 16


class EncodingSettings(Settings):
    pooling: str  # as for `EmbedSettings`; or `splade`, for sparse vectors
    similarity: Similarity  # `cosine` (vectors are divided by their length) or `dot`
    query_prompt: str  # put before each query
    document_prompt: str  # put before each passage
    passage_tokens: int  # maximum tokens of a passage, with special tokens and the prompt
    overlap_tokens: int  # tokens that a passage shares with the previous one


class SearchEncoder:
    def __init__(self, model: Model, settings: EncodingSettings) -> None:
        self.model, self.settings = model, settings
        self.is_sparse = settings.pooling == SPLADE
        network = model.predictor if self.is_sparse else model.embedder
        self.width = int(network.config.vocab_size if self.is_sparse else network.config.hidden_size)

    def fingerprint(self) -> str:
        """A hash of weights, configuration and tokenizer; vectors compare only if it is the same. A ModelError for an
        exported graph, whose folder has no weights."""
        if self.model.backend != "torch":
            what = "this is an exported graph, which an index cannot identify; give the model that it was made from"
            raise ModelError(f"{self.model.folder}: {what}")
        parts = weights_fingerprint(self.model.folder), self.model.tokenizer.fingerprint
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def passages(self, parts: Iterable[DocumentPart]) -> Iterator[TextPassage]:
        settings = self.settings
        lengths = {"passage_tokens": settings.passage_tokens, "overlap_tokens": settings.overlap_tokens}
        return cut_passages(parts, self.model.tokenizer, **lengths, prompt=settings.document_prompt)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors [texts, width]; a text beyond the model's limit gets the mean (sparse: the maximum) of its windows.
        Raises `SettingsError` if a text holds an invalid character."""
        return self._embed(self.settings.query_prompt, texts, [f"query {n}" for n in range(1, len(texts) + 1)])

    def embed_documents(self, texts: Sequence[str], names: Sequence[str] = ()) -> Vectors:
        """Vectors [texts, width] of passages, whose `names` errors mention; otherwise as `embed_queries`."""
        return self._embed(self.settings.document_prompt, texts, names)

    def _embed(self, prompt: str, texts: Sequence[str], names: Sequence[str]) -> Vectors:
        model, unit = self.model, self.settings.similarity == "cosine"
        texts = [prompt + text for text in texts] if prompt else texts
        try:
            if self.is_sparse:
                return sparse_texts(model.predictor, model.tokenizer, texts, "split", unit=unit, names=names).vectors
            settings = EmbedSettings(self.settings.pooling, unit, "split")
            return embed_texts(model.embedder, model.tokenizer, texts, settings, names=names).vectors
        except ModelError as error:  # of one of several models, perhaps
            raise ModelError(f"{model.folder}: {error}") from error


def open_encoder(  # noqa: PLR0912, PLR0913  (the options of the command line, each with a default from the folder)
    model: str | Path | Model,
    *,
    pooling: str | None = None,
    similarity: Similarity | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    passage_tokens: int | None = None,
    overlap_tokens: int | None = None,
    precision: Precision = "float32",
    strict: bool = False,
) -> SearchEncoder:
    """Loads a model for search, like `load`, with `EncodingSettings`; a setting of None takes the folder's value."""
    loaded = as_model(model, precision=precision, strict=strict)
    folder = loaded.folder
    # Pooling comes first, since it fetches the folder's small files from the hub.
    is_sparse = pooling in (None, SPLADE) and loaded.makes_sparse
    if pooling == SPLADE and not is_sparse:
        raise ModelError(f"{folder}: makes no sparse vectors (its modules.json names no SpladePooling)")
    network = loaded.predictor if is_sparse else loaded.embedder
    pooling_name = SPLADE if is_sparse else loaded.embed_settings(pooling=pooling).pooling

    # The prompts.
    file = folder / PROMPTS
    content = read_side_file(file, optional=True)
    prompts = content.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ModelError(f"{file}: damaged (prompts is not a table of texts); fix it, or remove it to use no prompts")
    if query_prompt is None:
        query_prompt = prompts.get("query") or ""
    if document_prompt is None:
        document_prompt = next(filter(None, map(prompts.get, _DOCUMENT_PROMPTS)), "")
    pooling_file = module_file(folder, "Pooling")
    for text, option in ((query_prompt, "query_prompt"), (document_prompt, "document_prompt")):
        check_characters(text, option)
    pooling_config = {} if pooling_file is None else read_side_file(pooling_file, optional=True)
    if (query_prompt or document_prompt) and pooling_config.get("include_prompt") is False:
        what = f"{pooling_file}: include_prompt is false, but prompts cannot be left out of the mean"
        raise ModelError(f"{what}; use no prompts (''), or another model", options=("query_prompt", "document_prompt"))

    # The similarity. A folder's value for sparse vectors does not apply to dense vectors of the same model.
    is_for_sparse = not is_sparse and module_file(folder, "SpladePooling") is not None
    name: Any = similarity
    if similarity is None:
        name = (None if is_for_sparse else content.get("similarity_fn_name")) or ("dot" if is_sparse else "cosine")
        if name == "dot" and module_file(folder, "Normalize") is not None:  # products of normalized vectors
            name = "cosine"
    if name not in get_args(Similarity):
        where = f"{file}: similarity_fn_name" if similarity is None else "similarity"
        raise SettingsError(f"{where} {json.dumps(name)[:100]}: give cosine or dot", options=("similarity",))

    # Tokens of a passage, special ones included.
    least = len(loaded.tokenizer.special.around) + _LEAST_TEXT
    if passage_tokens is None:
        passage_tokens = min(network.config.max_position_embeddings, _MOST_TOKENS)
        limit = _limit_of(folder)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit >= least:
            passage_tokens = min(passage_tokens, limit)
    elif not least <= passage_tokens <= _LONGEST_PASSAGE:
        raise SettingsError(
            f"passage_tokens={passage_tokens}: give {least} to {_LONGEST_PASSAGE:,} tokens", options=("passage_tokens",)
        )
    room = passage_tokens - len(loaded.tokenizer.encode_prompt(document_prompt))
    overlap = passage_tokens // 8 if overlap_tokens is None else overlap_tokens
    if room < _LEAST_TEXT:
        what = f"document_prompt leaves {room} of passage_tokens = {passage_tokens} to text, which needs {_LEAST_TEXT}"
        raise SettingsError(f"{what}; shorten one, or raise the other", options=("document_prompt", "passage_tokens"))
    if not 0 <= overlap <= room // 2:
        text = f"overlap_tokens={overlap}: a passage has {room} tokens of text; overlap at most half of them"
        raise SettingsError(text, options=("overlap_tokens",))
    settings = EncodingSettings(
        pooling=pooling_name, similarity=name, query_prompt=query_prompt, document_prompt=document_prompt,
        passage_tokens=passage_tokens, overlap_tokens=overlap,
    )  # fmt: skip
    return SearchEncoder(loaded, settings)


def _limit_of(folder: Path) -> Any:
    """sentence-transformers' maximum tokens of a text, special ones included; huge or None if there is none."""
    limit = read_side_file(folder / LIMITS, optional=True).get("max_seq_length")
    if limit is None and (folder / MODULES).is_file():
        limit = read_side_file(folder / TOKENIZER, optional=True).get("model_max_length")
    return limit
