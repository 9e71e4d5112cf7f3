"""What time_to_loss.py runs, finds again, and takes away."""

from __future__ import annotations

import importlib
import io
import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.commands.run_data import open_prepared
from unmask.tokenizer.tokenizer import Tokenizer

HERE = {"date": "2026-01-02", "processor": "A processor", "cores": 2, "versions": {"torch": "2.0"}}
SMALL = ("model.num_layers=1", "model.hidden_size=64", "model.num_heads=1", "training.sequence_length=32")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = importlib.import_module("time_to_loss")
    monkeypatch.setattr(module, "circumstances", lambda: HERE)
    return module


def system(loss: float, points: tuple[tuple[float, float, float], ...] = ()) -> types.SimpleNamespace:
    """A process that has ended."""
    looks = [*points, (45.0, loss, 0.2)]
    return types.SimpleNamespace(facts={"parameters": 1}, seconds=45.0, steps=9, tokens=99, points=looks)


def plan_of(script: types.ModuleType, **changes: Any) -> Any:
    systems = ("modernbert-adamw", "ours")
    plan = script.Plan("data", "lines", 2.0, 0.5, 2, (0, 1), 2, True, systems)
    return plan._replace(**changes)


def play(script: types.ModuleType, plan: Any, results: Any, losses: dict[Any, float]) -> list[list[Any]]:
    """All stages, each of whose runs ends at the loss of its setting and length; the works that were run."""
    ran = []
    for works in script.stages(plan, results):
        missing = results.missing(works)
        for work in missing:
            results.add(work, system(losses.get((work.setting, work.minutes), 6.0)))
        ran.append(missing)
    return ran


def test_the_best_of_the_sweep_run_to_their_end_and_the_best_of_these_with_all_seeds(
    script: types.ModuleType, tmp_path: Path
) -> None:
    plan, results = plan_of(script), script.Results(tmp_path / "found.jsonl", "a hash")
    candidates = script.CANDIDATES["modernbert-adamw"]
    short_best, whole_best = candidates[3], candidates[1]
    losses = {(short_best, 0.5): 5.0, (whole_best, 0.5): 5.1, (short_best, 2.0): 4.9, (whole_best, 2.0): 4.8}
    ran = play(script, plan, results, losses)
    assert [work.setting for work in ran[0]] == list(candidates)
    assert {(work.minutes, work.seed) for work in ran[0]} == {(0.5, 0)}
    assert [(work.setting, work.minutes, work.seed) for work in ran[1]] == [(short_best, 2.0, 0), (whole_best, 2.0, 0)]
    assert [(work.system, work.seed) for work in ran[2]] == [("ours", 0)]  # the winner's first run is there already
    assert [(work.system, work.setting, work.seed) for work in ran[3]] == [
        ("modernbert-adamw", whole_best, 1),
        ("ours", script.CANDIDATES["ours"][0], 1),
    ]
    runs = script.runs_of(plan, results, ("modernbert-adamw", "ours"))
    assert [entry["work"]["seed"] for entry in runs["modernbert-adamw"]] == [0, 1]
    assert runs["modernbert-adamw"][0]["points"][-1][1] == 4.8


def test_the_estimate_counts_what_will_run(script: types.ModuleType, tmp_path: Path) -> None:
    plan, results = plan_of(script), script.Results(tmp_path / "found.jsonl", "a hash")
    told = script.estimate(plan, results)
    ran = [work for works in play(script, plan, results, {}) for work in works]
    counts = {minutes: sum(work.minutes == minutes for work in ran) for minutes in (0.5, 2.0)}
    training = sum(work.minutes for work in ran)
    whole = training + len(ran) * script.OVERHEAD_SECONDS / 60.0
    assert told == [
        f"{counts[0.5]} runs of 0.5 minutes",
        f"{counts[2.0]} runs of 2 minutes",
        f"about {whole:.0f} minutes, {training:.0f} of them training",
    ]
    assert script.estimate(plan, results) == ["nothing is missing", "about 0 minutes, 0 of them training"]


def test_what_is_there_is_found_again_by_text_and_settings(
    script: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, work = tmp_path / "found.jsonl", script.Work("somewhere", "ours", 2.0, 4096, 7e-3)
    script.Results(path, "a hash").add(work, system(4.5))
    again = script.Results(path, "a hash")
    entry = again.get(work._replace(data="elsewhere"))
    assert entry is not None
    assert {key: entry[key] for key in HERE} == HERE
    assert (entry["tokens"], entry["points"]) == (99, [[45.0, 4.5, 0.2]])
    assert again.get(work._replace(seed=1)) is None
    assert again.get(work._replace(threads=1)) is None
    assert script.Results(path, "another hash").get(work) is None
    monkeypatch.setattr(script, "start", lambda work: pytest.fail("it is there already"))
    script.run([work], again)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1


def test_the_page_shows_what_the_entries_say(script: types.ModuleType, tmp_path: Path) -> None:
    names = ("time-to-loss", "time-to-loss-ablations", "time-to-loss-sweep")
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- {name} -->\n<!-- end {name} -->\n" for name in names), encoding="utf-8")
    plan = plan_of(script, systems=("modernbert-adamw", "ours", "no-loops"))
    results = script.Results(tmp_path / "found.jsonl", "a hash")
    play(script, plan, results, {(script.CANDIDATES["ours"][0], 2.0): 4.5})
    picture = tmp_path / "curves.svg"
    script.show(plan, results, page, picture)
    main, without, sweep = page.read_text(encoding="utf-8").split("<!-- end ")[:3]
    assert "2026-01-02, A processor, 2 cores, torch 2.0, threads a system 2." in main
    first = script.CANDIDATES["modernbert-adamw"][0]  # of equals
    assert f"| modernbert-adamw | {first.batch_tokens:,} | {first.learning_rate:g} | 9 | 99 | 6.000 |" in main
    assert "| ours | 4,096 | 0.007 | 9 | 99 | 4.500 |" in main
    assert "no-loops" not in main
    assert "| everything | 4,096 |" in without
    assert "| tensor operations instead of compiled loops | 4,096 |" in without
    assert sweep.count("| modernbert-adamw | 0.5 |") == len(script.CANDIDATES["modernbert-adamw"])
    assert sweep.count("| modernbert-adamw | 2 |") == plan.finalists
    assert picture.read_text(encoding="utf-8").count("<svg") == 1


class FewSteps:
    """A turn without a parent: some steps, then the end."""

    steps = 3

    def __init__(self, out: object, evaluate: Any, marks: object) -> None:
        self.evaluate, self.facts, self.tokens = evaluate, {}, []
        FewSteps.latest = self

    latest: FewSteps

    def begin(self, **facts: Any) -> None:
        self.facts = facts

    def now(self) -> float:
        return 6.0 * len(self.tokens) / self.steps  # of 0.1 minutes

    def step(self, tokens: int = 0) -> None:
        self.tokens.append(tokens)

    def end(self) -> None:
        self.found = self.evaluate()


def held_out_of(length: int) -> Any:
    from unmask.measure.held_out import HeldOutSet

    return lambda data: HeldOutSet(data.validation, data.tokenizer, length=length, max_tokens=2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modernbert-adamw", "modernbert-muon"])
def test_a_peer_learns(script: types.ModuleType, data_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain_loop = importlib.import_module("plain_loop")
    monkeypatch.setattr(plain_loop, "Turn", FewSteps)
    monkeypatch.setattr(FewSteps, "steps", 40)
    work = script.Work(str(data_folder), name, 0.1, 512, 5e-3, compiled=False, length=32)
    plain_loop.train_peer(work, io.StringIO(), [], held_out_of(32))
    turn = FewSteps.latest
    assert len(turn.tokens) == 40
    assert all(0 < tokens <= 512 for tokens in turn.tokens)
    frequencies = open_prepared(data_folder).frequencies + 1.0
    shares = torch.from_numpy(frequencies / frequencies.sum())
    entropy = float(-(shares * shares.log()).sum())
    assert turn.found[0] < entropy + 0.2, "it began at the logarithm of 200, two nats above"


def test_muon_gets_the_matrices_between_embedding_and_decoder(data_folder: Path) -> None:
    plain_loop, peers = importlib.import_module("plain_loop"), importlib.import_module("peers")
    model = plain_loop.new_model(peers.fast_tokenizer(data_folder), 32, compiled=False)
    names = {id(weight): name for name, weight in model.named_parameters()}
    muon, adamw = plain_loop.new_optimizers("modernbert-muon", model, 1e-3)
    of_muon = {names[id(weight)] for group in muon.param_groups for weight in group["params"]}
    of_adamw = {names[id(weight)] for group in adamw.param_groups for weight in group["params"]}
    assert len(of_muon) == 4 * 4 + 1  # queries, keys and values; their output; two of the MLP; the head
    assert "model.embeddings.tok_embeddings.weight" in of_adamw
    assert of_muon | of_adamw == set(names.values())
    assert not of_muon & of_adamw
    (alone,) = plain_loop.new_optimizers("modernbert-adamw", model, 1e-3)
    assert sum(len(group["params"]) for group in alone.param_groups) == len(names)


def test_the_rate_rises_and_falls(script: types.ModuleType) -> None:
    scale_at = importlib.import_module("plain_loop").scale_at
    assert [scale_at(progress) for progress in (0.025, 0.05, 0.525, 1.0)] == pytest.approx([0.5, 1.0, 0.5, 0.0])


def test_a_document_without_packing_has_rows_of_its_own(data_folder: Path) -> None:
    from unmask.data.rows import Cursor, RowStream

    taken_away = importlib.import_module("taken_away")
    data = open_prepared(data_folder)
    padded = taken_away.PaddedRows(data.train, data.tokenizer, length=16, seed=0)
    packed = RowStream(data.train, data.tokenizer, length=16, seed=0)
    tokens, texts = {}, {}
    for name, stream in (("padded", padded), ("packed", packed)):
        cursor, tokens[name], texts[name] = Cursor(), 0, []
        while cursor.epoch == 0:
            batch = stream.batch(cursor, 64)
            cursor = batch.cursor
            tokens[name] += batch.num_tokens
            texts[name] += [batch.rows.segment_ids.max(1).values]
    assert tokens["padded"] == tokens["packed"] == int(data.train.lengths.sum())
    assert int(torch.cat(texts["padded"]).max()) == 0, "one segment a row"
    assert int(torch.cat(texts["packed"]).max()) > 0


@pytest.mark.parametrize("name", ["ours", "no-muon", "no-loops", "no-modernbert", "no-packing"])
def test_what_is_taken_away_is_not_there(
    script: types.ModuleType, data_folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    taken_away = importlib.import_module("taken_away")
    for module in taken_away.WITH_LOOPS:  # put back behind the test
        loaded = importlib.import_module(module)
        monkeypatch.setattr(loaded, "serves", loaded.serves)
    monkeypatch.setattr(taken_away, "Turn", FewSteps)
    work = script.Work(str(data_folder), name, 0.1, 256, 3e-3, overrides=SMALL, length=32)
    training = taken_away.new_training(work, open_prepared(data_folder))
    assert (training.state.optimizer.muon is None) == (name == "no-muon")
    assert training.state.model.config.layout == ("bert" if name == "no-modernbert" else "modernbert")
    assert isinstance(training.stream, taken_away.PaddedRows) == (name == "no-packing")
    taken_away.train_ours(work, io.StringIO(), [], held_out_of(32))
    loops = {importlib.import_module(module).serves(torch.zeros(1)) for module in taken_away.WITH_LOOPS}
    assert loops == {name != "no-loops"}
    turn = FewSteps.latest
    assert turn.facts["batch_tokens"] == 256
    assert turn.tokens
    assert min(turn.tokens) > 0


def test_unknown_systems_and_prepared_text_without_paragraphs_are_told(
    script: types.ModuleType, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["time_to_loss.py", str(data_folder), "--results", str(tmp_path / "found.jsonl"), "--dry-run"]
    monkeypatch.setattr(script.sys, "argv", [*command, "--systems", "ours,theirs"])
    with pytest.raises(SystemExit, match="no system is called theirs; there are modernbert-adamw, "):
        script.main()
    monkeypatch.setattr(script.sys, "argv", [*command, "--ablations"])
    with pytest.raises(SystemExit, match="paragraphs and no-packing need plain text"):
        script.main()


def test_a_turn_tells_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, out = importlib.import_module("turns"), io.StringIO()
    monkeypatch.setattr(turns.sys, "stdin", io.StringIO("100\n"))
    turn = turns.Turn(out, lambda: (5.0, 0.1), [])
    turn.begin()
    turn.step(7)
    turn.step(8)
    turn.end()
    last = json.loads(out.getvalue().splitlines()[-1])
    assert (last["steps"], last["tokens"], last["finished"]) == (2, 15, True)
