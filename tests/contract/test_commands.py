"""Every command prints its result as one JSON object on stdout, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import unmask
from tests.contract.conftest import SMALL, Command, process, sets

# Command -> its arguments -> keys of its object. New keys are fine; a removed key breaks users' scripts.
COMMANDS: dict[str, tuple[str, str]] = {
    "recipes": ("recipes", "recipes"),
    "prepare": (
        "prepare {samples}/corpus.txt --out {out}/data --tokenizer {samples}/vocab.txt --workers 1",
        "out documents bytes tokens skipped near_duplicates vocab_size train_tokens validation_tokens unknown_tokens "
        "fingerprint annotations labels complete",
    ),
    "prepare, a part": (
        "prepare {samples}/corpus.txt --out {out}/data --tokenizer {samples}/vocab.txt --part 1/2",
        "out part complete",
    ),
    "prepare, dry": (
        "prepare {samples}/corpus.txt --out {out}/data --dry-run",
        "documents bytes tokens complete vocab_size seconds skipped",
    ),
    "lexicon": (
        "lexicon {data} --out {out}/found.safetensors --min-count 3",
        "out collocations by_words candidates words min_count fingerprint",
    ),
    "masks": ("masks 'Anna Lee sees the ship.' --tokenizer {model} --rate 0.3", "strategies left_out mask_token"),
    "audit": (
        "audit {data} --strategy span --max-tokens 5000",
        "documents bytes tokens skipped strategies not_audited passed",
    ),
    "pretrain": (
        "pretrain {data} --out {out}/run --steps 3 {small}",
        "model num_parameters vocab_size steps tokens_seen epochs seconds tokens_per_second validation_loss "
        "validation_loss_stderr validation_loss_interval validation_accuracy validation_perplexity predicted_tokens "
        "validation_documents validation_unit unigram_entropy on_plateau bits_per_token_byte objectives best_step "
        "data_fingerprint near_duplicates torch device",
    ),
    "pretrain, dry": (
        "pretrain {data} --out {out}/run --steps 3 --dry-run {small}",
        "documents bytes tokens vocab_size num_parameters steps seconds tokens_seen tokens_per_second memory_bytes "
        "disk_bytes processes device",
    ),
    "pretrain, from": (
        "pretrain {data} --from {model} --out {out}/run --steps 2 --set training.batch_tokens=512",
        "model num_parameters vocab_size steps tokens_seen validation_loss",
    ),
    "fill": ("fill {model} 'Anna [MASK] sees the [MASK] .' --top-k 3", "masks"),
    "embed": (
        "embed {model} {samples}/lines.txt --out {out}/vectors.npy --long-texts truncate",
        "out dimension pooling normalize texts tokens long_texts skipped seconds",
    ),
    "evaluate": (
        "evaluate {model} {samples}/lines.txt --rates 0.15,0.3 --masks 1 --pseudo-tokens 20",
        "loss loss_stderr loss_interval accuracy accuracy_interval perplexity bits_per_byte predicted_tokens by_rate "
        "breakdown pseudo_perplexity pseudo_log_loss pseudo_tokens tokens documents unit masks length",
    ),
    "score": ("score {model} {samples}/minimal.jsonl", "accuracy pairs phenomena"),
    "compare": (
        "compare random span --data {data} --steps 2 --seeds 2 --out {out}/compared {small}",
        "figure recipes differences confidence verdict by_figure runs costs",
    ),
    "compare, from": (
        "compare --from {model} --extend-vocab 2 --task classify --train {samples}/classify.jsonl "
        "--validation {samples}/classify.jsonl --data {samples}/corpus.txt --steps 1 --seeds 1 --out {out}/starts "
        "--set training.batch_tokens=512 --set finetune.epochs=1",
        "figure recipes differences confidence verdict by_figure runs costs",
    ),
    "compare, tune": (
        "compare tiny --tune --trials 2 --search training.learning_rate=0.001..0.01 --data {data} --steps 2 "
        "--out {out}/tuned {small}",
        "best trials verdict",
    ),
    "finetune": (
        "finetune {model} --task classify --train {samples}/classify.jsonl --validation {samples}/classify.jsonl "
        "--out {out}/tuned --set finetune.epochs=1",
        "model task metric metrics best_seed seeds mean deviation margin labels examples learning_rate num_parameters",
    ),
    "finetune, dry": (
        "finetune {model} --task classify --train {samples}/classify.jsonl --validation {samples}/classify.jsonl "
        "--out {out}/tuned --dry-run",
        "task labels examples learning_rate num_parameters seeds steps seconds memory_bytes processes device",
    ),
    "predict": (
        "predict {tuned} {samples}/classify.jsonl --out {out}/predictions.jsonl",
        "model task examples truncated split out",
    ),
    "predict, to stdout": ("predict {tuned} {samples}/classify.jsonl", "model task examples predictions"),
    "embedder": (
        "embedder {model} {samples}/corpus.txt --out {out}/embedder --steps 2 --set embedder.batch_size=16",
        "model num_parameters dimension sparse max_length steps tokens_seen seconds tokens_per_second pairs_seen "
        "temperature before after recall_at_10 best_step data device",
    ),
    "embedder, dry": (
        "embedder {model} {samples}/corpus.txt --out {out}/embedder --steps 2 --dry-run",
        "documents held_out_documents tokens pairs num_parameters dimension sparse steps seconds memory_bytes device",
    ),
    "search index": (
        "search index {model} {samples}/lines.txt --out {out}/index",
        "folder model fingerprint files dimension pooling similarity query_prompt document_prompt passage_tokens "
        "overlap_tokens documents passages skipped bytes approximate",
    ),
    "search query": ("search query {index} 'Anna sees the ship' --top-k 3", "index model approximate queries seconds"),
    "search remove": ("search remove {index} {samples}/lines.txt", "index added removed documents passages seconds"),
    "search add": ("search add {index} {samples}/lines.txt", "index added removed documents passages seconds"),
    "evaluate-search": (
        "evaluate-search {model} {samples}/corpus.txt --all --queries 10",
        "model tasks verdict encoding unit seed",
    ),
    "export": ("export {model} --out {out}/onnx --task fill-mask", "out format opset graphs"),
    "verify": ("verify {model}", "model checks passed"),
}
HELP = ("pretrain", "prepare", "lexicon", "masks", "audit", "fill", "embed", "evaluate", "score", "compare", "finetune",
        "predict", "embedder", "evaluate-search", "export", "verify", "push", "recipes", "studio", "search index",
        "search query", "search add", "search remove")  # fmt: skip
OPTIONS = {  # that scripts rely on
    "pretrain": "--out --minutes --steps --tokens --recipe --from --extend-vocab --strategy --tokenizer "
    "--tokenizer-kind --vocab-size --seed --set --resume --overwrite --dry-run --json --quiet --verbose",
    "prepare": "--out --tokenizer --tokenizer-kind --vocab-size --annotate --workers --ray --part --join",
    "masks": "--strategy --rate --tokenizer --seed --lexicon --set",
    "evaluate": "--rates --masks --max-tokens --pseudo-tokens --column --strict",
    "finetune": "--task --train --validation --test --out --text --second --label --seeds --seed --max-length --resume",
    "embedder": "--out --minutes --steps --pairs --sparse --seed --resume --overwrite",
    "compare": "--data --out --minutes --steps --seeds --base --rates --pairs --task --tune --trials --search --from "
    "--extend-vocab",
}


def words_of(line: str, **places: object) -> list[str]:
    """Splits a command line into words; paths replace their placeholders afterwards, since they may have spaces."""
    words = []
    for word in re.findall(r"'[^']*'|\S+", line):
        if word == "{small}":
            words += sets(SMALL)
        else:
            words.append(word.strip("'").format(**places))
    return words


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_one_object_with_its_keys(
    name: str, command: Command, samples: Path, data: Path, run: unmask.Run, tuned: Path, index: Path, tmp_path: Path
) -> None:
    line, keys = COMMANDS[name]
    places = {"samples": samples, "data": data, "out": tmp_path, "tuned": tuned, "index": index}
    done = command(*words_of(line, model=run.folder / "model", **places), "--json")
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert set(keys.split()) <= done.json.keys()


@pytest.mark.parametrize("name", HELP)
def test_help_names_the_options_of_a_command(name: str, command: Command) -> None:
    done = command(*name.split(), "--help")
    assert done.code == 0
    assert all(option in done.out for option in OPTIONS.get(name, "--json --quiet --verbose").split())
    assert "in python" not in " ".join(done.out.lower().split())


def test_help_of_the_whole_names_every_command(command: Command) -> None:
    done = command("--help")
    assert done.code == 0
    assert all(name.split()[0] in done.out for name in HELP)
    assert "..." not in done.out.partition("Commands:")[2], "whole sentences"


def test_the_version_is_that_of_the_package(command: Command) -> None:
    done = command("--version")
    assert done.code == 0
    assert unmask.__version__ in done.out


def test_a_process_reads_stdin_and_prints_the_object_alone_on_stdout(run: unmask.Run, tmp_path: Path) -> None:
    words = ("-m", "unmask", "fill", run.folder / "model", "-", "--json")
    done = process(*words, cwd=tmp_path, text="Anna [MASK] the ship .")
    assert (done.code, done.err) == (0, "")
    (mask,) = done.json["masks"]
    assert {"token", "token_id", "probability"} <= mask["candidates"][0].keys()


def test_tables_go_to_stdout_and_what_happens_to_stderr(command: Command, run: unmask.Run, samples: Path) -> None:
    model = run.folder / "model"
    plain = command("evaluate", model, samples / "lines.txt", "--masks", 1, "--pseudo-tokens", 0)
    assert plain.code == 0
    assert "loss" in plain.out
    assert "\x1b[" not in plain.out + plain.err
    with pytest.raises(json.JSONDecodeError):
        json.loads(plain.out)


def test_a_run_leaves_its_files(run: unmask.Run) -> None:
    files = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
    assert files >= {
        "model/config.json", "model/model.safetensors", "model/tokenizer.json", "model/tokenizer_config.json",
        "model/README.md", "model/checksums.json", "metrics.jsonl", "recipe.toml", "summary.json", "report.html",
    }  # fmt: skip
    summary = json.loads((run.folder / "summary.json").read_text(encoding="utf-8"))
    assert run.to_dict() == summary
    assert not [name for name in files if Path(name).suffix in {".pt", ".pth", ".pkl", ".bin"}], "no pickles"


def test_masks_say_what_is_chosen_and_what_is_seen(command: Command, run: unmask.Run) -> None:
    done = command("masks", "Anna Lee sees the ship.", "--tokenizer", run.folder / "model", "--rate", 0.5, "--json")
    shown = {one["name"]: one for one in done.json["strategies"]}
    assert {"random", "whole_word", "span", "pmi", "frequency", "mixture"} <= shown.keys() | done.json[
        "left_out"
    ].keys()
    assert "contextual" in shown
    for one in shown.values():
        assert len(one["tokens"]) == len(one["input_tokens"])
        assert all(0 < place < len(one["tokens"]) - 1 for place in one["targets"]), "special tokens are never chosen"
        changed = {n for n, pair in enumerate(zip(one["tokens"], one["input_tokens"], strict=True)) if len({*pair}) > 1}
        assert changed <= set(one["targets"])


def test_masks_show_one_masking_where_settings_choose_it(command: Command, run: unmask.Run) -> None:
    words = ("masks", "Anna Lee sees the ship.", "--tokenizer", run.folder / "model", "--rate", 0.5, "--json")
    done = command(*words, "--set", "masking.units.kind=span", "--set", "masking.replacement.shares=[1.0, 0.0, 0.0]")
    (one,) = done.json["strategies"]
    assert one["name"] == "span x uniform"
    assert {one["input_tokens"][place] for place in one["targets"]} == {done.json["mask_token"]}
    assert "training.minutes" in command(*words, "--set", "training.minutes=3").err
    lexicon = ("--set", "masking.units.kind=collocations", "--set", "masking.units.lexicon=nowhere.safetensors")
    assert "nowhere.safetensors" in command(*words, *lexicon).err


def test_predictions_of_a_file_are_a_line_a_row(command: Command, tuned: Path, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.jsonl"
    assert command("predict", tuned, samples / "classify.jsonl", "--out", out, "--json").code == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["row"] for row in rows] == list(range(1, 121))
    assert {row["label"] for row in rows} <= {"cold", "warm"}
    assert all(sum(row["probabilities"].values()) == pytest.approx(1.0, abs=1e-5) for row in rows)


def test_audit_finds_every_strategy_sound(command: Command, data: Path) -> None:
    done = command("audit", data, "--max-tokens", 5000, "--json")
    assert done.code == 0
    assert done.json["passed"] is True
    assert len(done.json["strategies"]) == 12
    for found in done.json["strategies"].values():
        assert found["special_targets"] == found["special_replacements"] == 0
        assert found["rate"] == pytest.approx(found["expected_rate"], abs=5 * found["rate_stderr"])
