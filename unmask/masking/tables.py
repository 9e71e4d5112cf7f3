"""Tables over the vocabulary that strategies use besides the rows, passed in or read from the disk.

Shape suffixes: V = vocabulary, D = dimensions, P = places of a hash set.
"""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unmask.core.errors import DataError, SettingsError, listed
from unmask.core.settings import Settings, settings_within
from unmask.data.data_folder import MANIFEST, load_manifest, open_split
from unmask.data.lexicon import Lexicon, LexiconSettings, build_lexicon, load_lexicon
from unmask.data.store import TokenStore, document_frequencies
from unmask.masking.draw_loops import hash_set
from unmask.tokenizer.tokenizer import Tokenizer

LEXICON_OF_RUN, DATA_OF_RUN = "lexicon.safetensors", "data"


@dataclass(frozen=True)
class Scores:
    """A model's scores of the vocabulary at a step. Masking never sees the model itself."""

    version: int  # the step at which they were computed
    # By name, float32 [V] or [V, D]; `pos_loss` is [labels + 1], by number of the part of speech, 0 for tokens
    # without one. Empty before the first scores.
    tables: Mapping[str, Tensor]


_LEXICON = "give the masker tables=PATH of a lexicon (made by `unmask lexicon DATA --out F`) or of prepared data"
_MISSING = {
    "frequencies_V": "the frequency of each of the {} ids: give tables=PATH of prepared data, or "
    "frequencies=unmask.count_tokens(dataset, tokenizer)",
    "documents_V": "the number of documents that contain each of the {} ids: give tables=PATH of prepared data",
    "collocations_P": f"a lexicon of collocations; {_LEXICON}",
    "informativeness_V": f"how informative each of the {{}} ids is; {_LEXICON}",
}


@dataclass(frozen=True)
class Tables:
    """Tables over the vocabulary, on the host. Tables that the strategy does not need may be None."""

    vocab_size: int
    frequencies_V: Tensor | None = None  # int64: count of each id in the training text
    documents_V: Tensor | None = None  # int64: number of documents that contain each id; long ones count as several
    num_documents: int = 0
    scores: Scores | None = None  # a model's scores of the vocabulary
    # int64: hash set of a lexicon's collocations (`unmask.core.hashing.longer`, `hash_set`)
    collocations_P: Tensor | None = None
    informativeness_V: Tensor | None = None  # float: how much each token reveals of its neighbours; from a lexicon
    # Names of labels by column of annotation; a label's number is its place, counted from 1
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Cache of tensors that units and weights derive from these tables
    derived: dict[Hashable, Tensor] = field(init=False, default_factory=dict, repr=False, compare=False)

    def need(self, name: str, needed_by: str) -> Tensor:
        """A table by its name. If it is missing or has another size, raises a SettingsError that names `needed_by`."""
        table: Tensor | None = getattr(self, name)
        if table is None or (name != "collocations_P" and len(table) != self.vocab_size):
            raise SettingsError(f"{needed_by} need {_MISSING[name].format(self.vocab_size)}")
        return table

    def score(self, name: str, needed_by: str) -> Tensor | None:
        """A score of the vocabulary. None if the model in training has not computed it yet: then weights are equal."""
        if self.scores is not None and not self.scores.tables:
            return None
        if self.scores is None or name not in self.scores.tables:
            way_out = "in a loop of your own, pass scores to the Masker"
            raise SettingsError(f"{needed_by} needs a model's score {name!r}, which a training run computes; {way_out}")
        return self.scores.tables[name]

    def labels_of(self, column: str, needed_by: str) -> Sequence[str]:
        if column not in self.labels:
            raise SettingsError(
                f"{needed_by} needs the labels of the annotation {column!r}, which are in the manifest of "
                "prepared data: Tables(..., labels=manifest.annotations)"
            )
        return self.labels[column]


Value = TypeVar("Value", str, int)


def the_only(name: str, values: Iterable[Value | None]) -> Value | None:
    """The value of a setting for a table that all parts of a mixture share; None if no part sets it. Raises a
    SettingsError if parts differ."""
    distinct = sorted({value for value in values if value is not None})
    if len(distinct) > 1:
        raise SettingsError(f"masking: a run takes a single {name}, but the settings name {listed(map(str, distinct))}")
    return distinct[0] if distinct else None


def needed_lexicons(masking: Settings) -> set[str | None]:
    """The lexicons that the masking settings name; None stands for one that is needed but not named."""
    return {part.lexicon for part in settings_within(masking) if hasattr(part, "lexicon")}


def named_lexicon(masking: Settings) -> Path | None:
    path = the_only("lexicon", needed_lexicons(masking))
    return None if path is None else Path(path)


def named_background(masking: Settings) -> tuple[Path | None, int | None]:
    """The background corpus that weights by anchors name, and their number of anchors. Raises a SettingsError if parts
    of a mixture differ."""
    parts: list[Any] = [part for part in settings_within(masking) if getattr(part, "kind", None) == "anchors"]
    path: str | None = the_only("background", (each.background for each in parts))
    return None if path is None else Path(path), the_only("num_anchors", (each.num_anchors for each in parts))


def named_files(masking: Settings) -> dict[str, tuple[str, str]]:
    """The lexicon and the background corpus that masking settings name: by path, a hash of the content, and that of the
    tokenizer that it was made with."""
    files: dict[str, tuple[str, str]] = {}
    if (path := named_lexicon(masking)) is not None:
        lexicon = load_lexicon(path)
        files[str(path)] = lexicon.fingerprint, lexicon.facts["tokenizer_sha256"]
    if (path := named_background(masking)[0]) is not None:
        manifest = load_manifest(path)
        files[str(path)] = manifest.fingerprint, manifest.tokenizer_sha256
    return files


def lexicon_of(path: Path, tokenizer: Tokenizer) -> Lexicon:
    content = load_lexicon(path)
    content.check_tokenizer(tokenizer, name=str(path))
    return content


def with_lexicon(tables: Tables, lexicon: Lexicon) -> Tables:
    return replace(
        tables,
        collocations_P=torch.from_numpy(hash_set(lexicon.hashes())),
        informativeness_V=torch.from_numpy(lexicon.informativeness),
    )


def needs_documents(masking: Any) -> bool:
    """Whether the weights of masking settings need counts of documents: tf-idf does, and a user's own may."""
    parts = [part for part in settings_within(masking.units) if hasattr(part, "weights")]  # of a mixture
    weights = [part.weights for part in (masking, *parts)]
    return any(
        getattr(each, "kind", "") == "tfidf" or not type(each).__module__.startswith("unmask.") for each in weights
    )


def with_documents(tables: Tables, store: TokenStore) -> Tables:
    documents = torch.from_numpy(document_frequencies(store.chunks(), tables.vocab_size))
    return replace(tables, documents_V=documents, num_documents=len(store))


def stored_tables(source: Path, tokenizer: Tokenizer, settings: Settings) -> Tables:
    """The tables of a strategy from the disk. The source is a lexicon's file; a folder of prepared data, in which
    tokens and, if the strategy needs them, documents and collocations are counted; or a run's folder, with its data and
    lexicon. If the settings name a lexicon, no lexicon is read or made here.

    Raises a DataError if the source is none of these, is damaged, or belongs to another tokenizer than the masker's.
    """
    lexicon = source / LEXICON_OF_RUN
    root = source if (source / MANIFEST).is_file() else source / DATA_OF_RUN
    if source.is_file():
        return with_lexicon(Tables(tokenizer.vocab_size), lexicon_of(source, tokenizer))
    is_named = named_lexicon(settings) is not None
    if not (root / MANIFEST).is_file():
        if lexicon.is_file():  # a run whose data is elsewhere
            tables = Tables(tokenizer.vocab_size)
            return tables if is_named else with_lexicon(tables, lexicon_of(lexicon, tokenizer))
        raise DataError(f"{source}: give the file of a lexicon or the folder of prepared data or of a run")

    manifest = load_manifest(root)
    if manifest.tokenizer_sha256 != tokenizer.fingerprint:
        raise DataError(f"{root} was prepared with another tokenizer than the one in use; give {root / 'tokenizer'}")
    store = open_split(root, manifest, manifest.train)
    counts = np.array(manifest.token_frequencies, dtype=np.int64)
    tables = Tables(tokenizer.vocab_size, torch.from_numpy(counts), labels=manifest.annotations)
    if needs_documents(settings):
        tables = with_documents(tables, store)
    if is_named or not needed_lexicons(settings):
        return tables
    if lexicon.is_file():
        content = lexicon_of(lexicon, tokenizer)
    else:
        with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
            content = build_lexicon(
                store.chunks,
                tokenizer,
                LexiconSettings(),
                frequencies=counts,
                data_sha256=manifest.fingerprint,
                scratch=Path(scratch),
            )
    return with_lexicon(tables, content)
