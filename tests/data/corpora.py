"""Texts and tables for tests, and how a corpus reads them."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.core.files import LOCK
from unmask.data import data_folder, survey
from unmask.data import prepare as preparing
from unmask.data.corpus import Corpus
from unmask.data.data_folder import Manifest
from unmask.data.settings import CorpusSettings
from unmask.tokenizer.trainers import TokenizerSettings

SMALL = TokenizerSettings(vocab_size=200)
WORDS = [a + b + c for a in ("ka", "lo", "mi", "ter", "su") for b in ("ra", "ne", "vo", "lin") for c in ("", "s", "to")]


def random_text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words)).capitalize() + "."


def changed(rng: random.Random, text: str, num_changes: int = 1) -> str:
    """The text with some of its words replaced."""
    words = text.split()
    for place in rng.sample(range(len(words)), num_changes):
        words[place] = rng.choice(WORDS)
    return " ".join(words)


@functools.cache
def words_of(text: str) -> tuple[str, ...]:
    """The normal form of near-duplicates, for text of Latin letters."""
    return tuple(re.sub(r"\d+", "0", re.sub(r"[\W_]+", " ", text.lower())).split())


@functools.cache
def shingles_of(text: str) -> frozenset[tuple[str, ...]]:
    words = words_of(text)
    width = 5 if len(words) >= 5 else 1
    return frozenset(words[i : i + width] for i in range(len(words) - width + 1))


def jaccard(one: str, other: str) -> float:
    both = len(shingles_of(one) & shingles_of(other))
    return both / (len(shingles_of(one)) + len(shingles_of(other)) - both)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def corpus_of(path: Path | str, **settings: object) -> Corpus:
    return Corpus([path], CorpusSettings.model_validate(settings))


@contextmanager
def cut_into(*, task_bytes: int | None = None, size_bytes: int | None = None) -> Iterator[None]:
    """While it is entered, even little text is cut into tasks of this size, and these into shards; None: as usual."""
    with pytest.MonkeyPatch.context() as patch:
        if task_bytes is not None:
            patch.setattr(survey, "SMALLEST_TASK_BYTES", task_bytes)
        if size_bytes is not None:
            patch.setattr(data_folder, "SMALLEST_CHUNK_BYTES", size_bytes)
        yield


def prepare(*sources: Any, task_bytes: int | None = None, size_bytes: int | None = None, **options: Any) -> Manifest:
    with cut_into(task_bytes=task_bytes, size_bytes=size_bytes):
        return preparing.prepare(*sources, **options)


def texts_of(path: Path | str, **settings: object) -> list[str]:
    """All texts of a corpus, in its order."""
    corpus = Corpus([path], CorpusSettings.model_validate(settings), hold_out=False)
    return [piece.text for piece, _ in corpus.pieces()]


def left_of(path: Path | str, **settings: object) -> tuple[list[str], dict[str, int]]:
    """The texts of a corpus that skips bad input, and what it has skipped."""
    corpus = Corpus([path], CorpusSettings.model_validate({"bad_input": "skip", **settings}), hold_out=False)
    return [piece.text.strip() for piece, _ in corpus.pieces()], dict(corpus.skipped)


def sides(corpus: Corpus) -> dict[str, bool]:
    """Whether each text is held out."""
    return {piece.text: held for piece, held in corpus.pieces()}


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder but for its lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


TAGS = {
    "Anna": "PROPN", "Bonn": "PROPN", "sees": "VERB", "remembers": "VERB", "the": "DET", "a": "DET",
    "mountaineering": "NOUN", "philosopher": "NOUN", "king": "NOUN", "and": None,
}  # fmt: skip


def tagged_jsonl(path: Path, num_rows: int = 300) -> Path:
    """Random words, each with its tag, and the previous word as its head."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(num_rows):
        text, pos, dependencies = "", [], []
        for word in rng.choice(list(TAGS), rng.integers(3, 12)):
            begin = len(text) + bool(text)
            text += f"{' ' if text else ''}{word}"
            role = "obj" if dependencies else "root"
            dependencies.append([begin, len(text), role, max(len(dependencies) - 1, 0)])
            if TAGS[word] is not None:
                pos.append([begin, len(text), TAGS[word]])
        rows.append({"text": text, "pos": pos, "dependencies": dependencies})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path
