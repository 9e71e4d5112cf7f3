"""What new words are worth when a model goes on with another domain: the same training with more and more of them.

    python benchmarks/extend_vocab.py runs/novels cpp_docs_prose.txt.gz --words 0 500 2000 --steps 2000 --seeds 3

Each number of words and seed is a run of its own in --out, kept, so that a benchmark that was stopped goes on. Runs
have the same number of steps: with new words a step holds as many positions and more of the text. `minutes` tells what
that costs. Bits per byte are those of `unmask evaluate`, of the same hidden words of the raw held-out text for every
vocabulary; losses, and bits per byte of hidden tokens, do not compare. "Before" is the model that the training began
with, whose new words are means of their old pieces.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from tables import write_table

import unmask
from unmask.commands.evaluate import evaluate
from unmask.data.corpus import Corpus
from unmask.data.data_folder import load_manifest
from unmask.data.settings import CorpusSettings
from unmask.measure.uncertainty import mean_interval
from unmask.tasks.loaded_model import as_scorable


def main() -> None:
    options = arguments()
    results = {
        words: [one_run(options, words, seed) for seed in range(options.seeds)] for words in sorted(options.words)
    }
    lines = table(results)
    print("\n".join(lines))
    if options.table is not None:
        write_table(options.table, "extend-vocab", lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a model or a run")
    parser.add_argument("text", help="the new domain")
    parser.add_argument("--words", type=int, nargs="+", default=[0, 500, 2000], help="how many new words")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--old-data", help="raw text of the old domain, where the checkpoint's run is gone")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs/extend-vocab"))
    parser.add_argument("--table", type=Path, help="a page with a place for the table, such as docs/results.md")
    return parser.parse_args()


def one_run(options: argparse.Namespace, words: int, seed: int) -> dict[str, Any]:
    """The summary of a training, with the tokens a byte of its text."""
    run = unmask.pretrain(
        [options.text],
        out=options.out / f"words-{words}-seed-{seed}",
        from_=options.checkpoint,
        extend_vocab=words or None,
        old_data=options.old_data,
        steps=options.steps,
        seed=seed,
        settings=options.set,
        resume=True,
    )
    manifest = json.loads((run.folder / "data" / "manifest.json").read_text(encoding="utf-8"))
    old = options.old_data or held_out_text(own_data(options.checkpoint), options.out / "old.jsonl")
    texts = {"new": held_out_text(run.folder / "data", options.out / "new.jsonl"), "old": old}
    models = {"before": run.folder / "start", "after": run.folder / "model"}
    measured = {
        (domain, when): evaluate(as_scorable(str(model)), [text], pseudo_tokens=0)["bits_per_byte"]
        for domain, text in texts.items()
        for when, model in models.items()
    }
    return {**run.summary, "tokens_per_byte": manifest["tokens"] / manifest["bytes"], "measured": measured}


def own_data(checkpoint: Path) -> Path:
    """Of the run that a model is of."""
    return (checkpoint if (checkpoint / "data").is_dir() else checkpoint.parent) / "data"


def held_out_text(data: Path, out: Path) -> Path:
    """What prepared data holds out, as raw text: tokens are those of one vocabulary."""
    settings = load_manifest(data).settings
    corpus = Corpus(settings["sources"], CorpusSettings.model_validate(settings["corpus"]))
    with out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": piece.text}) + "\n" for piece, held in corpus.pieces() if held)
    return out


def table(results: dict[int, list[dict[str, Any]]]) -> list[str]:
    """A line for each number of words; means over seeds with their 95 % intervals."""
    texts = ("new text, before", "new text, after", "old text, before", "old text, after")
    head = ["new words", "tokens a byte", *(f"{text} (± 95 %, over seeds)" for text in texts)]
    lines = [f"| {' | '.join([*head, 'minutes'])} |", f"|{' ---: |' * (len(head) + 1)}"]
    for words, summaries in results.items():
        minutes = statistics.mean(summary["seconds"] for summary in summaries) / 60.0
        cells = [f"{words:,}", f"{summaries[0]['tokens_per_byte']:.4f}"]
        cells += [bits(summaries, domain, when) for domain in ("new", "old") for when in ("before", "after")]
        lines.append(f"| {' | '.join([*cells, f'{minutes:.1f}'])} |")
    return [
        *lines,
        "",
        "Bits per byte of hidden words of held-out text; of several seeds, the mean ± half of its 95 % interval over "
        "seeds (Student's t).",
    ]


def bits(summaries: list[dict[str, Any]], domain: str, when: str) -> str:
    values = [summary["measured"][domain, when] for summary in summaries]
    interval = mean_interval(values)
    spread = "" if interval is None else f" ± {(interval[1] - interval[0]) / 2:.4f}"
    return f"{statistics.mean(values):.4f}{spread}"


if __name__ == "__main__":
    main()
