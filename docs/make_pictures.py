"""Makes the pictures of docs/explanation/masking.md: what each strategy masks of one text, by the engine itself.

    python docs/make_pictures.py [--out docs/pictures] [--steps 300] [NAME ...]

Text, tokenizer, frequencies, collocations and document counts are those of Tiny Shakespeare, which is packaged.
Annotations are those of the installed English spaCy pipeline. Scores of a model are those of a small one (2 layers of
128) that is trained for `--steps` steps here: about a minute on one core.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

import unmask
from unmask.commands.masking_tables import masking_tables
from unmask.commands.masks import row_and_masker
from unmask.commands.run_data import PreparedData, open_prepared, packaged_corpus
from unmask.core.results import Reporter
from unmask.core.settings import validated
from unmask.data.prepare import prepare
from unmask.data.rows import Rows
from unmask.data.settings import CorpusSettings
from unmask.masking.masker import Masker
from unmask.masking.settings import STRATEGIES, MaskingSettings
from unmask.masking.tables import Scores, Tables
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings
from unmask.train.checkpoints import list_checkpoints

sys.path.insert(0, str(Path(__file__).parent))
from draw import Token, picture

TEXT = """Harry of Hereford, Lancaster and Derby
Am I; who ready here do stand in arms,
To prove, by God's grace and my body's valour,
In lists, on Thomas Mowbray, Duke of Norfolk,
That he is a traitor, foul and dangerous,
To God of heaven, King Richard and to me."""
RATE, SEED, EPOCHS = 0.2, 0, 1000
VOCABULARY = 4096

# A pair of units and weights that has no name of its own.
OTHERS = {"span-frequency": {"units": {"kind": "span"}, "weights": {"kind": "frequency"}}}
FOLLOWED = ("loss", "centrality")


def all_settings() -> dict[str, MaskingSettings]:
    """What each picture shows, by its name."""
    values = {name: {"strategy": name} for name in STRATEGIES} | OTHERS
    return {name: validated(MaskingSettings, {**value, "rate": RATE}, where=name) for name, value in values.items()}


def draw(name: str, settings: MaskingSettings, tokenizer: Tokenizer, tables: Tables) -> str:
    """The SVG of a strategy: its first epoch (of a mixture its first three), and bars over many."""
    rows, masker = row_and_masker(TEXT, tokenizer, settings, name, tables=tables, seed=SEED)
    share_S = sum((masker(rows, epoch=epoch).labels[0] >= 0).double() for epoch in range(EPOCHS)) / EPOCHS
    epochs = 3 if settings.units.kind == "mixture" else 1
    blocks = [tokens_of(rows, masker, epoch, share_S) for epoch in range(epochs)]
    return picture(f"What masking by {name} hides of some lines of Richard II", blocks, RATE)


def tokens_of(rows: Rows, masker: Masker, epoch: int, share_S: torch.Tensor) -> list[Token]:
    """The text of a row as an epoch masks it, for drawing, without its special tokens."""
    tokenizer, masked, units = masker.tokenizer, masker(rows, epoch=epoch), masker.weighed(rows, epoch=epoch).units
    spell = tokenizer.word_starts.spelling.text_bytes
    found = []
    for place in rows.maskable[0].nonzero()[:, 0].tolist():
        true, seen = int(rows.input_ids[0, place]), int(masked.input_ids[0, place])
        state = ""
        if masked.labels[0, place] >= 0:
            state = "mask" if seen == tokenizer.special.mask else "kept" if seen == true else "random"
        begin = int(units.begin_T[place])
        found.append(
            Token(
                spell(tokenizer.token(true)).decode(),
                state,
                spell(tokenizer.token(seen)).decode() if state == "random" else "",
                begins_word=bool(rows.word_starts[0, place]),
                begins_unit=begin == place,
                unit_size=int(units.size_T[begin]),
                share=float(share_S[place]),
            )
        )
    return found


def prepared(folder: Path) -> PreparedData:
    """The packaged text, prepared."""
    corpus, tokenizer = CorpusSettings(), TokenizerSettings(vocab_size=VOCABULARY)
    prepare([packaged_corpus()], folder, corpus=corpus, tokenizer=tokenizer, workers=1)
    return open_prepared(folder)


def static_tables(data: PreparedData, folder: Path) -> Tables:
    """Frequencies, numbers of documents and collocations."""
    all_of_them = {"units": {"kind": "collocations"}, "weights": {"kind": "tfidf"}}
    settings = validated(MaskingSettings, all_of_them, where="masking")
    tables, _ = masking_tables(settings, data, own_lexicon=folder / "lexicon", reporter=Reporter())
    return tables


def scores_of_a_model(data: PreparedData, folder: Path, steps: int) -> Scores:
    """What a small model says of the vocabulary after some steps of masking by all strategies that follow one."""
    parts = [f'{{units={{kind="words"}}, weights={{kind="{kind}"}}}}' for kind in FOLLOWED]
    run = unmask.pretrain(
        [data.root],
        out=folder / "run",
        steps=steps,
        settings=[
            f'masking.units={{kind="mixture", parts=[{", ".join(parts)}]}}',
            f"masking.refresh_steps={max(1, steps // 3)}",
            "model.num_layers=2", "model.hidden_size=128", "model.num_heads=2",
            "training.sequence_length=128", "training.batch_tokens=2048",
        ],
    )  # fmt: skip
    state = load_file(list_checkpoints(run.folder / "checkpoints")[-1] / "scores.safetensors")
    tables = {name.removeprefix("scores."): table for name, table in state.items() if name.startswith("scores.")}
    return Scores(int(state["version"]), tables)


def main() -> None:
    """Makes the pictures that are asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "pictures")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    settings = all_settings()
    with tempfile.TemporaryDirectory(prefix="unmask-") as scratch:
        folder = Path(scratch)
        data = prepared(folder / "data")
        tables = replace(static_tables(data, folder), scores=scores_of_a_model(data, folder, options.steps))
        options.out.mkdir(parents=True, exist_ok=True)
        for name in options.names or settings:
            drawn = draw(name, settings[name], data.tokenizer, tables)
            (options.out / f"{name}.svg").write_text(drawn, encoding="utf-8")
            print(options.out / f"{name}.svg", flush=True)


if __name__ == "__main__":
    main()
