"""What is held out, and what of it the training text nearly has: in the manifest, for any number of workers."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

import unmask
from tests.data.test_split_check import random_text, words_of
from unmask.commands.prepare import describe
from unmask.data.corpus import Corpus
from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.near_duplicates import NearDuplicates
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.tokenizer.settings import TokenizerSettings

PLAIN = CorpusSettings(documents="line")


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of 150 events, which differ in numbers."""
    rng = random.Random(0)
    events = [f"{random_text(rng, 5)} of {{}} in {{}} ms" for _ in range(150)]
    path = tmp_path_factory.mktemp("log") / "log.txt"
    lines = [rng.choice(events).format(rng.randrange(10**6), rng.randrange(999)) for _ in range(3000)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def made(source: Path, out: Path, corpus: CorpusSettings, *, workers: int = 1, given: Path | None = None) -> Manifest:
    tokenizer = TokenizerSettings(vocab_size=200) if given is None else TokenizerSettings(path=str(given))
    return prepare([source], out, corpus=corpus, tokenizer=tokenizer, workers=workers, size_bytes=20_000)


def test_the_manifest_tells_of_near_duplicates(log_file: Path, tmp_path: Path) -> None:
    """Counted here by sets of words; the same with a tokenizer that is given, which takes a pass of its own."""
    found: list[NearDuplicates | None] = []
    for number, workers in enumerate((1, 3)):
        manifest = made(log_file, tmp_path / str(number), PLAIN, workers=workers)
        found.append(manifest.near_duplicates)
        assert load_manifest(tmp_path / str(number)) == manifest
        (line,) = (line for line in describe(manifest) if "near-duplicate" in line)
        assert line.startswith("warning: ")
        assert "--set corpus.holdout_groups=near_duplicates" in line
    manifest = made(log_file, tmp_path / "given", PLAIN, given=tmp_path / "0" / "tokenizer")
    assert found == [manifest.near_duplicates] * 2
    marked = [(tuple(words_of(piece.text)), held) for piece, held in Corpus([log_file], PLAIN).pieces()]
    training = {words for words, held in marked if not held}
    twice = sum(words in training for words, held in marked if held)
    first = found[0]
    assert first is not None
    assert first.held_out == first.compared == sum(held for _, held in marked)
    assert first.equal + first.normalised == twice > 0.9 * first.held_out


@pytest.mark.parametrize(
    ("asked", "sha256"),
    [
        ({}, "e6894bb8f0b299076741afced7ecf9804cfa3ce45a9fb63db9523967b31e03eb"),
        ({"documents": "file"}, "b4e793d82c0c7ef7822d0e020d55ada4051255e54969121b8aa8b566b1770a56"),
        (
            {"holdout_from": "end", "holdout": 0.1},
            "15e873534fe9c599243ec589106f3737a568a0884e8242c3eff5c78e048b8765",
        ),
    ],
)
def test_without_the_setting_the_split_is_what_it_was(asked: dict[str, object], sha256: str) -> None:
    """Every piece of the demo's text and its side, as they were before there were groups; and no key is added."""
    corpus = CorpusSettings.model_validate(asked)
    digest = hashlib.sha256()
    for piece, held in Corpus([Path(unmask.__file__).parent / "data" / "tinyshakespeare.txt"], corpus).pieces():
        digest.update(repr((piece.document, piece.offset, piece.text, held)).encode())
    assert digest.hexdigest() == sha256
