"""Tables of a masker from what is on the disk: a lexicon, prepared data, or the folder of a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.errors import DataError
from unmask.core.settings import settings_within
from unmask.data.data_folder import MANIFEST, load_manifest, open_split
from unmask.data.lexicon import CHUNK_TOKENS, Lexicon, LexiconSettings, build_lexicon, load_lexicon
from unmask.data.store import document_frequencies
from unmask.masking.draw_loops import hash_set
from unmask.masking.settings import MaskingSettings, all_weights
from unmask.masking.tables import Tables
from unmask.masking.units import CollocationUnits
from unmask.masking.weights import InformativeWeights, TfIdfWeights
from unmask.tokenizer.loading import as_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

LEXICON_OF_RUN, DATA_OF_RUN = "lexicon.safetensors", "data"


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
    content = load_lexicon(Path(lexicon))
    content.check_tokenizer(ready, name=str(lexicon))
    return with_lexicon(Tables(ready.vocab_size), content)


def with_lexicon(tables: Tables, lexicon: Lexicon) -> Tables:
    """Adds what a lexicon says to the tables of a masker, whose vocabulary is the same."""
    return replace(
        tables,
        collocations_P=torch.from_numpy(hash_set(lexicon.hashes())),
        informativeness_V=torch.from_numpy(lexicon.informativeness),
    )


def stored_tables(source: Path, tokenizer: Tokenizer, settings: MaskingSettings) -> Tables:
    """What a strategy needs, as far as it is on the disk: the file of a lexicon; the folder of prepared data, whose
    tokens, documents and, where the strategy needs them, collocations are counted; or that of a run, with its data and
    its lexicon.

    A DataError says that the source is none of these, is damaged, or belongs to another tokenizer than the masker's.
    """
    lexicon = source / LEXICON_OF_RUN
    root = source if (source / MANIFEST).is_file() else source / DATA_OF_RUN
    if source.is_file():
        return lexicon_tables(source, tokenizer)
    if not (root / MANIFEST).is_file():
        if lexicon.is_file():  # a run on data that lies elsewhere
            return lexicon_tables(lexicon, tokenizer)
        raise DataError(f"{source}: give the file of a lexicon, or the folder of prepared data or of a run")

    manifest = load_manifest(root)
    if manifest.tokenizer_sha256 != tokenizer.fingerprint:
        raise DataError(f"{root} was prepared with another tokenizer than the one in use; give {root / 'tokenizer'}")
    store = open_split(root, manifest, manifest.train)
    counts = np.array(manifest.token_frequencies, dtype=np.int64)
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(counts), labels=manifest.annotations)
    if any(isinstance(weights, TfIdfWeights) for weights in all_weights(settings)):
        documents = torch.from_numpy(document_frequencies(store, tokenizer.vocab_size))
        tables = replace(tables, documents_V=documents, num_documents=len(store))
    if not any(isinstance(part, CollocationUnits | InformativeWeights) for part in settings_within(settings)):
        return tables
    if lexicon.is_file():
        content = load_lexicon(lexicon)
        content.check_tokenizer(tokenizer, name=str(lexicon))
    else:
        with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
            content = build_lexicon(
                lambda: store.chunks(CHUNK_TOKENS),
                tokenizer,
                LexiconSettings(),
                frequencies=counts,
                data_sha256=manifest.fingerprint,
                scratch=Path(scratch),
            )
    return with_lexicon(tables, content)
