"""Commands and snippets of README and the pages under docs/ run as they stand, and their links lead somewhere."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import Main
from tests.core.conftest import put_in_cache
from unmask.commands.embedder_pairs import EmbedderSettings
from unmask.commands.recipe import Recipe
from unmask.tasks.task import FinetuneSettings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
GUIDES = ("README", "finetuning", "installing", "limits", "measuring", "pretraining", "search", "trainer", "using")
WNUT = ("wnut17train", "emerging.dev", "emerging.test")
ORDER = (
    "prepare", "pretrain", "embedder", "fill", "embed", "evaluate", "score", "export", "verify", "finetune", "predict",
    "compare", "search", "evaluate-search",
)  # fmt: skip


BATCH = ["--set", "training.batch_tokens=512"]
SMALLER = {
    "pretrain": BATCH, "compare": BATCH, "embedder": ["--set", "embedder.batch_size=8"],
    "finetune": ["--set", "finetune.epochs=1"],
}  # fmt: skip


def write_story_files(folder: Path, text: str) -> None:
    """Small files in the places of those that "The whole way" (docs/results.md) reads."""
    lines = [line for line in text.splitlines() if line]
    texts = ("novels/novels.train.txt.gz", "novels/novels.valid.txt.gz", "cpp_docs/cpp_docs_prose.txt.gz")
    sentiment = "".join(f"{line}\t{len(line) % 2}\n" for line in lines[:60])
    entities = "".join(f"{word}\t{'B-person' if word[0].isupper() else 'O'}\n" for word in lines[0].split())
    pair = json.dumps({"sentence_good": lines[0], "sentence_bad": lines[1], "UID": "order", "linguistics_term": "word"})
    files = {
        **{name: gzip.compress(text.encode()) for name in texts},
        **{f"sst2/{split}.tsv": sentiment.encode() for split in ("train", "dev", "test")},
        **{f"wnut17/{name}.conll": (f"{entities}\n" * 8).encode() for name in WNUT},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "blimp").mkdir()
    with tarfile.open(folder / "blimp" / "blimp.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("order.jsonl")
        member.size = len(pair)
        archive.addfile(member, io.BytesIO(pair.encode()))


def guides() -> str:
    """The pages that say how to do something, one after the other, and the commands of "The whole way"."""
    story = PAGES[ROOT / "docs" / "results.md"].partition("## The whole way\n")[2].partition("<!-- story -->")[0]
    return "\n".join([*(text for path, text in PAGES.items() if path.stem in GUIDES), story])


def commands() -> list[list[str]]:
    joined = guides().replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?(unmask .+?)(?:   +#.*)?$", joined, re.MULTILINE)
    inline = re.findall(r"`(unmask (?:prepare|pretrain|lexicon) [^`]+)`", re.sub(r"\n", " ", joined))
    return [shlex.split(line)[1:] for line in dict.fromkeys([*lines, *inline])]  # README shows some of the pages' own


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_every_command_runs(
    corpus_file: Path, run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    """With the options that they are shown with, on a small corpus, for two steps; the hub's model is in its cache."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_bytes(corpus_file.read_bytes())
    lines = [line for line in corpus_file.read_text().splitlines() if line]
    for name in ("reviews.csv", "reviews-dev.csv"):
        (tmp_path / name).write_text("text,mood\n" + "".join(f"{s},{len(s) % 2}\n" for s in lines[:400]))
    write_story_files(tmp_path, corpus_file.read_text())
    (tmp_path / "texts.csv").write_text("id,text\n" + "".join(f"{n},{s}\n" for n, s in enumerate(lines[:100])))
    put_in_cache(run.folder / "model", tmp_path / "cache", "answerdotai/ModernBERT-base")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    seen, graphs = set(), {}
    for command in sorted(commands(), key=lambda command: ORDER.index(command[0])):
        arguments = [str(run.folder / "model") if part.endswith("/model") else part for part in command]
        if "--minutes" in arguments:
            place = arguments.index("--minutes")
            arguments[place : place + 2] = ["--steps", "2"]
        elif command[0] == "pretrain":
            arguments += ["--steps", "2"]
        if command[0] == "compare":
            arguments[arguments.index("--trials") + 1] = "1"
        arguments += SMALLER.get(command[0], [])
        if command[0] == "export":  # takes long, and pages show it more than once: then only the folder is another
            out = arguments.pop(arguments.index("--out") + 1)
            if (same := frozenset(arguments)) in graphs:
                shutil.copytree(graphs[same], out)
                continue
            graphs[same] = out
            arguments.insert(arguments.index("--out") + 1, out)
        code, _, err = main(*arguments)
        assert code == 0, err
        seen.add(command[0])
    assert seen == set(ORDER)
    assert len(commands()) > 25


# torch says so of every data loader with Trainer's defaults where there is no GPU.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_every_python_snippet_runs(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_bytes(corpus_file.read_bytes())
    snippets = re.findall(r"```python\n(.*?)```", guides(), re.DOTALL)
    assert len(snippets) == 8
    for snippet in snippets:
        exec(compile(snippet.replace("minutes=10", "minutes=0.02"), "a page", "exec"), {})


def names_in(schema: dict[str, Any], prefix: str, defs: dict[str, Any]) -> Iterator[str]:
    """The dotted names of settings in a JSON schema."""
    if "$ref" in schema:
        yield from names_in(defs[schema["$ref"].rpartition("/")[2]], prefix, defs)
    for part in (part for kind in ("anyOf", "oneOf", "allOf") for part in schema.get(kind, [])):
        yield from names_in(part, prefix, defs)
    for name, part in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from names_in(part, f"{prefix}{name}.", defs)


def test_every_setting_of_the_pages_exists() -> None:
    names: set[str] = set()
    for settings, prefix in ((Recipe, ""), (EmbedderSettings, "embedder."), (FinetuneSettings, "finetune.")):
        schema = settings.model_json_schema()
        names |= set(names_in(schema, prefix, schema["$defs"]))
    for page, text in PAGES.items():
        for name in re.findall(r"--set '?([a-z_.]+)=", text.replace("\n", " ")):
            assert name in names, f"{page.name}: {name}"


def anchors(text: str) -> set[str]:
    """What a link may name on a page: its headings, as the hosts of such pages spell them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for inline, named in re.findall(r"\]\(([^)\s]+)\)|^\[\w+\]: (.+)$", PAGES[page], re.MULTILINE):
        path, _, anchor = (inline or named).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(PAGES[target]), anchor


def test_every_page_is_found_from_the_readme() -> None:
    linked = {ROOT / target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", README)}
    assert set(PAGES) - linked == {ROOT / "README.md"}
