"""Lexicons for those who mask: made of prepared data, read from a file, and turned into the tables of a masker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.errors import RunError, SettingsError
from unmask.lexicon.build import CHUNK_TOKENS, build_lexicon
from unmask.lexicon.lexicon import Lexicon, load_lexicon
from unmask.lexicon.settings import LexiconSettings
from unmask.masking.collocations import CollocationUnits
from unmask.masking.hash_set import HashSet
from unmask.masking.informative import InformativeWeights
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Tables
from unmask.pretraining.data import PreparedData
from unmask.pretraining.reporter import Reporter
from unmask.settings import settings_within
from unmask.tokens.loading import as_tokenizer


def make_lexicon(data: PreparedData, out: Path, settings: LexiconSettings, reporter: Reporter) -> Lexicon:
    """Makes the lexicon of a training split and writes it. Temporary files stand beside it meanwhile.

    Raises:
        RunError: The file cannot be written.
    """
    ledger = data.manifest.train

    def notify(what: str, tokens: int) -> None:
        reporter.stage(what, ledger.bytes * tokens // ledger.tokens, ledger.bytes)

    with _scratch(out) as scratch:
        lexicon = build_lexicon(
            lambda: data.train.chunks(CHUNK_TOKENS),
            data.tokenizer,
            settings,
            frequencies=data.frequencies,
            data_sha256=data.manifest.fingerprint,
            scratch=scratch,
            notify=notify,
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


def lexicon_tables(lexicon: str | Path, tokenizer: Any) -> Tables:
    """Reads a lexicon for a masker: `Masker.from_tokenizer(tokenizer, strategy="pmi", tables=...)`.

    Args:
        lexicon: File that `unmask lexicon` has made.
        tokenizer: A `tokenizers.Tokenizer`, a transformers fast tokenizer, or a folder.

    Raises:
        DataError: The file cannot be used, or was made with another tokenizer.
        TokenizerError: The tokenizer cannot be used.
    """
    ready = as_tokenizer(tokenizer)
    found = load_lexicon(Path(lexicon))
    found.check_tokenizer(ready, name=str(lexicon))
    return with_lexicon(Tables(ready.vocab_size), found)


def with_lexicon(tables: Tables, lexicon: Lexicon) -> Tables:
    """Adds what a lexicon says to the tables of a masker, whose vocabulary is the same."""
    return replace(
        tables,
        collocations=HashSet.of(torch.from_numpy(lexicon.hashes())),
        informativeness_V=torch.from_numpy(lexicon.informativeness),
    )


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
    if own.is_file():  # an earlier sitting made it
        lexicon = load_lexicon(own)
        facts = lexicon.facts
        if facts["data_sha256"] == data.manifest.fingerprint and facts["settings"] == settings.model_dump():
            return lexicon
    reporter.note("making a lexicon of the training text (`unmask lexicon` makes one that several runs share)")
    lexicon = make_lexicon(data, own, settings, reporter)
    reporter.note(f"{len(lexicon):,} collocations of 2 to {settings.max_words} words: {own}")
    return lexicon
