"""Lexicons for those who mask: made of prepared data, and that of a run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.commands.reporting import Reporter, usual_reporter
from unmask.commands.run_data import PreparedData, open_prepared
from unmask.core.errors import DataError, RunError, SettingsError
from unmask.core.files import check_file, held_file
from unmask.core.hashing import permutation
from unmask.core.remote import refused
from unmask.core.results import Result, Shown
from unmask.core.settings import settings_within, validated
from unmask.data.data_folder import load_manifest
from unmask.data.lexicon import CHUNK_TOKENS, Lexicon, LexiconSettings, build_lexicon, load_lexicon
from unmask.data.store import document_frequencies
from unmask.masking.masker import with_lexicon
from unmask.masking.settings import MaskingSettings, all_weights, followed_scores
from unmask.masking.tables import Tables
from unmask.masking.units import CollocationUnits
from unmask.masking.weights import AnchorWeights, CentralityWeights, InformativeWeights, TfIdfWeights
from unmask.tokenizer.loading import read_tokenizer_json
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.scores import ScoreBoard, main_directions

_SHOWN = 8  # collocations and tokens of each kind


class LexiconMade(Result):
    """A lexicon, and some of what is in it.

    Attributes:
        out: The file.
        collocations: How many it holds; `by_words`: of each number of words.
        candidates, words: Of the text.
        smallest_pmi: Of those that were kept, in nats; None where there are none.
        min_count: As asked for.
        fingerprint: Of the lexicon.
        examples: Of the strongest and of some others: `text`, `pmi`, `count`.
        tokens: The `most` and the `least` informative.
    """

    out: str
    collocations: int
    by_words: dict[str, int]
    candidates: int
    words: int
    smallest_pmi: float | None
    min_count: int
    fingerprint: str
    examples: dict[str, list[dict[str, Any]]]
    tokens: dict[str, list[str]]

    def shown(self) -> Iterator[Shown]:
        """The strongest collocations, some of the others, and the most and the least informative tokens."""
        for title, found in self.examples.items():
            yield f"{title}:"
            yield from (f"  {each['pmi']:6.2f} nats  {each['count']:>8,} times  {each['text']}" for each in found)
        yield from (f"{title} informative tokens: {' '.join(found)}" for title, found in self.tokens.items())
        by_words = ", ".join(f"{count:,} of {n}" for n, count in self.by_words.items())
        yield (
            f"{self.collocations:,} collocations of {self.candidates:,} candidates in {self.words:,} words ({by_words} "
            f"words); {self.out}"
        )


def lexicon(
    data: str | Path,
    *,
    out: str | Path,
    size: int | None = None,
    min_count: int = 10,
    max_words: int = 5,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> LexiconMade:
    """Finds the collocations of prepared text, for masking them as a whole (strategy pmi).

    Args:
        data: Folder that unmask prepare has made.
        out: File of the lexicon, such as lexicon.safetensors.
        size: Most collocations. By default one for 256 words of text, at most 800,000.
        min_count: Collocations are more frequent in the text than this.
        max_words: Words of the longest, up to 5.
        overwrite: Replace the file that is there.
        reporter: Called with the progress; by default the log.

    Raises:
        UnmaskError: The data cannot be used, a setting is off, or the file is there already or cannot be written.
    """
    refused(out, "a lexicon")
    given = {"min_count": min_count, "max_words": max_words, **({} if size is None else {"size": size})}
    settings, target = validated(LexiconSettings, given, where="lexicon"), Path(out)
    check_file(target, overwrite=overwrite)
    opened = open_prepared(Path(data))
    made = make_lexicon(opened, target, settings, reporter or usual_reporter())
    figures = {
        "out": str(target),
        "collocations": len(made),
        "by_words": {str(n): int((made.num_words == n).sum()) for n in range(2, settings.max_words + 1)},
        "candidates": made.facts["candidates"],
        "words": made.facts["num_words"],
        "smallest_pmi": float(made.pmi[-1]) if len(made) else None,
        "min_count": settings.min_count,
        "fingerprint": made.fingerprint,
    }
    return LexiconMade(figures | _examples(made, opened.tokenizer))


def _examples(made: Lexicon, tokenizer: Tokenizer) -> dict[str, Any]:
    others = np.sort(permutation(len(made), len(made))[:_SHOWN])
    examples = {
        title: [
            {
                "text": tokenizer.decode(made.ids_of(int(number))),
                "pmi": float(made.pmi[number]),
                "count": int(made.counts[number]),
            }
            for number in numbers
        ]
        for title, numbers in (("the strongest", np.arange(min(_SHOWN, len(made)))), ("some others", others))
    }
    ordinary = np.flatnonzero(tokenizer.ordinary)
    order = ordinary[np.argsort(made.informativeness[ordinary], kind="stable")]
    tokens = {
        title: [tokenizer.token(int(id_)) for id_ in ids[:_SHOWN]]
        for title, ids in (("most", order[::-1]), ("least", order))
    }
    return {"examples": examples, "tokens": tokens}


def make_lexicon(data: PreparedData, out: Path, settings: LexiconSettings, reporter: Reporter) -> Lexicon:
    """Makes the lexicon of a training split and writes it. Temporary files stand beside it meanwhile.

    Raises:
        RunError: The file cannot be written.
    """
    with held_file(out), _scratch(out) as scratch:
        lexicon = build_lexicon(
            lambda: data.train.chunks(CHUNK_TOKENS),
            data.tokenizer,
            settings,
            frequencies=data.frequencies,
            data_sha256=data.manifest.fingerprint,
            scratch=scratch,
            notify=reporter.notify,
        )
        lexicon.save(out)
    if not len(lexicon):
        reporter.note(
            f"warning: the text has no collocations (words in a row that stand in it more than {settings.min_count} "
            "times, and more often than by chance); masking by them is masking by whole words"
        )
    return lexicon


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder beside a file, which goes afterwards; also one that a kill has left is gone."""
    folder = out.with_name(out.name + ".counts.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
    except OSError as error:
        raise RunError(f"{out}: the lexicon cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


# ----------------------------------------
# What masking needs beside a run's rows: tables from the data, and scores where it follows a model.
#
# Shape suffixes: V = vocabulary, D = dimensions, A = anchors.

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
    found = torch.stack(
        [table[torch.tensor(own, dtype=torch.int64)].mean(0) if own else table.mean(0) for own in pieces]
    )
    result = torch.zeros(tokenizer.vocab_size, min(32, table.shape[1]))
    result[torch.tensor(ids)] = main_directions(found)
    return result


def _table(folder: Path) -> Tensor:
    where = f"masking.weights.encoder = {str(folder)!r}"
    for name in ("tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise SettingsError(f"{where} has no {name}; name the folder of an encoder that transformers has saved")
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            found = [name for name in file.keys() if name.endswith(_NAMES)]  # noqa: SIM118  (it is no mapping)
            if len(found) != 1:
                raise SettingsError(
                    f"{where} has {len(found)} tables of word embeddings ({', '.join(_NAMES)}), not one"
                )
            tensor: Tensor = file.get_tensor(found[0])
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
            f"{weights.background} was prepared with another tokenizer; prepare it again with --tokenizer "
            f"{data.root / 'tokenizer'}"
        )
    here, there = data.frequencies, np.array(background.token_frequencies, dtype=np.float64)
    tf_icf = here / here.sum() * np.log((1.0 + here / here.sum()) / (1e-9 + there / max(there.sum(), 1.0)))
    tf_icf[~data.tokenizer.ordinary] = -np.inf
    return np.argsort(-tf_icf, kind="stable")[: weights.num_anchors]
