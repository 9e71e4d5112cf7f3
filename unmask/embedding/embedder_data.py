"""What an embedder is trained on, read and kept in its folder, and what the training is about."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from unmask.embedding.embedder_folder import MAY_DIFFER, EmbedderFolder
from unmask.embedding.embedder_request import EmbedderRequest
from unmask.embedding.given_pairs import TextPairs, read_pairs
from unmask.embedding.pair_data import PairData, pair_data
from unmask.embedding.settings import EmbedderSettings
from unmask.embedding.text_reading import read_texts
from unmask.embedding.token_texts import TokenTexts
from unmask.files import file_sha256
from unmask.pretraining.run_data import is_prepared
from unmask.pretraining.run_reporter import Reporter
from unmask.searching.item_documents import HELD_OUT
from unmask.settings import validated
from unmask.shards.manifest import MANIFEST, load_manifest
from unmask.text.given import keep_given
from unmask.text.settings import CorpusSettings


class OpenedData(NamedTuple):
    """Pairs, and a fingerprint of all that decides the weights."""

    pairs: PairData
    fingerprint: str


def open_data(folder: EmbedderFolder, request: EmbedderRequest, reporter: Reporter, *, goes_on: bool) -> OpenedData:
    """Reads texts and pairs, and writes texts and what the training is about into a new folder.

    Args:
        folder: Of the training.
        request: What is asked for.
        reporter: Told of what is found.
        goes_on: Whether the folder holds the training already; then its texts are not read again.

    Raises:
        UnmaskError: Text or pairs cannot be read or used, or the folder holds another training.
    """
    text_pairs: TextPairs | None = None
    if request.pairs is not None:
        text_pairs = read_pairs(request.pairs, request.fitted.columns)
    texts, is_kept = None, goes_on and folder.texts.is_file()
    if request.given and is_kept:
        texts = TokenTexts.load(folder.texts)
    elif request.given:
        files = list(keep_given(request.given, folder.root, kept=goes_on, notify=reporter.notify))
        texts = read_texts(
            files,
            request.beginning.tokenizer,
            request.choice.corpus,
            given=() if text_pairs is None else text_pairs.answers,
            note=reporter.note,
            notify=reporter.notify,
        )
    content = _content(request, texts)
    if goes_on:
        folder.check_same(content)
    data = pair_data(texts, text_pairs, request.beginning.tokenizer, request.fitted, note=reporter.note)
    if texts is not None and not is_kept:
        texts.save(folder.texts)
    if not goes_on:
        folder.begin(content)
    return OpenedData(data, _fingerprint(content, request.fitted))


def _content(request: EmbedderRequest, texts: TokenTexts | None) -> dict[str, Any]:
    """What the training is about."""
    choice, origin, pairs = request.choice, request.beginning.origin, request.pairs
    return {
        "model": origin.checkpoint,
        "model_sha256": origin.sha256,
        "corpus_files": [str(path.absolute()) for path in request.files],
        "pairs_file": None if pairs is None else str(pairs.absolute()),
        "pairs_sha256": None if pairs is None else file_sha256(pairs),
        "texts_sha256": None if texts is None else texts.fingerprint,
        HELD_OUT: _rule(request).plain(),
        "embedder": choice.embedder.model_dump(),
        "minutes": choice.budget.minutes,
        "steps": choice.budget.steps,
    }


def _rule(request: EmbedderRequest) -> CorpusSettings:
    """By which text was held out; prepared data has a rule of its own."""
    if not (files := request.files) or not is_prepared(files):
        return request.choice.corpus
    manifest = load_manifest(files[0])
    return validated(CorpusSettings, manifest.settings["corpus"], where=str(files[0] / MANIFEST))


def _fingerprint(content: dict[str, Any], settings: EmbedderSettings) -> str:
    """Of what decides the weights, wherever its files lie."""
    deciding = {key: value for key, value in content.items() if key not in MAY_DIFFER}
    deciding["embedder"] = settings.model_dump(mode="json", exclude={"card"})
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
