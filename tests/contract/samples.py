"""Texts, annotations and a vocabulary, defined here so that recorded results depend on nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

NAMES = ("Anna", "Bruno", "Clara", "Dimitri")
SURNAMES = ("Lee", "Montgomery", "Okafor")
PLACES = ("York", "Constantinople", "Lima", "Samarkand")
VERBS = ("sees", "remembers", "photographs", "follows", "misunderstands")
ADJECTIVES = ("old", "embroidered", "red", "philosophical")
NOUNS = ("ship", "mountaineer", "queen", "cat", "lighthouse", "winter")
PREPOSITIONS = ("in", "near", "under")

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    "the", "in", "near", "under", "old", "red", "ship", "cat", "queen", "winter", "sees", "follows", "Anna", "Lee",
    "Lima", "York", "Clara", "Bruno", "light", "photo", "philo", "mis", "re", "mount", "em", ".", ",", "?", "!",
)  # fmt: skip
PIECES = (
    "##house", "##graphs", "##soph", "##ical", "##under", "##stands", "##members", "##ain", "##eer", "##broid",
    "##ered", "##ed", "##er",
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = tuple(
    dict.fromkeys([*SPECIAL, *WORDS, *PIECES, *LETTERS, *LETTERS.upper(), *(f"##{letter}" for letter in LETTERS)])
)

Span = tuple[int | str, ...]


def sentence(draw: random.Random, offset: int, first: int) -> tuple[str, dict[str, list[Span]]]:
    """A sentence, and its spans in the form of table rows: [begin, end, label], and the number of the head."""

    def one_of(words: Sequence[str]) -> str:
        return words[int(draw.random() * len(words))]  # `random()` is the same in every version of Python

    words = [one_of(NAMES), one_of(SURNAMES), one_of(VERBS), "the", one_of(ADJECTIVES), one_of(NOUNS)]
    words += [one_of(PREPOSITIONS), one_of(PLACES), "."]
    tags = ("PROPN", "PROPN", "VERB", "DET", "ADJ", "NOUN", "ADP", "PROPN", "PUNCT")
    relations = ("nsubj", "flat", "root", "det", "amod", "obj", "case", "obl", "punct")
    heads = (2, 0, 2, 5, 5, 2, 7, 2, 2)
    places = []
    for word in words:
        places.append((offset, offset + len(word)))
        offset += len(word) + 1
    begins, ends = zip(*places, strict=True)
    return " ".join(words), {
        "entities": [(begins[0], ends[1], "PER"), (begins[7], ends[7], "LOC")],
        "chunks": [(begins[0], ends[1], "NP"), (begins[3], ends[5], "NP"), (begins[7], ends[7], "NP")],
        "pos": [(*place, tag) for place, tag in zip(places, tags, strict=True)],
        "dependencies": [
            (*place, relation, first + head) for place, relation, head in zip(places, relations, heads, strict=True)
        ],
    }


def documents(count: int, seed: int) -> list[dict[str, object]]:
    """Rows with a text, a patient, a mood and annotations."""
    draw = random.Random(seed)
    rows: list[dict[str, object]] = []
    for number in range(count):
        text, columns = "", {name: [] for name in ("entities", "chunks", "pos", "dependencies")}
        for _ in range(1 + int(draw.random() * 6)):
            begin = len(text) + 1 if text else 0
            more, spans = sentence(draw, begin, len(columns["pos"]))
            text = f"{text} {more}" if text else more
            for name, found in spans.items():
                columns[name] += found
        mood = "cold" if "winter" in text else "warm"
        rows.append({"text": text, "patient": f"p{number % 40}", "mood": mood, **columns})
    return rows


def write_jsonl(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_samples(folder: Path) -> None:
    """Every file that the tests read."""
    rows = documents(400, seed=1)
    write_jsonl(folder / "annotated.jsonl", rows)
    (folder / "corpus.txt").write_text("\n\n".join(str(row["text"]) for row in rows) + "\n", encoding="utf-8")
    (folder / "lines.txt").write_text("".join(f"{row['text']}\n" for row in rows[:40]), encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in VOCABULARY), encoding="utf-8")
    labelled = [{"text": row["text"], "label": row["mood"]} for row in documents(120, seed=2)]
    write_jsonl(folder / "classify.jsonl", labelled)
    pairs = [
        {"sentence_good": good, "sentence_bad": " ".join(reversed(good.split())), "UID": "order"}
        for good in (str(row["text"]).split(" . ")[0] for row in rows[:20])
    ]
    write_jsonl(folder / "minimal.jsonl", pairs)
