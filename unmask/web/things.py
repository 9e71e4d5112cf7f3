"""Finds, names and opens what is in the studio's folders: runs, models, data, indexes, texts and maps.

A thing is recognized by a file that its command writes: a run by its recipe, a model by its configuration, and so on.
Nothing outside of the folders is ever read or written.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from safetensors.torch import load_file

from unmask.commands.masks import SHOWN_VOCABULARY, tables_of
from unmask.commands.recipe import encoder_config, load_recipe, read_fitting_config
from unmask.commands.run_data import PreparedData, RunFolder, open_prepared, packaged_corpus
from unmask.core.errors import RunError, UnmaskError, parse_json
from unmask.core.files import LOCK
from unmask.data.data_folder import MANIFEST, is_prepared
from unmask.data.reading import bare_suffix, broken_character
from unmask.data.sources import CODE, kind_of
from unmask.masking.settings import MaskingSettings
from unmask.masking.tables import Scores, Tables, stored_tables
from unmask.model.encoder import MaskedLM
from unmask.model.layers import heads_for
from unmask.search.index import Index
from unmask.tasks.loaded_model import Model, as_predictor
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import train_wordpiece
from unmask.train.scores import main_directions

Kind = Literal["run", "finetuning", "embedder", "comparison", "model", "checkpoint", "data", "index", "text", "map"]
MOST_THINGS, MOST_NAMES, DEEPEST = 2_000, 1_000, 4
OPEN_AT_ONCE = 4  # models, data and indexes of each kind
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class Library:
    """The folders, and what is open of them. Paths outside of them are refused. Threads may share it."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.roots = [Path(path).resolve() for path in paths]
        for root in self.roots:
            if broken_character(str(root)):
                raise RunError(f"{str(root)!r}: the studio cannot show a path that is not UTF-8; rename it")
        # New runs and maps are written here. Without any folder, `within` refuses them.
        self.base = next((root for root in self.roots if not root.is_file()), self.roots[0])
        self.computing = threading.Lock()  # one computation at a time: a model uses all cores anyway
        self._opened: OrderedDict[tuple[str, str], tuple[float, Any]] = OrderedDict()

    def within(self, name: str) -> Path:
        """Resolves a path, links included, below one of the folders; a RunError for any other."""
        path = Path(name)
        with suppress(OSError, ValueError):
            path = (self.base / path).resolve()
            if any(path == root or (path.is_relative_to(root) and not root.is_file()) for root in self.roots):
                return path
        raise RunError(f"{name}: outside the folders that the studio was started with; start it with this one, too")

    def typed(self, name: str) -> Path:
        """A path as commands take it: a relative one starts at the folder where the studio was started."""
        if not (Path(name).is_absolute() or Path(name).exists()):
            raise RunError(
                f"{name}: not in {Path.cwd()}, where the studio was started; start it in the folder of that command"
            )
        return self.within(str(Path.cwd() / name))

    def list(self) -> list[dict[str, Any]]:
        """All things, the newest first: `kind`, `path`, `name`, `state` and `facts`."""
        all_things = chain.from_iterable(_find(root, root, 0) for root in self.roots)
        return sorted(islice(all_things, MOST_THINGS), key=lambda thing: -thing["changed"])

    # Opened things. Each depends on the date of a file, which says whether it has changed.

    def model(self, name: str) -> Model:
        """A model that predicts tokens, by the folder of a model, a run or a checkpoint."""
        path = self.within(name)
        named = [folder / file for folder in (path / "model", path) for file in _WEIGHTS]
        weights = next(filter(Path.is_file, (*named, path)), named[-2])
        return self._open("model", path, weights, _load_checkpoint if is_checkpoint(path) else as_predictor)

    def data(self, name: str) -> PreparedData:
        path = self.within(name)
        if not (path / MANIFEST).is_file():  # the data of a run, in its folder or elsewhere
            sources = RunFolder(path).read_sources() if (path / "sources.json").is_file() else []
            path = self.typed(sources[0]) if is_prepared(sources) else path / "data"
        return self._open("data", path, path / MANIFEST, open_prepared)

    def index(self, name: str) -> Index:
        path = self.within(name)
        return self._open("index", path, path, Index)

    def bench(self, source: str | None) -> tuple[Tokenizer, Callable[[MaskingSettings], Tables]]:
        """The tokenizer to show masks with, and a function from masking settings to tables. Without a source, both are
        made from Tiny Shakespeare, as in `unmask masks`."""
        if source is None:
            tokenizer, tables = self._open("bench", packaged_corpus(), packaged_corpus(), _packaged_bench)
            return tokenizer, lambda settings: tables
        data = self.data(source)

        def tables_for(settings: MaskingSettings) -> Tables:
            kinds = (settings.units.kind, settings.weights.kind)
            return self._open(
                f"tables of {kinds}",
                data.root,
                data.root / MANIFEST,
                lambda root: stored_tables(root, data.tokenizer, settings),
            )

        return data.tokenizer, tables_for

    def scores(self, source: str | None) -> Scores:
        """Scores of a run, or of the run around prepared data, for strategies that follow a model: its embedding and,
        if its masking followed scores, those of its last checkpoint. Without a run there are none."""
        with suppress(UnmaskError):
            if source is not None:
                run = self.within(source)
                run = self.within(str(run.parent)) if (run / MANIFEST).is_file() else run
                return self._open("scores", run, run / "metrics.jsonl", self._scores)
        return Scores(0, {})

    def _scores(self, run: Path) -> Scores:
        saved = sorted((run / "checkpoints").glob("step-*/scores.safetensors"))
        tables = {} if not saved else load_file(saved[-1])
        tables = {name.removeprefix("scores."): table for name, table in tables.items() if name.startswith("scores.")}
        with suppress(UnmaskError):  # it has no model yet
            network = self.model(str(run)).predictor
            if isinstance(network, MaskedLM):
                tables.setdefault("embedding", main_directions(network.encoder.tokens.detach()))
        return Scores(1, tables)

    def _open(self, kind: str, path: Path, dated: Path, opening: Callable[[Path], Any]) -> Any:
        try:
            date = dated.stat().st_mtime
        except OSError as error:
            raise RunError(f"{path}: no longer exists; reload the page") from error
        key = (kind, str(path))
        entry = self._opened.get(key)
        if entry is None or entry[0] != date:
            entry = self._opened[key] = date, opening(path)
        self._opened.move_to_end(key)
        alike = [each for each in list(self._opened) if each[0] == kind]
        for old in alike[:-OPEN_AT_ONCE]:
            self._opened.pop(old, None)
        return entry[1]


def _packaged_bench(file: Path) -> tuple[Tokenizer, Tables]:
    corpus = file.read_text(encoding="utf-8").splitlines()
    tokenizer = Tokenizer(train_wordpiece(lambda: corpus, vocab_size=SHOWN_VOCABULARY))
    return tokenizer, tables_of(tokenizer, corpus)


def is_checkpoint(name: str | Path) -> bool:
    """Whether it is a checkpoint of a run of ours; other trainers have folders with this name, too."""
    folder = Path(name).parent
    return folder.name == "checkpoints" and (folder.parent / "recipe.toml").is_file()


def _load_checkpoint(folder: Path) -> Model:
    """The model of a run as it was at a checkpoint, also while the run trains."""
    run = RunFolder(folder.parent.parent)
    own = [each for each in (run.model, run.start) if (each / "config.json").is_file()]
    if own:
        tokenizer = load_tokenizer(own[0])
        config = read_fitting_config(own[0], tokenizer)
    else:
        recipe, sources = load_recipe(str(run.recipe), complete=False), run.read_sources()
        tokenizer = load_tokenizer(Path(sources[0] if is_prepared(sources) else run.data) / "tokenizer")
        config = encoder_config(recipe, tokenizer)
    network, tensors = MaskedLM(config, heads_for(config)), load_file(folder / "model.safetensors")
    network.load_state_dict({name: tensors[name] for name in network.state_dict() if name in tensors})
    model = Model(folder, network, tokenizer)
    model.to()
    return model


# ----------------------------------------
# Finding.


def _find(path: Path, root: Path, depth: int) -> Iterator[dict[str, Any]]:
    """The things at and below a path. Names that are not valid Unicode are left out, since JSON cannot hold them."""
    if broken_character(path.name):
        return
    if path.is_file():
        if path.suffix == ".parquet" and _is_map(path):
            yield _thing("map", path, root)
        elif kind_of(path) is not None and bare_suffix(path) not in (*CODE, ".json"):  # most of which is no text
            yield _thing("text", path, root)
        return
    try:
        names = {entry.name for entry in os.scandir(path)}
    except OSError:  # not readable, or removed meanwhile
        return
    if len(names) > MOST_NAMES:  # a folder of data files
        return
    kind = _kind(names)
    inner = sorted(name for name in names if not name.startswith("."))
    if kind is not None:
        yield _thing(kind, path, root)
        # The model of a fine-tuning predicts no tokens.
        inner = [name for name in ("model", "data") if name in names] if kind in ("run", "embedder") else []
    if kind == "run" and "checkpoints" in names:
        for folder in sorted((path / "checkpoints").glob("step-*")):
            yield _thing("checkpoint", folder, root)
    for name in inner:
        child = path / name
        if depth < DEEPEST and not child.is_symlink() and (child.is_dir() or depth < 2):
            yield from _find(child, root, depth + 1)


def _is_map(path: Path) -> bool:
    try:
        return {"x", "y", "text"} <= set(pq.read_schema(path).names)
    except (OSError, ValueError):
        return False


def _kind(names: set[str]) -> Kind | None:
    if {"recipe.toml", "sources.json"} <= names:
        return "run"
    if "settings.json" in names and names & {"runs.jsonl", "metrics.jsonl", "summary.json", f"{LOCK}.json"}:
        # Until its first seed is finished, a fine-tuning has no figures.
        is_embedder = "runs.jsonl" not in names and names & {"texts.safetensors", "metrics.jsonl", "summary.json"}
        return "embedder" if is_embedder else "finetuning"
    marks: dict[str, Kind] = {"compare.json": "comparison", MANIFEST: "data", "index.json": "index"}
    for mark, kind in marks.items():
        if mark in names:
            return kind
    is_model = "config.json" in names and names & {*_WEIGHTS}
    return "model" if is_model else None


def _thing(kind: Kind, path: Path, root: Path) -> dict[str, Any]:
    facts, state = {}, ""
    if kind in ("run", "finetuning", "embedder", "comparison"):
        state = state_of(path)
        with suppress(OSError, ValueError):
            facts = parse_json(path / "summary.json")
    changed = 0.0
    with suppress(OSError):
        changed = path.stat().st_mtime
    # Most models are in a folder that is called "model".
    above = root.parent.parent if kind == "model" and path == root else root.parent
    shown = path.relative_to(above).as_posix()
    return {"kind": kind, "path": str(path), "name": shown, "state": state, "changed": changed, "facts": facts}


def state_of(path: Path) -> Literal["finished", "running", "stopped", "gone"]:
    if not path.is_dir():
        return "gone"
    if holder_of(path) is not None:
        return "running"
    return "finished" if any((path / name).is_file() for name in ("summary.json", "result.json")) else "stopped"


def holder_of(path: Path) -> int | None:
    """The process that is writing a folder, if it runs on this machine."""
    try:
        if os.name != "posix":  # os.kill cannot ask there whether a process exists
            return None
        holder = json.loads((path / f"{LOCK}.json").read_text(encoding="utf-8"))
        if holder["host"] != socket.gethostname():
            return None
        os.kill(holder["pid"], 0)
        return int(holder["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
