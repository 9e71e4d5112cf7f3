"""What masking needs beside the rows of a run: tables from the data, and a board of scores where it follows a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.collocations.lexicon import Lexicon
from unmask.errors import DataError
from unmask.masking.scored import AnchorWeights, CentralityWeights, TfIdfWeights
from unmask.masking.settings import MaskingSettings, all_weights, followed_scores
from unmask.masking.tables import Tables
from unmask.pretraining.data import PreparedData
from unmask.pretraining.lexicon import obtain_lexicon, with_lexicon
from unmask.pretraining.reporter import Reporter
from unmask.pretraining.word_embeddings import word_embeddings
from unmask.tokens.manifest import load_manifest
from unmask.tokens.statistics import document_frequencies
from unmask.training.scores import ScoreBoard


def masking_tables(
    settings: MaskingSettings, data: PreparedData, *, own_lexicon: Path, reporter: Reporter
) -> tuple[Tables, Lexicon | None]:
    """What masking may know: what the data says, what else the strategy asks for, and a lexicon where it needs one.

    Args:
        settings: Of masking.
        data: What is masked.
        own_lexicon: Where a lexicon stands, or is made, if the settings name none.
        reporter: Told of what is done.

    Returns:
        The tables, and the lexicon whose content is among them.

    Raises:
        UnmaskError: As `obtain_lexicon`.
    """
    tables = data.tables
    if any(isinstance(weights, TfIdfWeights) for weights in all_weights(settings)):
        documents = document_frequencies(data.train, data.manifest.vocab_size)
        tables = replace(tables, documents_V=torch.from_numpy(documents), num_documents=len(data.train))
    for weights in all_weights(settings):
        if isinstance(weights, CentralityWeights) and weights.encoder is not None:
            tables = replace(tables, embedding_VD=word_embeddings(Path(weights.encoder), data.tokenizer))
    lexicon = obtain_lexicon(settings, own_lexicon, data, reporter)
    return tables if lexicon is None else with_lexicon(tables, lexicon), lexicon


def score_board(settings: MaskingSettings, data: PreparedData, device: torch.device) -> ScoreBoard | None:
    """The scores that the strategy follows; None where it follows none.

    Raises:
        DataError: The background corpus was prepared with another tokenizer.
        SettingsError: The strategy follows losses of parts of speech, which the data does not have.
    """
    names = followed_scores(settings)
    if not names:
        return None
    anchors = None
    for weights in all_weights(settings):
        if isinstance(weights, AnchorWeights):
            anchors = torch.from_numpy(_anchors(weights, data)).to(device)
    return ScoreBoard(
        names,
        vocab_size=data.manifest.vocab_size,
        every_steps=settings.refresh_steps,
        device=device,
        anchors_A=anchors,
        num_pos=len(data.tables.labels_of("pos", "weights of kind pos_loss")) if "pos_loss" in names else None,
    )


def _anchors(weights: AnchorWeights, data: PreparedData) -> NDArray[np.int64]:
    """The ids with the largest TF-ICF: frequent here, rare in the background."""
    background = load_manifest(Path(weights.background))
    if background.tokenizer_sha256 != data.manifest.tokenizer_sha256:
        raise DataError(
            f"{weights.background} was prepared with another tokenizer; prepare it again with --tokenizer "
            f"{data.root / 'tokenizer'}"
        )
    here, there = data.frequencies, np.array(background.token_frequencies, dtype=np.float64)
    tf_icf = here / here.sum() * np.log((1.0 + here / here.sum()) / (1e-9 + there / max(there.sum(), 1.0)))
    tf_icf[~data.tokenizer.ordinary] = -np.inf
    return np.argsort(-tf_icf, kind="stable")[: weights.num_anchors]
