"""What `unmask embedder` trains on is never what `unmask evaluate-search` asks for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import unmask
from tests.commands.test_embedder import FAST, base
from unmask.commands.embedder_texts import TokenTexts, read_texts
from unmask.data.settings import CorpusSettings
from unmask.data.survey import fraction
from unmask.search.known_items import ItemSettings, held_out_rule, read_items
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer

__all__ = ["base"]
SYLLABLES = ["king", "queen", "dog", "cat", "ship", "winter", "garden", "sea", "bridge"]
FEW_STEPS = FAST | {"embedder.mlm_weight": 0}


def story(number: int) -> str:
    """One line; stories have few triples of words in common."""
    return " ".join(random.Random(number).choices(SYLLABLES, k=40))


def check(folder: Path, corpus: Path) -> None:
    """What a search asks for is held out of the training, by the rule of the folder."""
    tokenizer = load_tokenizer(folder / "model")
    read = read_items([corpus], folder / "model", ItemSettings())
    assert f"(as in {folder})" in read.described[0]
    chosen = {tuple(tokenizer.encode_joined([" ".join(each.text.split())])[0].input_ids) for each in read.documents}
    texts = TokenTexts.load(folder / "data" / "texts.safetensors")
    sides: tuple[set[tuple[int, ...]], set[tuple[int, ...]]] = (set(), set())
    for begin, end, is_held in zip(texts.begins, texts.ends, texts.held, strict=True):
        sides[is_held].add(tuple(texts.ids[begin:end].tolist()))
    trained, held = sides
    assert 1 < len(chosen) <= len(held) < len(trained)
    assert chosen <= held
    assert not chosen & trained


def test_from_a_run_to_a_table_with_titles_and_on(corpus_file: Path, tmp_path: Path) -> None:
    """The run's rule holds for its embedder, and for another that begins with that; other titles change nothing."""
    settings = (
        "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "training.batch_tokens=256",
        "tokenizer.vocab_size=200", "corpus.holdout=0.3",
    )  # fmt: skip
    run = unmask.pretrain([corpus_file], out=tmp_path / "run", steps=1, settings=settings).folder
    table = tmp_path / "t.jsonl"
    rows = [{"title": f"the {SYLLABLES[n % 9]}", "text": story(n)} for n in range(150)]
    rows += [{"title": "again", "text": story(n)} for n in range(40)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = unmask.embedder(run / "model", [table], out=tmp_path / "a", steps=1, settings=FEW_STEPS)
    check(first.folder, table)
    maker, rule = held_out_rule(first.folder / "model")
    assert (maker, rule.holdout) == (first.folder, 0.3)
    texts = TokenTexts.load(first.folder / "data" / "texts.safetensors")
    held = [fraction(row["text"]) < 0.3 for row in rows]
    assert texts.held.astype(bool).tolist() == held
    assert texts.titled.all()
    second = unmask.embedder(first.folder / "model", [table], out=tmp_path / "b", steps=1, settings=FEW_STEPS)
    check(second.folder, table)
    assert held_out_rule(second.folder / "model") == (second.folder, rule)
    chosen = FEW_STEPS | {"embedder.holdout": 0.1}
    third = unmask.embedder(run / "model", [table], out=tmp_path / "c", steps=1, settings=chosen)
    assert held_out_rule(third.folder / "model")[1].holdout == 0.1, "unless another share is asked for"


def test_by_the_default_rule(base: Path, tmp_path: Path) -> None:
    """Where documents are few, parts of them are held out: here they are lines, too."""
    file = tmp_path / "t.txt"
    file.write_text("".join(f"{story(n)}\n" for n in range(60)))
    trained = unmask.embedder(base, [file], out=tmp_path / "e", steps=1, settings=FEW_STEPS | {"corpus.holdout": 0.1})
    check(trained.folder, file)


def test_near_duplicates_of_what_is_held_out_are_not_trained_on(base: Path, tokenizer: Tokenizer,
                                                                tmp_path: Path) -> None:  # fmt: skip
    file = tmp_path / "t.txt"
    stories = [f"{story(n)} {story(n + 1000)} {story(n + 2000)}" for n in range(200)]
    file.write_text("\n".join([*stories, *(f"{text} ship" for text in stories)]) + "\n")
    notes: list[str] = []
    texts = read_texts([file], tokenizer, CorpusSettings(holdout=0.1), note=notes.append, notify=lambda progress: None)
    either = [fraction(a) < 0.1 or fraction(f"{a} ship") < 0.1 for a in stories]
    assert texts.held.astype(bool).tolist() == either * 2
    assert any(note.startswith("held out as near-duplicates of held-out documents: ") for note in notes)
