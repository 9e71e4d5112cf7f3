r"""A speed record for masked language models: seconds of training to given scores on held-out words and grammar.

    make record BOOKS=100_english_novels/corpus PAIRS=blimp/data
    python benchmarks/record.py BOOKS --pairs BLIMP [--track cpu] [--systems ours] [--seeds 0,1,2] [--minutes M] \
        [--batch-tokens N] [--learning-rate R] [--size LAYERS,WIDTH] [--set section.key=value] [--out FOLDER] \
        [--results docs/measured/record.jsonl] [--table docs/explanation/record.md]

The rules are in docs/explanation/record.md. Systems are those of time_to_loss.py and `Trainer`, each in its own
process; several take turns. At twelve times of a run its model is saved as a transformers folder, and the folder is
measured, so that vocabularies may differ. The table shows all results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ours import prepare
from plain_loop import PEERS, TRAINER
from tables import command_line, head, made, parser_of, read_lines, replace_table, with_half
from time_to_loss import OURS, SETTINGS, VOCAB_SIZE, Entry, Work, run, seconds_to, serve

import unmask
from unmask.core.files import file_sha256
from unmask.measure.questions import read_pairs
from unmask.model.encoder import MaskedLM
from unmask.model.folder import save_model

# SHA-256 of the output of `LC_ALL=C sha256sum *.txt`, and of the pairs as lines `paradigm<TAB>right<TAB>wrong`.
BOOKS_SHA256 = "840089de2d93b0750b34f73a5cd7805b96affa0255ea50b57bb8e2cde882d412"
PAIRS_SHA256 = "c21ea7ed41ce5744e222ac9d9e6381518a27dc5b307263fa0c8cb1d583922cd2"
HELD_OUT = ("Barclay_Ladies_1917.txt", "Burnett_Garden_1911.txt", "Gaskell_Wives_1865.txt", "Ward_Ashe_1905.txt")
HELD_OUT_TOKENS = 100_000
PAIRS_EACH = 25  # first pairs of each paradigm; pairs of a paradigm are much alike


class Track(NamedTuple):
    """The resources of a run, and its goals."""

    device: str
    threads: int
    minutes: float
    recipe: str
    size: tuple[int, int]  # layers and width of the peers
    bits: float  # goal: bits a byte of hidden words
    share: float  # goal: share of pairs that are right


TRACKS = {
    "cpu": Track("cpu", 2, 30.0, "tiny", (4, 256), bits=2.2, share=0.57),
    "gpu": Track("cuda", 8, 10.0, "small", (12, 512), bits=1.8, share=0.65),
}


def check(folder: Path, pairs: Path) -> tuple[list[Path], list[Path]]:
    """The books to train on, and the held-out ones. Exits if books or pairs are not the record's."""
    books = sorted(folder.glob("*.txt"))
    listing = "".join(f"{file_sha256(book)}  {book.name}\n" for book in books)
    sentences = "".join(f"{pair.paradigm}\t{pair.good}\t{pair.bad}\n" for pair in read_pairs(pairs))
    for path, text, expected in ((folder, listing, BOOKS_SHA256), (pairs, sentences, PAIRS_SHA256)):
        if (sha256 := hashlib.sha256(text.encode()).hexdigest()) != expected:
            sys.exit(f"{path} has other content (SHA-256 {sha256}) than the record's ({expected}); see its page")
    return [book for book in books if book.name not in HELD_OUT], [book for book in books if book.name in HELD_OUT]


def measure(work: Work, model: Any) -> tuple[float, float]:
    """Bits per byte of hidden words, and the share of minimal pairs that are wrong; a tie counts half."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(Path(work.data) / "tokenizer", Path(scratch) / "model"))
        save_model(model, folder) if isinstance(model, MaskedLM) else model.save_pretrained(folder)
        words = unmask.evaluate(folder, list(work.held_out), max_tokens=HELD_OUT_TOKENS, pseudo_tokens=0)
        pairs = unmask.score(folder, work.pairs, pairs_per_paradigm=PAIRS_EACH)
    assert words.bits_per_byte is not None, "the held-out books have words"
    return words.bits_per_byte, 1.0 - pairs.accuracy


def table(entries: Sequence[Entry], log: str) -> list[str]:
    """A line for the runs of each system, command and commit, sorted by the time to the goal in bits.

    `log` is the path of the results, relative to the page.
    """
    rows: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        rows.setdefault((entry["work"]["system"], entry["commit"], entry["command"]), []).append(entry)
    track = TRACKS[entries[0]["track"]]
    lines = head(
        f"date | system | seconds to {track.bits:g} bits a byte | seconds to {track.share:.0%} of BLiMP "
        "| at the end: seconds | bits a byte | BLiMP | parameters | seeds | commit | log"
    )
    goals = ((1, track.bits), (2, 1.0 - track.share))
    for (system, commit, _), runs in sorted(rows.items(), key=lambda row: _seconds(row[1], *goals[0])[0]):
        ends = [entry["points"][-1] for entry in runs]
        lines.append(
            f"| {runs[0]['date']} | {system} | {' | '.join(_seconds(runs, *goal)[1] for goal in goals)} "
            f"| {fmean(end[0] for end in ends):,.0f} | {with_half([end[1] for end in ends])} "
            f"| {with_half([100.0 * (1.0 - end[2]) for end in ends], '.1f')} % | {runs[0]['facts']['parameters']:,} "
            f"| {', '.join(str(entry['work']['seed']) for entry in runs)} | {commit} "
            f"| {', '.join('[{0}]({1}#L{0})'.format(entry['line'], log) for entry in runs)} |"
        )
    commands = dict.fromkeys(f"- {commit}: `{command}`" for _, commit, command in rows)
    return [*lines, "", *commands, "", *made(entries)]


def _seconds(runs: Sequence[Entry], place: int, goal: float) -> tuple[float, str]:
    """When the curves of a figure reach a goal for good: a number to sort by, and the table's cell."""
    seconds = [seconds_to([(point[0], point[place]) for point in entry["points"]], goal) for entry in runs]
    reached = [each for each in seconds if each is not None]
    if len(reached) < len(runs):
        return float("inf"), f"{len(reached)} of {len(runs)} runs"
    return fmean(reached), with_half(reached, ",.0f")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("books", type=Path, nargs="?", help="folder `corpus` of 100_english_novels")
    parser.add_argument("--pairs", type=Path, help="BLiMP: its folder or archive")
    parser.add_argument("--track", choices=TRACKS, default="cpu")
    parser.add_argument("--systems", default=f"{TRAINER},{','.join(PEERS)},{OURS}")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--minutes", type=float, help="training time; by default the track's")
    parser.add_argument("--batch-tokens", type=int, help="positions a step; by default those of time_to_loss.py")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--size", help="layers and width of the peers, as 2,128; by default the track's")
    parser.add_argument("--set", action="append", default=[], help="a setting of our recipe, as for unmask pretrain")
    parser.add_argument("--out", type=Path, default=Path("runs/record"), help="folder of the prepared text")
    parser.add_argument("--results", type=Path, default=Path("docs/measured/record.jsonl"))
    parser.add_argument("--table", type=Path, help="page whose table `record-TRACK` is rewritten")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        work = Work(**json.loads(options.serve))
        serve(work, lambda _: partial(measure, work))
        return
    if options.books is None or options.pairs is None or not set(options.systems.split(",")) <= {TRAINER, *SETTINGS}:
        parser.error(f"name the folder of the books, and --pairs; systems are {TRAINER}, {', '.join(SETTINGS)}")
    track, (books, held_out) = TRACKS[options.track], check(options.books, options.pairs)
    data = options.out / "data"
    if not (data / "manifest.json").is_file():
        prepare(books, data, VOCAB_SIZE)
    works, size = [], tuple(map(int, options.size.split(","))) if options.size else track.size
    for seed, system in product(map(int, options.seeds.split(",")), options.systems.split(",")):
        batch_tokens, learning_rate = SETTINGS["modernbert-adamw" if system == TRAINER else system]
        works.append(Work(
            str(data), system, options.minutes or track.minutes, options.batch_tokens or batch_tokens,
            options.learning_rate or learning_rate, seed, track.threads, overrides=options.set, recipe=track.recipe,
            size=size, device=track.device, held_out=list(map(str, held_out)), pairs=str(options.pairs),
        ))  # fmt: skip
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.check_output([*git, "rev-parse", "--short=10", "HEAD"], text=True).strip()
    if subprocess.call([*git, "diff", "--quiet", "HEAD", "--", ".", "../unmask"]):
        commit += "-dirty"  # code that cannot be checked out
    run(works, options.results, __file__, track=options.track, commit=commit, command=command_line())
    every = [{**entry, "line": number} for number, entry in enumerate(read_lines(options.results), 1)]
    log = os.path.relpath(options.results, options.table.parent if options.table else ".")
    lines = table([entry for entry in every if entry["track"] == options.track], Path(log).as_posix())
    print(*lines, sep="\n")
    if options.table:
        replace_table(options.table, f"record-{options.track}", "\n".join(lines))


if __name__ == "__main__":
    main()
