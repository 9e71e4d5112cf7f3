"""Commands and snippets of README and the pages under docs/ run unchanged, and their links are valid.

Each tutorial and notebook runs from top to bottom. Texts and models are small here, and trainings take a few steps.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask
from tests.command_line import Main
from tests.commands.checkpoints import Stopping
from tests.conftest import SMALL, Install
from tests.contract.conftest import sets
from tests.core.conftest import put_in_cache
from unmask.commands.run_data import packaged_corpus
from unmask.core.interruption import Interrupted
from unmask.data.corpus import Corpus
from unmask.data.documents import READERS
from unmask.data.settings import CorpusSettings
from unmask.data.sources import SUFFIXES
from unmask.masking.features import rows_from_ids

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}
ELSEWHERE = ("extending", "scaling", "studio")  # run by tests of their own, or on several machines
GUIDES = {"README", "index", *(page.stem for page in (DOCS / "how-to").glob("*.md"))}.difference(ELSEWHERE)
WNUT = ("wnut17train", "emerging.dev", "emerging.test")
GRAPHS = ("export", "verify")  # run where there are graphs: tests/exporting/test_export.py
ORDER = (
    "prepare", "pretrain", "embedder", "fill", "embed", "evaluate", "score", "finetune", "predict", "compare", "search",
    "evaluate-search",
)  # fmt: skip
SNIPPET = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LESS = {  # of what a command does
    "pretrain": (
        "training.batch_tokens=512", "evaluation.times=1", "evaluation.max_tokens=2000",
        "evaluation.final_max_tokens=2000",
    ),
    "compare": ("training.batch_tokens=512", "evaluation.times=1"),
    "embedder": ("embedder.batch_size=8",),
    "finetune": ("finetune.epochs=1",),
}  # fmt: skip
SIZE = ("model.num_layers=2", "model.hidden_size=64", "model.num_heads=2")
SMALLER = {
    "--minutes": ("--steps", "2"),
    "--seeds": ("--seeds", "1"),
    "--trials": ("--trials", "1"),
    "--vocab-size": ("--vocab-size", "300"),
}


def smaller(command: str, *words: str) -> list[str]:
    """A command with less to do. What it sets itself wins over our settings, since it comes later."""
    ours = list(LESS.get(command, ()))
    if command in {"pretrain", "compare"} and "--from" not in words:
        ours += SIZE
    if command == "compare" and "--task" in words:
        ours += LESS["finetune"]
    few = ["--max-tokens", "2000", "--pseudo-tokens", "20"] if command == "evaluate" else []
    if command == "pretrain" and "--minutes" not in words:
        few = ["--steps", "2"]
    rest = iter(words)
    shorter = [part for word in rest for part in ((next(rest), SMALLER[word])[1] if word in SMALLER else (word,))]
    return [command, *sets(tuple(ours)), *few, *shorter]


def lines_of(head: str, rows: list[tuple[str, object]], separator: str = ",") -> str:
    return head + "".join(f"{text}{separator}{value}\n" for text, value in rows)


@pytest.fixture
def files(corpus_file: Path, run: unmask.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the kinds that the pages read, the hub's model in its cache, and a part of the packaged text."""
    corpus = corpus_file.read_text(encoding="utf-8")
    lines = [line for line in corpus.splitlines() if line]
    moods = [(line, len(line) % 2) for line in lines[:200]]
    tags = [(word, "B-person" if word[0].isupper() else "O") for word in lines[0].split()]
    entities = (lines_of("", tags, "\t") + "\n") * 8
    molecules = [f"{'C' * (n % 7 + 1)}{'NO'[n % 2]}c1ccccc1" for n in range(200)]
    measured = lines_of("smiles,logP\n", [(text, len(text) / 8) for text in molecules])
    log = [f"DEBUG payload: {' '.join(lines[:40])}", *(f"INFO auth[{n}]: {line}" for n, line in enumerate(lines[:200]))]
    pair = {"sentence_good": lines[0], "sentence_bad": lines[1], "UID": "order", "linguistics_term": "word"}
    texts = {
        **dict.fromkeys(("corpus.txt", "other-book.txt"), corpus),
        "texts.csv": "id,text\n" + "".join(f"{n},{line}\n" for n, line in enumerate(lines[:100])),
        "app.log": "\n".join(log),
        "molecules.smi": "\n".join(molecules),
        "order.jsonl": json.dumps(pair),
        **dict.fromkeys(("reviews.csv", "reviews-dev.csv"), lines_of("text,mood\n", moods)),
        **dict.fromkeys(("logp.csv", "logp-dev.csv"), measured),
        **dict.fromkeys(("entities.conll", "entities-dev.conll"), entities),
        **dict.fromkeys([f"wnut17/{name}.conll" for name in WNUT], entities),
        **dict.fromkeys([f"sst2/{split}.tsv" for split in ("train", "dev", "test")], lines_of("", moods[:60], "\t")),
    }
    for folder in ("blimp", "cpp_docs", "novels", "sst2", "wnut17"):
        (tmp_path / folder).mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in ("novels/novels.train.txt.gz", "novels/novels.valid.txt.gz", "cpp_docs/cpp_docs_prose.txt.gz"):
        (tmp_path / name).write_bytes(gzip.compress(corpus.encode()))
    with tarfile.open(tmp_path / "blimp" / "blimp.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "order.jsonl", "order.jsonl")
    monkeypatch.chdir(tmp_path)
    put_in_cache(run.folder / "model", tmp_path / "cache", "answerdotai/ModernBERT-base")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shakespeare.txt").write_bytes(packaged_corpus().read_bytes()[:100_000])
    monkeypatch.setattr("unmask.commands.pretrain.packaged_corpus", lambda: tmp_path / "shakespeare.txt")


def guides() -> str:
    """The how-to pages, one after the other, and the commands of "The whole way"."""
    results = PAGES[DOCS / "explanation" / "results.md"]
    story = results.partition("## The whole way\n")[2].partition("<!-- story -->")[0]
    return "\n".join([*(text for path, text in PAGES.items() if path.stem in GUIDES), story])


def commands() -> list[list[str]]:
    joined = guides().replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?(unmask .+?)(?:   +#.*)?$", joined, re.MULTILINE)
    inline = re.findall(r"`(unmask (?:prepare|pretrain|lexicon) [^`]+)`", re.sub(r"\n", " ", joined))
    return [shlex.split(line)[1:] for line in dict.fromkeys([*lines, *inline])]  # README shows some of the pages' own


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_every_command_runs(run: unmask.Run, main: Main) -> None:
    """With the options that they are shown with."""
    to_run = [command for command in commands() if command[0] not in GRAPHS]
    for command in sorted(to_run, key=lambda command: ORDER.index(command[0])):
        theirs = ("/model", "runs/mine/data")
        words = [str(run.folder / Path(part).name) if part.endswith(theirs) else part for part in command]
        code, _, err = main(*smaller(*words))
        assert code == 0, f"{shlex.join(command)}\n{err}"
    assert {command[0] for command in to_run} == set(ORDER)
    assert len(to_run) > 25


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page: Path, tmp_path: Path, main: Main) -> None:
    pytest.importorskip("transformers")
    ran = 0
    for language, snippet in SNIPPET.findall(PAGES[page]):
        if language == "python":
            exec(compile(snippet, page.stem, "exec"), {})
        for line in snippet.replace("\\\n", " ").splitlines():
            if not language and line.startswith("unmask "):
                code, _, err = main(*smaller(*shlex.split(line)[1:]))
                assert code == 0, f"{line}\n{err}"
                ran += 1
    assert ran >= 2
    shutil.rmtree(tmp_path / "runs")


PACKAGED = 'Path(unmask.__file__).parent / "data" / "tinyshakespeare.txt"'
SETTINGS = f'"settings": {[*SMALL, *LESS["pretrain"]]}'
PARAMETERS = {
    "first_model": f'budget = {{"steps": 20, {SETTINGS}}}',
    "search": f'pretraining = {{"steps": 20, {SETTINGS}}}\n'
    'embedding = {"steps": 3, "settings": ["embedder.batch_size=8"]}',
    "compare_masking": f'seeds = 2\nbudget = {{"steps": 3, {SETTINGS}}}',
}


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_a_notebook_runs(page: Path) -> None:
    """With small budgets in place of its parameters."""
    names: dict[str, Any] = {}
    cells = [cell for cell in json.loads(page.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "outputs are stripped"
    (parameters,) = (cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    for cell in cells:
        source = PARAMETERS[page.stem] if cell is parameters else "".join(cell["source"])
        exec(compile(source.replace(PACKAGED, 'Path("shakespeare.txt")'), page.name, "exec"), names)


# torch says so of every data loader with Trainer's defaults where there is no GPU.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_every_python_snippet_runs(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_bytes(corpus_file.read_bytes())
    snippets = re.findall(r"```python\n(.*?)```", guides(), re.DOTALL)
    assert len(snippets) == 10
    for snippet in snippets:
        if "import onnxruntime" in snippet:  # runs where there are graphs: tests/exporting/test_export.py
            continue
        # README's own run stands for the one that its commands make, which the other snippets use.
        code = snippet.replace("minutes=10", "steps=2").replace('out="runs/whole"', 'out="runs/mine"')
        exec(compile(code, "a page", "exec"), {})


def test_every_setting_of_the_pages_exists() -> None:
    names = {each.name for each in unmask.settings().settings} | {"masking.units.words"}  # of a plug-in in extending.md
    for page, text in PAGES.items():
        for name in re.findall(r"--set '?([a-z_.]+)=", text.replace("\n", " ")):
            assert name in names, f"{page.name}: {name}"


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings, as the hosts of such pages spell them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for inline, named in re.findall(r"\]\(([^)\s]+)\)|^\[\w+\]: (.+)$", PAGES[page], re.MULTILINE):
        path, _, anchor = (inline or named).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if re.fullmatch(r"L\d+", anchor):  # a line of results
            assert int(anchor[1:]) <= len(target.read_text(encoding="utf-8").splitlines()), anchor
        else:
            assert not anchor or anchor in anchors(PAGES[target]), anchor


def test_every_page_is_found_from_the_first() -> None:
    """That of the site; the README leads there."""
    linked = {DOCS / target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[DOCS / "index.md"])}
    assert set(PAGES) - linked == {ROOT / "README.md", DOCS / "index.md"}
    assert "(docs/index.md)" in README


SMALL_RUN = sets((*SMALL, "evaluation.times=1"))
UNITS = ("masking.strategy=groups_of_words", "masking.units.words=3")
EXTENDING = PAGES[DOCS / "how-to" / "extending.md"]


def example(heading: str) -> dict[str, Any]:
    """Runs the Python under a heading, and returns its names."""
    section = EXTENDING.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(snippet, heading, "exec"), names)
    return names


@pytest.fixture
def mine(run: unmask.Run, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run as the page names it, beside its data."""
    mine = tmp_path / "runs" / "mine"
    mine.mkdir(parents=True)
    (mine / "model").symlink_to(run.folder / "model")
    (mine / "data").symlink_to(data_folder)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("mine")
def test_add_a_pooling() -> None:
    names = example("Add a pooling")
    model = names["model"]
    ids = [model.tokenizer.encode_prompt(text) for text in ("The king was here.", "A queen!")]
    with torch.no_grad():
        last = [model.network.encoder(torch.from_numpy(each)[None].long())[0, -1].numpy() for each in ids]
    np.testing.assert_allclose(names["vectors"], np.stack(last), atol=1e-5)


@pytest.mark.usefixtures("mine")
def test_add_a_masking_strategy(install: Install, tmp_path: Path, main: Main) -> None:
    """The page's package trains by the command line and in Python; a run resumes only while it is installed."""
    section = EXTENDING.partition("## Add a masking strategy\n")[2].partition("\n## ")[0]
    module, project, in_python = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    ((group, points),) = tomllib.loads(project)["project"]["entry-points"].items()
    install("my_masking", module, "".join([f"[{group}]\n", *(f"{name} = {at}\n" for name, at in points.items())]))

    masker = unmask.Masker.from_tokenizer("runs/mine/model", strategy="groups_of_words")
    rows = rows_from_ids([list(range(5, 40)), list(range(50, 80))], masker.tokenizer)
    begins = (masker.weighed(rows).units.size_T > 0).view(rows.shape)
    for row in range(2):
        words = rows.word_starts[row].nonzero()[:, 0].tolist()
        assert begins[row].nonzero()[:, 0].tolist() == words[::2]
        assert len(words) > 2
    exec(compile(in_python, "a page", "exec"), {"__name__": "__main__"})
    assert [each.name for each in unmask.settings("groups_of_words").settings][-1] == "masking.units.words"

    options = ["--strategy", "groups_of_words", "--set", "masking.units.words=3", "--steps", "8", *SMALL_RUN]
    assert main("pretrain", "runs/mine/data", "--out", "runs/groups", *options)[0] == 0
    with pytest.raises(Interrupted):
        unmask.pretrain(
            "runs/mine/data", out="runs/same", steps=8, settings=[*SMALL_RUN[1::2], *UNITS], callbacks=[Stopping(4)]
        )
    assert main("pretrain", "--out", "runs/same", "--resume")[0] == 0
    weights = [Path("runs", name, "model", "model.safetensors").read_bytes() for name in ("groups", "same")]
    assert weights[0] == weights[1]

    for word in ("--strategy groups_of_word", "--set masking.units.kind=groups_of_word"):
        code, _, err = main("pretrain", "--out", "runs/other", *word.split())
        assert code == 2
        assert "'groups_of_words'" in err
    code, _, err = main("pretrain", "--out", "runs/other", *options, "--set", "masking.units.words=11")
    assert code == 2
    assert "masking.units.words = 11" in err


def test_read_another_kind_of_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = b"WARC/1.0\r\nWARC-Type: %b\r\nWARC-Target-URI: %b\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
    texts = {(b"warcinfo", b"-"): b"software: x", (b"conversion", b"http://a.b/"): b"The king.\n\nA queen.\n"}
    records = b"".join(record % (*head, len(text), text) for head, text in texts.items())
    (tmp_path / "crawl.warc.gz").write_bytes(gzip.compress(records))
    monkeypatch.chdir(tmp_path)
    example("Read another kind of file")
    assert capsys.readouterr().out == "http://a.b/ 19\n"
    corpus = Corpus(["crawl.warc.gz"], CorpusSettings(), hold_out=False)
    assert [(piece.text, held) for piece, held in corpus.pieces()] == [("The king.\n\nA queen.", False)]
    del SUFFIXES[".warc"], READERS["warc"]


@pytest.mark.usefixtures("mine")
def test_add_a_callback() -> None:
    names = example("Add a callback")
    assert names["run"].steps == len(names["callback"].seen) < 20


@pytest.mark.usefixtures("mine")
def test_an_objective_and_an_optimizer_of_your_own() -> None:
    names = example("Learn an objective of your own")
    losses = [report.objectives["word_starts"].loss for report in names["reports"]]
    assert losses[-1] < losses[0]
    assert all("momentum_buffer" in state for state in names["trainer"].state.optimizer.state.values())


@pytest.mark.usefixtures("mine")
def test_a_network_of_your_own() -> None:
    losses = [report.loss for report in example("Train a network of your own")["reports"]]
    assert losses[-1] < losses[0] - 0.1
