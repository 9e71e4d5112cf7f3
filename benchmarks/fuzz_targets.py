"""The targets of `fuzz.py`: for each reader of the package, valid files and the function that reads them.

A target is a folder of valid files, one of which a case damages, and a function that reads the folder. Reading must
end, in bounded time and memory, with a result or an `UnmaskError`.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import random
import shutil
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from safetensors import SafetensorError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import unmask
from tests import hostile_models, seeds
from tests.train.helpers import save_checkpoint
from unmask.commands.embedder_texts import read_pairs as read_positives
from unmask.commands.recipe import load_recipe
from unmask.commands.recipe_files import apply_overrides
from unmask.commands.run_data import RunFolder, open_prepared
from unmask.data.corpus import Corpus
from unmask.data.documents import Documents
from unmask.data.lexicon import load_lexicon
from unmask.data.settings import CorpusSettings
from unmask.measure.questions import read_pairs
from unmask.model.card_head import base_models
from unmask.search.known_items import held_out_rule, read_beir
from unmask.tasks.files import Columns, example_files, read_labelled
from unmask.tasks.kinds import task_named
from unmask.tokenizer.loading import load_tokenizer
from unmask.train.checkpoints import load_checkpoint
from unmask.train.optimizer import build_optimizer
from unmask.train.step import TrainState

Read = Callable[[Path, str, int], object]
"""Reads the folder of a case, given the folder, the name of the damaged file and the number of the case."""


class Target(NamedTuple):
    """A reader and its files."""

    files: Mapping[str, bytes]  # contents by name; each case damages one of them
    read: Read
    beside: Path | None = None  # an intact folder to copy, in which the damaged file is replaced
    is_whole: bool = True  # whether the files are valid before they are damaged
    is_folder: bool = False  # whether the folder has all files, the others undamaged


ROWS: list[dict[str, Any]] = [
    {"text": f'The cat number {n} sees the dog, and says "no".', "label": ["sea", "garden"][n % 2], "n": n,
     "id": str(n)}
    for n in range(40)
]  # fmt: skip
CONLL = "".join(f"The\tDET\tO\ncat{n}\tNOUN\tB-animal\nsleeps\tVERB\tO\n\n" for n in range(20))
CONLLU = "".join(
    f"# newdoc\n# text = The cat{n} sleeps\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n"
    f"2-3\tcatsleeps\t_\t_\t_\t_\t_\t_\t_\t_\n2\tcat{n}\tcat\tNOUN\tNN\t_\t3\tnsubj\t_\t_\n"
    "3\tsleeps\tsleep\tVERB\tVBZ\t_\t0\troot\t_\t_\n\n"
    for n in range(20)
)
QUESTIONS = [
    {"id": str(n), "question": "Where?", "answers": [{"text": "garden", "answer_start": 22}]} for n in range(8)
]
PARAGRAPHS = [{"context": "The cat sleeps in the garden. The dog sees it.", "qas": QUESTIONS}]
SQUAD = {"version": "1.1", "data": [{"title": "Cats", "paragraphs": PARAGRAPHS}]}
PAIRS = seeds.PAIR * 20
COLUMNS = {name: pa.array([row[name] for row in ROWS]) for name in ROWS[0]}


def _lines(rows: Iterable[object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _text_files() -> dict[str, bytes]:
    text = "".join(f"{row['text']}\n{'' if row['n'] % 3 else chr(10)}" for row in ROWS).encode()
    quoted = ('"' + row["text"].replace('"', '""') + f'",{row["label"]},{row["n"]}\n' for row in ROWS)
    table = "text,label,n\n" + "".join(quoted)
    answer = {"role": "assistant", "content": "No."}
    chats = [{"messages": [{"role": "user", "content": row["text"]}, answer]} for row in ROWS]
    return {
        "a.txt": text,
        "a.jsonl": _lines(ROWS),
        "a.json": json.dumps(ROWS).encode(),
        "chat.json": json.dumps({"data": chats}).encode(),
        "a.csv": table.encode(),
        "a.tsv": table.replace('"', "").replace(",", "\t").encode(),
        "a.fasta": "".join(f">seq {n}\nMKVLAAGIV\nTTGMKV\n" for n in range(20)).encode(),
        "a.conll": CONLL.encode(),
        "a.conllu": CONLLU.encode(),
        "a.parquet": seeds.parquet_of(COLUMNS),
        "a.txt.gz": gzip.compress(text),
        "a.txt.xz": lzma.compress(text),
        "a.txt.bz2": bz2.compress(text),
        "a.txt.zst": seeds.packed_zst(text),
    }


def read_corpus(folder: Path, name: str, number: int) -> object:
    """Reads all documents, with settings that vary with the case."""
    settings: dict[str, Any] = {"bad_input": ("error", "skip")[number % 2]}
    if number % 3 == 0:
        settings["documents"] = ("line", "block", "file")[number // 3 % 3]
    if number % 5 == 0:
        settings["cleaning"] = {"duplicates": "drop"}
    fields = {"entities": "-1"} if name.endswith(".conll") and number % 7 == 0 else None
    return sum(
        len(piece.text) for piece, _ in Corpus([folder / name], CorpusSettings(**settings), fields=fields).pieces()
    )


def read_saved(folder: Path, name: str, number: int) -> object:
    """Reads a folder saved by `datasets`, with a damaged file."""
    return sum(len(piece.text) for piece in Corpus([folder], CorpusSettings(), hold_out=False).unsplit())


def read_recipe(folder: Path, name: str, number: int) -> object:
    """Reads a recipe, or its lines as overrides."""
    if number % 2:
        return load_recipe(str(folder / name))
    lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    values: dict[str, Any] = {}
    apply_overrides(values, [f"training.{line.replace(' ', '')}" for line in lines if "=" in line])
    return load_recipe("tiny", overrides=[f"training.{line.replace(' ', '')}" for line in lines[:3] if "=" in line])


def read_model(folder: Path, name: str, number: int) -> object:
    """Loads a model, which then embeds and fills."""
    model = unmask.load(folder)
    vectors = model.embed(["The cat sleeps."])
    if not math.isfinite(float(vectors.sum())) and name != "model.safetensors":
        raise AssertionError("vectors are not finite")
    return model.fill(f"The {model.tokenizer.token(model.tokenizer.special.mask)} sleeps.", top_k=2)


def read_hostile(folder: Path, name: str, number: int) -> object:
    """Reads a model with the damage of the case, and broken in one or two ways that broke a reader before."""
    rng = random.Random(number)
    breaks = {**hostile_models.CONFIGS, **hostile_models.OURS, **hostile_models.FILES, **hostile_models.TASKS}
    for way in rng.sample(sorted(breaks), rng.choice((1, 2))):
        try:
            breaks[way](folder)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError, struct.error):
            continue  # the damage has left nothing to break in this way
    return read_model(folder, "model.safetensors", number)


def read_seed(folder: Path, name: str, number: int) -> object:
    """Reads a file that broke its reader before, with further damage."""
    kind, _, _ = name.partition("-")
    if kind == "pairs":
        return read_pairs(folder / name)
    if kind.startswith("corpus"):
        return read_corpus(folder, name, number)
    return read_labelled(folder / name, task_named(kind), Columns()).records


class Checkpoints:
    """A checkpoint that is loaded into the same state repeatedly: a refused one must leave the state unchanged."""

    def __init__(self, model: Path, root: Path) -> None:
        network = unmask.load(model).network
        training = load_recipe("tiny", overrides=list(SMALL)).training
        self.state = TrainState(network, build_optimizer(network, training), step=1)
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.state.optimizer.step()  # creates the moments
        self.folder = save_checkpoint(root, self.state, fingerprint="made here", keep=1)
        self.files = {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}

    def read(self, folder: Path, name: str, number: int) -> object:
        """Loads it. Any change must be refused, except for blanks in JSON, which mean nothing."""
        load_checkpoint(folder, self.state, fingerprint="made here")
        if name.endswith(".safetensors") and (folder / name).read_bytes() != self.files[name]:
            raise AssertionError("a damaged checkpoint was loaded")
        return self.state.step


class Indexes:
    """An index with a graph. A damaged copy must give the same answers as the original, or an error."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.texts = unmask.load(model), [row["text"] for row in ROWS]
        if not (folder / "index.json").is_file():
            unmask.Index.build(self.model, self.texts, out=folder, approximate=True, overwrite=folder.is_dir())
        self.answers = self._ask(folder)
        files = [folder / "index.json", *sorted((folder / "blocks").iterdir())]
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        self.folder, self.begun = folder, (folder / "search.json").read_bytes()

    def _ask(self, folder: Path) -> list[list[dict[str, Any]]]:
        index = unmask.Index(folder, model=self.model)
        ways: tuple[dict[str, Any], ...] = ({"exact": True}, {}, {"rank": "words"})
        return [index.query("The cat number 7", top_k=5, **way).queries for way in ways]

    def read(self, folder: Path, name: str, number: int) -> object:
        if self._ask(folder) != self.answers:
            raise AssertionError("a damaged index gave other answers")
        return folder

    def resume(self, folder: Path, name: str, number: int) -> object:
        """Resumes an unfinished index: damaged parts must be made again, or refused."""
        (folder / "index.json").unlink(missing_ok=True)
        unmask.Index.build(self.model, self.texts, out=folder, approximate=True, resume=True)
        exact, approximate, words = self._ask(folder)
        every = unmask.Index(folder, model=self.model).query("The cat number 7", top_k=len(self.texts), exact=True)
        scores = {hit["document"]: hit["score"] for hit in every.queries[0]["hits"]}
        # A rebuilt graph differs, and may miss a near passage, but its scores are exact.
        graph_hits = approximate[0]["hits"]
        if [exact, words] != self.answers[::2] or any(scores[hit["document"]] != hit["score"] for hit in graph_hits):
            raise AssertionError("a resumed index gave other answers")
        return folder


def _tune(work: Path, out: Path, **more: Any) -> unmask.FineTuned:
    labelled = work / "labelled.csv"
    return unmask.finetune(
        work / "whole" / "model", task="classify", train=labelled, validation=labelled, out=out,
        settings=("finetune.epochs=1", "finetune.precision=float32"), **more,
    )  # fmt: skip


SMALL = (
    "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2",
    "training.sequence_length=32", "training.batch_tokens=256", "evaluation.times=1",
)  # fmt: skip


def trained_run(work: Path) -> Path:
    """A run of a few steps with a lexicon, made once. Cases damage copies of its files."""
    run = work / "whole"
    if not (run / "lexicon.safetensors").is_file():
        text = work / "corpus.txt"
        work.mkdir(parents=True, exist_ok=True)
        text.write_text("\n".join(row["text"] for row in ROWS * 5), encoding="utf-8")
        shutil.rmtree(run, ignore_errors=True)
        unmask.pretrain(text, out=run, steps=2, vocab_size=150, settings=SMALL)
        labelled = work / "labelled.csv"
        labelled.write_text("text,label\n" + "".join(f"cat {n},{'ab'[n % 2]}\n" for n in range(20)), encoding="utf-8")
        shutil.rmtree(work / "tuned", ignore_errors=True)
        _tune(work, work / "tuned")
        unmask.lexicon(run / "data", out=run / "lexicon.safetensors", min_count=2)
    return run


def _of_folders(work: Path, run: Path, texts: Mapping[str, bytes]) -> dict[str, Target]:
    """Targets whose files are read together, and those of commands about search."""
    model = run / "model"
    tokenizer = load_tokenizer(model)
    beir = {
        "corpus.jsonl": _lines({"_id": row["id"], "title": "", "text": row["text"]} for row in ROWS),
        "queries.jsonl": _lines({"_id": f"q{n}", "text": f"cat number {n}"} for n in range(8)),
        "qrels/test.tsv": ("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\t{n}\t1\n" for n in range(8))).encode(),
    }
    pairs = [{"query": f"cat {row['n']}", "positive": row["text"], "negative": "A dog sleeps."} for row in ROWS]
    columns = {name: pa.array([row[name] for row in pairs]) for name in pairs[0]}
    table = "".join("\t".join(row.values()) + "\n" for row in ({name: name for name in columns}, *pairs))
    words = [token for token, _ in sorted(tokenizer.backend.get_vocab().items(), key=lambda item: item[1])]
    merged = json.dumps(
        {letter: n for n, letter in enumerate(["<s>", "<mask>", *"ĠT.", *map(chr, range(97, 123)), "th", "the"])}
    )
    vocabularies = {
        "bert/vocab.txt": "\n".join(words).encode(),
        "roberta/vocab.json": merged.encode(),
        "roberta/tokenizer_config.json": b'{"tokenizer_class": "RobertaTokenizer"}',
        "roberta/merges.txt": b"#version: 0.2\nt h\nth e\n",
    }

    def read_sentence(folder: Path, name: str, number: int) -> object:
        return base_models(str(folder), folder), unmask.load(folder).embed(["The cat sleeps."])

    def read_texts(folder: Path, name: str, number: int) -> object:
        with_ids = Documents(folder / name, None, id_column="id" if number % 2 else None, unit="line")
        return sum(len(document.text) for document in with_ids)

    embedder = work / "embedder" / "model"
    if not embedder.is_dir():
        shutil.rmtree(embedder.parent, ignore_errors=True)
        rng = random.Random(0)
        many = [" ".join(rng.choices(words[5:], k=20)) for _ in ROWS]
        short = ("embedder.batch_size=4", "embedder.first_lengths=[4,8]", "embedder.second_lengths=[4,16]")
        unmask.embedder(model, many, out=embedder.parent, steps=2, settings=short)
    beside = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json",
              "config.json", "README.md")  # fmt: skip
    return {
        "beir": Target(beir, lambda folder, *_: read_beir(folder, split="test", num_queries=5, seed=0), is_folder=True),
        "positives": Target(
            {"a.jsonl": _lines(pairs), "a.tsv": table.encode(), "a.parquet": seeds.parquet_of(columns)},
            lambda folder, name, number: read_positives(example_files(folder / name), {}, lambda text: None),
        ),
        "texts": Target({name: each for name, each in texts.items() if name.startswith("a.")}, read_texts),
        "vocabulary": Target(
            vocabularies,
            lambda folder, name, number: load_tokenizer((folder / name).parent).encode_corpus(["The cat sleeps."]),
            is_folder=True,
        ),
        "sentence": Target(_of(embedder, beside), read_sentence, embedder),
        "rule": Target(
            _of(embedder.parent, ("settings.json",)) | _of(run, ("sources.json", "recipe.toml", "data/manifest.json")),
            lambda folder, name, number: held_out_rule(folder / "model"),
            is_folder=True,
        ),
    }


SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def _of(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def targets(work: Path) -> dict[str, Target]:
    """All targets, by name; `work` keeps the trained run between calls."""
    run = trained_run(work)
    texts = _text_files()
    state = json.dumps({"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "x", "_split": None}).encode()
    labelled = {
        "classify-a.csv": texts["a.csv"],
        "classify-a.jsonl": texts["a.jsonl"],
        "classify-a.parquet": texts["a.parquet"],
        "regress-a.jsonl": _lines({"text": row["text"], "score": row["n"] / 7} for row in ROWS),
        "pairs-a.jsonl": _lines({"premise": row["text"], "hypothesis": "A.", "label": row["label"]} for row in ROWS),
        "multi_label-a.jsonl": _lines({"text": row["text"], "labels": ["x", row["label"]]} for row in ROWS),
        "tag-a.conll": CONLL.encode(),
        "tag-a.jsonl": _lines({"tokens": row["text"].split(), "tags": ["O"] * 10} for row in ROWS),
        "answer-a.json": json.dumps(SQUAD).encode(),
    }
    model, data, tuned = run / "model", run / "data", work / "tuned"
    in_model = (*SIDE_FILES, "config.json", "model.safetensors", "checksums.json")
    checkpoint = Checkpoints(model, work / "kept")
    indexes = Indexes(model, work / "index")
    shards = tuple(str(path.relative_to(data)) for path in sorted(data.rglob("*.arrow")))
    return {
        "corpus": Target(texts, read_corpus),
        "saved": Target(
            {"data.arrow": seeds.arrow_of(COLUMNS), "state.json": state, "dataset_info.json": b"{}"},
            read_saved,
            is_folder=True,
        ),
        "labelled": Target(
            labelled,
            lambda folder, name, number: read_labelled(folder / name, task_named(name.partition("-")[0]), Columns()),
        ),
        "pairs": Target(
            {"a.jsonl": PAIRS, "a.tar.gz": seeds.archive("gz", share=1.0)(), "a.jsonl.zst": seeds.packed_zst(PAIRS)},
            lambda folder, name, number: read_pairs(folder / name),
        ),
        "recipe": Target({"recipe.toml": (run / "recipe.toml").read_bytes()}, read_recipe),
        "model": Target(_of(model, in_model), read_model, model),
        "hostile": Target(_of(model, in_model), read_hostile, model, is_whole=False),
        "task": Target(
            _of(tuned / "model", in_model),
            lambda folder, name, number: unmask.load(folder).predict(["The cat sleeps.", ""]),
            tuned / "model",
        ),
        "result": Target(
            _of(tuned, ("settings.json", "runs.jsonl", "metrics.jsonl")),
            lambda folder, name, number: repr(_tune(work, folder, resume=True)),
            tuned,
        ),
        "finished": Target(
            _of(run, ("summary.json", "metrics.jsonl", "predictions.json")),
            lambda folder, name, number: repr(unmask.pretrain(out=folder, resume=True)),
            run,
        ),
        "checkpoint": Target(checkpoint.files, checkpoint.read, checkpoint.folder),
        "seed": Target(
            {f"{seed.reader}-{seed.name}": seed.content() for seed in seeds.SEEDS}, read_seed, is_whole=False
        ),
        "tokenizer": Target(
            _of(model, SIDE_FILES),
            lambda folder, name, number: load_tokenizer(folder).encode_corpus(["The cat sleeps in Constantinople."]),
            model,
        ),
        "data": Target(
            _of(data, ("manifest.json", "tokenizer/tokenizer.json", *shards)),
            lambda folder, name, number: open_prepared(folder).train.num_tokens,
            data,
        ),
        "run": Target(
            _of(run, ("recipe.toml", "sources.json")),
            lambda folder, name, number: (
                RunFolder(folder).read_sources(),
                load_recipe(str(RunFolder(folder).recipe), complete=False),
            ),
            run,
        ),
        "index": Target(indexes.files, indexes.read, indexes.folder),
        "resumed_index": Target(indexes.files | {"search.json": indexes.begun}, indexes.resume, indexes.folder),
        "lexicon": Target(_of(run, ("lexicon.safetensors",)), lambda folder, name, number: load_lexicon(folder / name)),
    } | _of_folders(work, run, texts)
