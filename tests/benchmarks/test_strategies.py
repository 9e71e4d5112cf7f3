"""The table of strategies: its intervals by hand, which cells run, in which order, and one of them."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unmask.masking.settings import STRATEGIES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> types.ModuleType:
    return importlib.import_module("strategies")


@pytest.fixture
def tables() -> types.ModuleType:
    return importlib.import_module("strategy_table")


def entry(strategy: str, seed: int, loss: float, sst2: float = 0.8, **others: Any) -> dict[str, Any]:
    figures = {"loss": loss, "sst2": sst2, "wnut17": 0.0, "ud_english_ewt": 0.9}
    plan = {
        "steps": 300, "refresh_steps": 50, "megabytes": 6.0, "vocab_size": 8192,
        "overrides": [],
        "tuning": {"sst2": {"epochs": 2, "batch_size": 32, "learning_rate": 5e-4, "sentences": 3000}},
    }  # fmt: skip
    here = {"date": "2026-01-02", "processor": "A processor", "cores": 2, "versions": {"torch": "2.0"}}
    line = {"corpus": "novels", "strategy": strategy, "seed": seed, "figures": figures, "plan": plan}
    return {**line, "tokens": 1_228_000, **here, **others}


def quantile_of_two_degrees(probability: float) -> float:
    """Student's t with two degrees of freedom has a quantile in closed form."""
    return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))


def three_seeds(*differences: float) -> list[dict[str, Any]]:
    """`span` lies so far from `random`, which varies much more than the differences."""
    seeds = enumerate(zip((5.0, 6.0, 4.0), differences, strict=True))
    return [line for n, (loss, d) in seeds for line in (entry("span", n, loss + d), entry("random", n, loss))]


def test_differences_are_paired_and_corrected_for_twelve(tables: types.ModuleType) -> None:
    values = tables.by_corpus(three_seeds(0.1, 0.2, 0.3))["novels"]
    found = tables.difference(values, "span", "loss")
    # mean 0.2, deviation 0.1; half = t(1 - 0.05 / 12 / 2, 2 degrees) * 0.1 / sqrt(3)
    half = quantile_of_two_degrees(1 - 0.05 / 24) * 0.1 / math.sqrt(3)
    assert half == pytest.approx(0.8916, abs=1e-4)
    assert found.mean == pytest.approx(0.2)
    assert found.half == pytest.approx(half, rel=1e-4)
    assert not found.is_shown, "0.2 is less than half the interval"
    near = tables.difference(tables.by_corpus(three_seeds(0.99, 1.0, 1.01))["novels"], "span", "loss")
    assert near.half == pytest.approx(half / 10, rel=1e-4)
    assert near.is_shown


def test_what_one_correction_decides(tables: types.ModuleType) -> None:
    """0.45 ± 0.248 leaves 0 out as the only comparison, and does not as one of twelve."""
    values = tables.by_corpus(three_seeds(0.35, 0.45, 0.55))["novels"]
    assert quantile_of_two_degrees(0.975) * 0.1 / math.sqrt(3) < 0.45
    assert not tables.difference(values, "span", "loss").is_shown


def test_the_table_has_every_strategy(tables: types.ModuleType) -> None:
    entries = three_seeds(0.99, 1.0, 1.01)
    rows = [line for line in tables.table(tables.by_corpus(entries)["novels"]) if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(STRATEGIES)
    assert len(STRATEGIES) == 12
    assert rows[0] == "| `random` | 3 | 5.000 |  | 80.0 |  | 0.0 |  | 90.0 |  |"
    assert rows[2] == "| `span` | 3 | 6.000 | **+1.000 ± 0.089** | 80.0 | +0.0 | 0.0 | +0.0 | 90.0 | +0.0 |"
    assert rows[3] == "| `pmi` | 0 |  |  |  |  |  |  |  |  |"


def test_the_verdict_is_made_of_the_figures(tables: types.ModuleType) -> None:
    apart = three_seeds(0.99, 1.0, 1.01)
    complete = [{**line, "strategy": name} for line in apart for name in STRATEGIES if line["strategy"] == "random"]
    assert tables.verdict("novels", tables.by_corpus(complete)["novels"], 3) == (
        "Against `random` on novels: no strategy is shown to differ from it in any figure."
    )
    better = [entry("phrase", seed, 5.0 - seed, 0.9 + seed / 1000) for seed in range(3)]
    values = tables.by_corpus([*complete, *apart, *better])["novels"]
    said = tables.verdict("novels", values, 3)
    assert said == "Against `random` on novels: `span` is worse in held-out loss; `phrase` is better in SST-2."
    assert tables.verdict("novels", values, 4).endswith(" Not complete: of 4 seeds there are " + ", ".join(
        f"`{name}` 3" for name in STRATEGIES
    ) + ".")  # fmt: skip


def test_only_seeds_of_both_are_compared(tables: types.ModuleType) -> None:
    values = tables.by_corpus([entry("random", 0, 5.0), entry("span", 0, 5.5), entry("span", 1, 9.0)])["novels"]
    assert tables.difference(values, "span", "loss") == tables.Difference(0.5, None)
    assert tables.difference(values, "pmi", "loss") is None


def test_the_page_says_how_and_on_what(tables: types.ModuleType, tmp_path: Path) -> None:
    entries = [*three_seeds(0.1, 0.2, 0.3), entry("random", 0, 5.0, corpus="docs", date="2026-01-03")]
    text = "\n".join(tables.page(entries, seeds=3))
    assert "sst2 2 epochs of 3,000 sentences, 32 a step, learning rate 0.0005." in text
    assert "300 steps (1,228,000 tokens of the first 6 MB)" in text
    assert "for 12 comparisons" in text
    assert text.index("**novels**") < text.index("**docs**")
    assert tables.made(entries) == ["2026-01-02 to 2026-01-03, A processor, 2 cores, torch 2.0."]
    tables.draw(entries, tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8").startswith("<svg")
    assert tables.page([], seeds=3) == ["No cell is measured yet."]


def test_all_strategies_of_a_seed_come_before_the_next(script: types.ModuleType) -> None:
    cells = script.cells_of("novels", 5)
    assert len(set(cells)) == 60
    assert {cell.strategy for cell in cells[:12]} == set(STRATEGIES)
    assert [cell.seed for cell in cells] == [seed for seed in range(5) for _ in range(12)]


def test_a_text_is_cut_at_the_end_of_a_document(script: types.ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "source.txt"
    source.write_bytes(b"a first\n\na second\nand more\n\na third\n")
    cut = script.beginning(source, "name", 30e-6, tmp_path)
    assert cut.read_bytes() == b"a first\n\na second\nand more\n\n"
    assert script.beginning(source, "name", 1.0, tmp_path).read_bytes() == source.read_bytes()


def test_sentences_are_chosen_by_their_hash(script: types.ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "en.conllu"
    sentences = [f"1\tword{n}\t_\n2\t.\t_" for n in range(20)]
    source.write_text("\n\n".join(sentences) + "\n\n", encoding="utf-8")
    some = script.some_sentences(source, 5, tmp_path).read_text(encoding="utf-8").split("\n\n")[:-1]
    assert len(set(some)) == 5
    assert some == [each for each in sentences if each in some], "in the file's order"
    source.write_text("\n\n".join(reversed(sentences)) + "\n\n", encoding="utf-8")
    again = script.some_sentences(source, 5, tmp_path).read_text(encoding="utf-8").split("\n\n")[:-1]
    assert again == some[::-1]


@pytest.fixture
def tasks(script: types.ModuleType, tmp_path: Path) -> Path:
    """A folder with tiny files of all tasks."""
    texts = {"sst2": "a fine film\t1\na bad film\t0\n" * 8, "wnut17": "Ann\tB-person\nsings\tO\n\n" * 8}
    texts["ud_english_ewt"] = "1\tAnn\t_\tPROPN\t_\t_\t_\t_\t_\t_\n2\tsings\t_\tVERB\t_\t_\t_\t_\t_\t_\n\n" * 8
    for name, text in texts.items():
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        for part in ("train", "validation", "test"):
            file = folder / getattr(script.TASKS[name], part)
            if file.suffix == ".gz":
                file.write_bytes(importlib.import_module("gzip").compress(text.encode()))
            else:
                file.write_text(text, encoding="utf-8")
    return tmp_path / "tasks"


class Runs:
    """Stands for the processes of cells."""

    def __init__(self, script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tasks: Path) -> None:
        self.script, self.monkeypatch, self.root, self.tasks = script, monkeypatch, tmp_path, tasks
        self.ran: list[Any] = []
        self.killed_after: int | None = None
        monkeypatch.setattr(script, "together", self.together)
        monkeypatch.setattr(script.Corpus, "prepare", lambda corpus, plan: None)
        monkeypatch.setattr(script, "_here", lambda: {"date": "2026-01-02"})
        monkeypatch.setattr(script.signal, "signal", lambda *given: None)
        (tmp_path / "text.txt").write_text("some text\n", encoding="utf-8")

    def together(self, works: Any, jobs: int, log: Path) -> Iterator[tuple[Any, dict[str, Any] | None]]:
        for work in works:
            if len(self.ran) == self.killed_after:
                raise SystemExit("killed")
            self.ran.append(work.cell)
            yield work, {"figures": {"loss": 5.0, "sst2": 0.8, "wnut17": 0.1, "ud_english_ewt": 0.9}, "tokens": 1000}

    @property
    def results(self) -> Path:
        return self.root / "results.jsonl"

    def main(self, *options: str) -> None:
        given = [f"novels={self.root / 'text.txt'}", "--tasks", str(self.tasks), "--results", str(self.results)]
        given += ["--work", str(self.root / "work"), "--seeds", "2", *options]
        self.monkeypatch.setattr(self.script.sys, "argv", ["strategies.py", *given])
        self.script.main()


@pytest.fixture
def runs(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tasks: Path) -> Runs:
    return Runs(script, monkeypatch, tmp_path, tasks)


def test_a_run_that_was_killed_goes_on(runs: Runs, script: types.ModuleType) -> None:
    runs.killed_after = 5
    with pytest.raises(SystemExit, match="killed"):
        runs.main()
    with runs.results.open("a", encoding="utf-8") as file:
        file.write('{"corpus": "nov')  # half a line
    runs.killed_after = None
    runs.main()
    assert runs.ran == script.cells_of("novels", 2)
    assert len(script.load(runs.results)) == 24
    runs.main()
    assert len(runs.ran) == 24, "nothing is left to do"


def test_other_settings_are_other_cells(runs: Runs) -> None:
    runs.main("--cells", "3")
    runs.main("--cells", "3", "--steps", "10")
    assert runs.ran[:3] == runs.ran[3:]
    runs.main("--cells", "3")
    assert [cell.strategy for cell in runs.ran[6:]] == list(STRATEGIES)[3:6]


def test_no_cells_still_make_a_table(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.main("--cells", "0")
    assert runs.ran == []
    assert "No cell is measured yet." in capsys.readouterr().out


def test_what_depends_on_what(script: types.ModuleType, tasks: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text\n", encoding="utf-8")

    def key(strategy: str = "span", **changes: Any) -> str:
        plan = script.Plan(300, 50, 6.0, 8192)._replace(**changes)
        files = script.task_files(tasks, tmp_path)
        return str(script.settings_hash(plan, script.Corpus("novels", text, tmp_path), files, strategy))

    first = key()
    assert first == key()
    others = [
        key("random"),
        key(steps=10),
        key(refresh_steps=2),
        key(vocab_size=4),
        key(overrides=("masking.rate=0.2",)),
    ]
    text.write_text("another\n", encoding="utf-8")
    assert len({first, *others, key()}) == 7


def test_a_failed_cell_is_told_and_the_others_run(
    runs: Runs, script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = runs.together

    def together(*given: Any) -> Iterator[tuple[Any, dict[str, Any] | None]]:
        for work, found in good(*given):
            yield work, None if work.cell.strategy == "pmi" else found

    monkeypatch.setattr(script, "together", together)
    with pytest.raises(SystemExit, match="2 cells failed"):
        runs.main()
    assert len(script.load(runs.results)) == 22
    assert "novels, pmi, seed 0: failed; see" in capsys.readouterr().err


def test_processes_run_side_by_side_and_end_with_us(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Cells are stood in for by a Python that says something, and one that waits for ever."""
    fake = tmp_path / "cell.py"
    fake.write_text(
        "import json, sys, time\n"
        "work = json.loads(sys.argv[2])\n"
        "time.sleep(60 if work['cell'][1] == 'span' else 0)\n"
        "sys.exit(3) if work['cell'][1] == 'pmi' else print(json.dumps({'strategy': work['cell'][1]}))\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(script, "__file__", str(fake))
    plan = script.Plan(1, 1, 1.0, 100)
    names = ("span", "pmi", "random")
    works = [script.Work(script.Cell("novels", name, 0), plan, "", "", {}, "") for name in names]
    found = script.together(works, 2, tmp_path / "log.txt")
    assert {work.cell.strategy: said for work, said in (next(found), next(found))} == {
        "pmi": None, "random": {"strategy": "random"}
    }  # fmt: skip
    found.close()  # ends the one that waits, or the test would take a minute


def test_one_cell(script: types.ModuleType, tasks: Path, data_folder: Path, tmp_path: Path) -> None:
    small = ("model.num_layers=1", "model.hidden_size=64", "model.num_heads=1", "training.batch_tokens=256")
    plan = script.Plan(2, 1, 6.0, 200, small)
    files = script.task_files(tasks, tmp_path)
    work = script.Work(script.Cell("novels", "adaptive", 1), plan, str(data_folder), "", files, str(tmp_path / "cell"))
    found, again = script.measure(work), script.measure(work)
    assert found["figures"] == again["figures"]
    assert list(found["figures"]) == ["loss", "sst2", "wnut17", "ud_english_ewt"]
    assert 0.0 < found["figures"]["loss"] < 2 * math.log(200)
    assert all(0.0 <= value <= 1.0 for name, value in found["figures"].items() if name != "loss")
    assert found["tokens"] > 0
    assert not (tmp_path / "cell").exists()


def test_it_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^strategies: .*\n(\t.*\n)*\t.*benchmarks/strategies\.py", makefile, re.MULTILINE)
    assert "<!-- strategies -->" in (ROOT / "docs" / "masking.md").read_text(encoding="utf-8")


def test_texts_are_asked_for(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = argparse.Namespace(serve=None, corpora=["novels"], tasks=None)
    monkeypatch.setattr(script, "arguments", lambda: asked)
    with pytest.raises(SystemExit, match=r"at least one NAME=TEXT"):
        script.main()


def test_results_are_lines_of_json(script: types.ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "new" / "results.jsonl"
    assert script.load(results) == []
    script.append(results, {"seed": 0})
    script.append(results, {"seed": 1})
    assert [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] == [{"seed": 0}, {"seed": 1}]
