r"""Search quality and training speed of `unmask embedder`, compared with sentence-transformers' TSDAE and SimCSE.

    python benchmarks/embedder.py NAME=TEXT... [--pretrain-minutes 10] [--minutes 5] [--seeds 0,1,2] \
        [--holdout NAME=SHARE...] [--results docs/measured/embedder.jsonl] [--out docs/explanation/results.md]

For each text and seed a masked language model is pretrained with the defaults. All methods start from it, and learn
from the same documents for `--minutes` of wall-clock time (reading text does not count). `unmask.evaluate_search`
measures them on documents that neither the model nor the methods have seen: by crops, and by titles if there are any.

    mean      the masked language model's mean, not trained on      bm25, tfidf   no model
    unmask    `unmask embedder` with its defaults
    sparse    `unmask embedder --sparse`
    tsdae     `DenoisingAutoEncoderLoss` (the CLS token; a new decoder of two layers, not tied), AdamW at `--peer-rate`
    simcse    `MultipleNegativesRankingLoss` of texts with themselves, dropout 0.1, AdamW at `--peer-rate`

The peers compute in float32, in plain loops: a Trainer around them would add to their time.

A cell is a corpus, a method and a seed, which is also that of the pretraining. Its line is appended to the results when
it ends. Cells that have a line with the same settings are skipped, so the same command continues a stopped run. Trained
models are kept, so that they can be measured again, in passages of another length (`--passage-tokens`).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tables import append_lines, circumstances, made, parser_of, read_lines, replace_table, with_half

import unmask
from unmask.commands.embedder_settings import EmbedderSettings
from unmask.commands.recipe import checkpoint_sha256
from unmask.core.files import file_sha256
from unmask.data.corpus import Corpus
from unmask.search.known_items import HELD_OUT, held_out_rule

WAYS = ("mean", "unmask", "sparse", "tsdae", "simcse")
WORDS = ("bm25", "tfidf")  # measured together with `mean`
FIGURES = ("recall_at_10", "ndcg_at_10")
PASSAGE_WORDS = 100
BATCH = 32  # of texts, for TSDAE and SimCSE


def passages_of(corpus: Path, model: Path) -> list[str]:
    """The documents that the model was trained on, cut into passages of 100 words."""
    passages = []
    for piece, held in Corpus([corpus], held_out_rule(model)[1]).pieces():
        words = [] if held else piece.text.split()
        passages += [" ".join(words[n : n + PASSAGE_WORDS]) for n in range(0, len(words), PASSAGE_WORDS)]
    return passages


def figures_of(
    model: Path, corpus: Path, passage_tokens: int, baselines: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Figures of a model and of the baselines, by system and task."""
    tasks = unmask.evaluate_search(
        model, [corpus], baselines=baselines, passage_tokens=passage_tokens, precision="bf16"
    ).tasks
    return {
        system: {
            task: {"queries": each["queries"], **{key: each["systems"][system][key] for key in FIGURES}}
            for task, each in tasks.items()
        }
        for system in (str(model), *baselines)
    }


def train_ours(
    model: Path, corpus: Path, out: Path, minutes: float, seed: int, *, sparse: bool = False
) -> dict[str, Any]:
    shutil.rmtree(out, ignore_errors=True)
    summary = unmask.embedder(model, [corpus], out=out, minutes=minutes, seed=seed, sparse=sparse).summary
    names = ("model", "steps", "tokens_seen", "seconds", "tokens_per_second", "nonzero")
    return {name: summary[name] for name in names if summary[name] is not None}


def peer(model: Path, *, pooling: str, dropout: float | None = None) -> Any:
    from sentence_transformers import SentenceTransformer, models

    arguments = {}
    if dropout is not None:
        config = json.loads((model / "config.json").read_text())
        names = [name for name in ("attention_dropout", "mlp_dropout", "embedding_dropout", "hidden_dropout_prob",
                                   "attention_probs_dropout_prob") if name in config]  # fmt: skip
        arguments = {"config_kwargs": dict.fromkeys(names, dropout)}
    transformer = models.Transformer(str(model), **arguments)
    return SentenceTransformer(
        modules=[transformer, models.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)], device="cpu"
    )


def fit_peer(network: Any, loss: Any, make: Callable[[random.Random], Sequence[list[str]]], *, seconds: float,
             seed: int, rate: float) -> dict[str, Any]:  # fmt: skip
    """Trains for `seconds`. `make` returns the columns of a batch, which sentence-transformers tokenizes."""
    import torch

    torch.manual_seed(seed)
    rng, steps, tokens = random.Random(seed), 0, 0
    optimizer = torch.optim.AdamW(loss.parameters(), lr=rate)
    network.train()
    began = time.monotonic()
    while (taken := time.monotonic() - began) < seconds:
        features = [network.tokenize(column) for column in make(rng)]
        tokens += sum(int(each["attention_mask"].sum()) for each in features)
        loss(features, torch.arange(len(features[0]["input_ids"]))).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    network.eval()
    return {"steps": steps, "tokens_seen": tokens, "seconds": taken, "tokens_per_second": tokens / taken, "rate": rate}


def train_peer(way: str, model: Path, passages: Sequence[str], out: Path, **how: Any) -> dict[str, Any]:
    """Trains TSDAE or SimCSE. Saves the model beside the pretrained model's rule of held-out documents."""
    from sentence_transformers import losses

    if way == "tsdae":
        network = peer(model, pooling="cls")
        decoder = decoder_for(model, out.with_name("decoder"))
        loss = losses.DenoisingAutoEncoderLoss(network, tie_encoder_decoder=False, decoder_name_or_path=decoder)
    else:
        network = peer(model, pooling="mean", dropout=0.1)
        loss = losses.MultipleNegativesRankingLoss(network)

    def noised(text: str, rng: random.Random) -> str:
        """TSDAE's noise: deletes 60 % of the words."""
        words = text.split()
        return " ".join(word for word in words if rng.random() >= 0.6) or rng.choice(words)

    def make(rng: random.Random) -> Sequence[list[str]]:
        texts = rng.sample(passages, BATCH)
        return [[noised(text, rng) for text in texts] if way == "tsdae" else texts, texts]

    trained = fit_peer(network, loss, make, **how)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "settings.json").write_text(json.dumps({HELD_OUT: held_out_rule(model)[1].model_dump(mode="json")}))
    network.save(str(out / "model"))
    return {"model": str(out / "model"), **trained}


def decoder_for(model: Path, folder: Path) -> str:
    """A decoder of two BERT layers over the model's vocabulary, since ModernBERT has no decoder."""
    from transformers import AutoConfig, AutoTokenizer, BertConfig, BertLMHeadModel

    config = AutoConfig.from_pretrained(model)
    decoder = BertConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=2,
        num_attention_heads=config.num_attention_heads, intermediate_size=4 * config.hidden_size,
        max_position_embeddings=config.max_position_embeddings, pad_token_id=config.pad_token_id,
        is_decoder=True, add_cross_attention=True,
    )  # fmt: skip
    BertLMHeadModel(decoder).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return str(folder)


def measure(
    way: str, settings: str, model: Path, corpus: Path, work: Path, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Figures of a cell."""
    if way == "mean":
        figures = figures_of(model, corpus, options.passage_tokens, WORDS)
        return {"mean": figures.pop(str(model)), **figures}
    out = work / f"{way}-{settings}-{checkpoint_sha256(model)[:16]}"
    note = out / "trained.json"
    if not note.is_file():
        if way in ("unmask", "sparse"):
            trained = train_ours(model, corpus, out, options.minutes, seed, sparse=way == "sparse")
        else:
            trained = train_peer(
                way,
                model,
                passages_of(corpus, model),
                out,
                seconds=60 * options.minutes,
                seed=seed,
                rate=options.peer_rate,
            )
        note.write_text(json.dumps(trained))
    trained = json.loads(note.read_text())
    folder = trained.pop("model")
    return {"figures": figures_of(Path(folder), corpus, options.passage_tokens)[folder], "trained": trained}


def settings_hash(way: str, text: str, overrides: Mapping[str, Any], options: argparse.Namespace) -> str:
    """A hash of everything that figures depend on, except seed, passage length and code; `text` is a hash, too."""
    content = [text, dict(overrides), options.pretrain_minutes, options.minutes]
    content.append(EmbedderSettings().model_dump(mode="json"))
    if way in ("tsdae", "simcse"):
        content.append(options.peer_rate)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of the table: a row for each corpus, method and passage length, over the seeds measured."""
    rows_of: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        length = line["passage_tokens"]
        if line["way"] == "mean":
            rows_of[line["corpus"], "mean", length].append(line["mean"])
            rows_of.update({(line["corpus"], word, 0): [line[word]] for word in WORDS})  # equal for all seeds
        elif line["way"] in WAYS:
            rows_of[line["corpus"], line["way"], length].append(line["figures"])
    yield "| text | way | passages | seeds | crops: recall@10 | nDCG@10 | titles: recall@10 | nDCG@10 |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    corpora = [*dict.fromkeys(corpus for corpus, *_ in rows_of)]
    shown = [*WORDS, *WAYS]
    for row in sorted(rows_of, key=lambda row: (corpora.index(row[0]), shown.index(row[1]), row[2])):
        (corpus, way, length), each = row, rows_of[row]
        cells = [
            with_half([figures[task][key] for figures in each]) if task in each[0] else ""
            for task in ("crop", "title")
            for key in FIGURES
        ]
        yield f"| {corpus} | {way} | {length or ''} | {len(each) if length else ''} | {' | '.join(cells)} |"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("corpora", nargs="+", metavar="NAME=TEXT")
    parser.add_argument("--results", type=Path, default=Path("docs/measured/embedder.jsonl"))
    parser.add_argument("--out", type=Path, help="page whose table is rewritten")
    parser.add_argument("--work", type=Path, default=Path("runs/embedder-benchmark"))
    parser.add_argument("--pretrain-minutes", type=float, default=10.0)
    parser.add_argument("--holdout", nargs="*", default=[], metavar="NAME=SHARE", help="share of documents to hold out")
    parser.add_argument("--minutes", type=float, default=5.0, help="training time of each method")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--passage-tokens", type=int, default=128, help="length of the passages that are searched")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--peer-rate", type=float, default=3e-5, help="AdamW's; that of sentence-transformers' pages")
    options = parser.parse_args()
    shares = dict(each.split("=") for each in options.holdout)
    current = set()
    for seed, text in itertools.product(map(int, options.seeds.split(",")), options.corpora):
        name, _, source = text.partition("=")
        corpus, work = Path(source), options.work / f"{name}-{seed}"
        model = work / "pretrained" / "model"
        overrides = {"corpus.holdout": float(shares[name])} if name in shares else {}
        sha256 = file_sha256(corpus)
        for way in WAYS:
            settings = settings_hash(way, sha256, overrides, options)
            current.add(settings)
            cell = {"corpus": name, "way": way, "seed": seed, "settings": settings, "minutes": options.minutes}
            cell |= {"passage_tokens": options.passage_tokens}
            known = any(cell.items() <= line.items() for line in read_lines(options.results))
            if way not in options.ways.split(",") or known:
                continue
            minutes = options.pretrain_minutes
            unmask.pretrain([corpus], out=model.parent, minutes=minutes, settings=overrides, seed=seed, resume=True)
            figures = measure(way, settings, model, corpus, work, options, seed)
            line = cell | {"masked_lm": checkpoint_sha256(model)[:16]} | figures
            append_lines(options.results, line | circumstances())
            print(json.dumps(line), file=sys.stderr, flush=True)
    lines = [line for line in read_lines(options.results) if line["settings"] in current]
    rows = "\n".join(table(lines))
    print(rows)
    if options.out is not None:
        replace_table(options.out, "embedder", "\n".join([*made(lines), "", rows]))


if __name__ == "__main__":
    main()
