"""What masking needs beside a run's rows: tables from the data, a lexicon, and scores where it follows a model.

Shape suffixes: V = vocabulary, D = dimensions, A = anchors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.commands.lexicon import make_lexicon
from unmask.commands.run_data import PreparedData
from unmask.core.errors import DataError, SettingsError
from unmask.core.results import Reporter
from unmask.core.settings import settings_within
from unmask.data.data_folder import load_manifest
from unmask.data.lexicon import Lexicon, LexiconSettings, load_lexicon
from unmask.data.store import document_frequencies
from unmask.masking.settings import MaskingSettings, all_weights, followed_scores
from unmask.masking.stored_tables import with_lexicon
from unmask.masking.tables import Tables
from unmask.masking.units import CollocationUnits
from unmask.masking.weights import AnchorWeights, CentralityWeights, InformativeWeights, TfIdfWeights
from unmask.tokenizer.loading import read_tokenizer_json
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.scores import ScoreBoard, main_directions


def wanted_lexicons(masking: MaskingSettings) -> set[str | None]:
    """The files that the settings of masking name; None where a lexicon is needed and no file named. Empty: none is."""
    return {
        part.lexicon for part in settings_within(masking) if isinstance(part, CollocationUnits | InformativeWeights)
    }


def named_lexicon(masking: MaskingSettings) -> Path | None:
    """The file that the settings name.

    Raises:
        SettingsError: They name several.
    """
    named = sorted(file for file in wanted_lexicons(masking) if file is not None)
    if len(named) > 1:
        raise SettingsError(f"masking: a run has one lexicon, but the settings name {' and '.join(named)}")
    return Path(named[0]) if named else None


def obtain_lexicon(masking: MaskingSettings, own: Path, data: PreparedData, reporter: Reporter) -> Lexicon | None:
    """The lexicon that a run needs: the one that its settings name, or its own, made where it is not there yet.

    Args:
        masking: Its settings of masking.
        own: Where a lexicon of its own stands.
        data: What it trains on.
        reporter: Told of what is done.

    Returns:
        None, where none is needed.

    Raises:
        SettingsError: The settings name several.
        DataError: The file cannot be used, or was made with another tokenizer.
        RunError: It cannot be written.
    """
    if not wanted_lexicons(masking):
        return None
    if (path := named_lexicon(masking)) is not None:
        lexicon = load_lexicon(path)
        lexicon.check_tokenizer(data.tokenizer, name=str(path))
        return lexicon
    settings = LexiconSettings()
    if own.is_file():  # made before the run was interrupted
        lexicon = load_lexicon(own)
        facts = lexicon.facts
        if facts["data_sha256"] == data.manifest.fingerprint and facts["settings"] == settings.model_dump():
            return lexicon
    reporter.note("making a lexicon of the training text (`unmask lexicon` makes one that several runs share)")
    lexicon = make_lexicon(data, own, settings, reporter)
    reporter.note(f"{len(lexicon):,} collocations of 2 to {settings.max_words} words: {own}")
    return lexicon


# What BERT, RoBERTa and their kin, ModernBERT, and decoders call the table.
_NAMES = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "wte.weight")


def word_embeddings(folder: Path, tokenizer: Tokenizer) -> Tensor:
    """The mean of an encoder's input embeddings over the pieces of each ordinary token's text.

    Nothing is encoded: a token's context is not known here, and a table of the vocabulary is what masking takes.

    Args:
        folder: Of a transformers encoder (also of sentence-transformers), with tokenizer.json and model.safetensors.
        tokenizer: Whose vocabulary the table is for.

    Returns:
        [V, at most 32], float32: the main directions of the centred embeddings; 0 for what is no text.

    Raises:
        SettingsError: The folder holds no such encoder.
    """
    table = _table(folder)
    backend = read_tokenizer_json(folder / "tokenizer.json")
    backend.no_padding()  # which files of sentence encoders ask for
    backend.no_truncation()
    ids = [id_ for id_ in range(tokenizer.vocab_size) if tokenizer.ordinary[id_]]
    pieces = [each.ids for each in backend.encode_batch([tokenizer.text(id_) for id_ in ids], add_special_tokens=False)]
    means = torch.stack(
        [table[torch.tensor(own, dtype=torch.int64)].mean(0) if own else table.mean(0) for own in pieces]
    )
    result = torch.zeros(tokenizer.vocab_size, min(32, table.shape[1]))
    result[torch.tensor(ids)] = main_directions(means)
    return result


def _table(folder: Path) -> Tensor:
    where = f"masking.weights.encoder = {str(folder)!r}"
    for name in ("tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise SettingsError(f"{where} has no {name}; name the folder of an encoder that transformers has saved")
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            names = [name for name in file.keys() if name.endswith(_NAMES)]  # noqa: SIM118  (it is no mapping)
            if len(names) != 1:
                raise SettingsError(
                    f"{where} has {len(names)} tables of word embeddings ({', '.join(_NAMES)}), not one"
                )
            tensor: Tensor = file.get_tensor(names[0])
    except SafetensorError as error:
        raise SettingsError(f"{where}: model.safetensors cannot be read: {error}") from error
    return tensor.float()


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
            f"{weights.background} was prepared with another tokenizer; prepare it again with "
            f"{data.root / 'tokenizer'}",
            options=["tokenizer"],
        )
    here, there = data.frequencies, np.array(background.token_frequencies, dtype=np.float64)
    tf_icf = here / here.sum() * np.log((1.0 + here / here.sum()) / (1e-9 + there / max(there.sum(), 1.0)))
    tf_icf[~data.tokenizer.ordinary] = -np.inf
    return np.argsort(-tf_icf, kind="stable")[: weights.num_anchors]
