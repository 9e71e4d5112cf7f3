"""Text with parts of speech, for tests of what follows them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

TAGS = {
    "Anna": "PROPN", "Bonn": "PROPN", "sees": "VERB", "remembers": "VERB", "the": "DET", "a": "DET",
    "mountaineering": "NOUN", "philosopher": "NOUN", "king": "NOUN", "and": None,
}  # fmt: skip


def tagged_jsonl(path: Path, num_rows: int = 300) -> Path:
    """Words by chance, each with its tag, and hung on the word before it."""
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
