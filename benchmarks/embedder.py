r"""What `unmask embedder` is worth, beside TSDAE and SimCSE of sentence-transformers, and how fast it trains.

    python benchmarks/embedder.py NAME=TEXT... --model NAME=FOLDER... [--seconds 600] [--seeds 3] \
        [--results docs/measured/embedder.jsonl]

A cell is a corpus, a way and a seed. All ways begin with the same masked language model and train for so many seconds
of wall-clock on the same documents, a tenth of which no way sees. Measured on these:

    known     recall@10 of passages by a crop of 5 to 30 of their words
    halves    recall@10 of the second halves of passages by the first ones
    titles    recall@10 of bodies by titles, where first lines are titles

    mean      the masked language model's mean, as it is            bm25, tfidf   no model
    unmask    `unmask embedder` with its defaults
    tsdae     `DenoisingAutoEncoderLoss` (the CLS token; a new decoder of two layers, not tied), AdamW at 3e-5
    simcse    `MultipleNegativesRankingLoss` of texts with themselves, dropout 0.1, AdamW at 3e-5
    speed     tokens a second of ours and of `CachedMultipleNegativesRankingLoss` on pairs of the same texts and batch

A cell's line is appended when it is known; what is there with the same settings is not made again, so that a run that
was stopped goes on with the same command.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from strategies import append, load
from tables import circumstances

from unmask.text.reading import open_bytes

WAYS = ("mean", "bm25", "tfidf", "unmask", "tsdae", "simcse", "speed")
PASSAGE_WORDS = 100
RATE = 3e-5
BATCH = 32  # of texts, for TSDAE and SimCSE
Embed = Callable[[Sequence[str]], NDArray[np.float32]]


class Questions(NamedTuple):
    """What is looked for among what; the n-th query's answer is the n-th text."""

    queries: list[str]
    texts: list[str]


def documents_of(text: str) -> list[str]:
    """Blocks between empty lines, long ones (books) in parts of 2,000 words."""
    found = []
    for block in dict.fromkeys(part.strip() for part in text.split("\n\n")):
        lines, words, part = block.split("\n"), 0, []
        for line in lines:
            part.append(line)
            words += len(line.split())
            if words >= 2000:
                found.append("\n".join(part))
                words, part = 0, []
        if part:
            found.append("\n".join(part))
    return [document for document in found if document.strip()]


def split(documents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Documents to learn from, and a tenth by their hash to measure on."""
    held = [hashlib.sha256(document.encode()).digest()[0] < 26 for document in documents]
    return tuple([d for d, h in zip(documents, held, strict=True) if h == side] for side in (False, True))  # type: ignore[return-value]


def questions(documents: Sequence[str], most: int) -> dict[str, Questions]:
    """The three kinds, of held-out documents."""
    rng = random.Random(0)
    passages, titles = [], {}
    for document in documents:
        first, _, rest = document.partition("\n")
        words = document.split()
        if rest and len(first.split()) <= 16 and not first.endswith((".", "!", "?", ",")) and len(rest.split()) > 15:
            titles.setdefault(first, " ".join(rest.split()[:PASSAGE_WORDS]))
        cut = [words[n : n + PASSAGE_WORDS] for n in range(0, len(words), PASSAGE_WORDS)]
        passages += [" ".join(part) for part in cut if len(part) >= PASSAGE_WORDS // 2]
    rng.shuffle(passages)
    passages = passages[:most]
    crops = []
    for passage in passages:
        words = passage.split()
        length = round(math.exp(rng.uniform(math.log(5), math.log(30))))
        begin = rng.randrange(len(words) - length + 1)
        crops.append(" ".join(words[begin : begin + length]))
    halves = [passage.split() for passage in passages]
    found = {
        "known": Questions(crops, passages),
        "halves": Questions(
            [" ".join(words[: len(words) // 2]) for words in halves],
            [" ".join(words[len(words) // 2 :]) for words in halves],
        ),
    }
    if len(titles) > len(documents) / 4:
        found["titles"] = Questions(list(titles)[:most], list(titles.values())[:most])
    return found


def recall(scores: NDArray[np.float32]) -> float:
    """Share of the queries whose answer is among the ten best; what scores equal stands behind."""
    right = scores.diagonal()[:, None]
    return float(((scores > right).sum(1) < 10).mean())


def bm25(asked: Questions) -> NDArray[np.float32]:
    """Robertson's BM25 with k1 = 1.2, b = 0.75; words are runs of letters and digits in lower case."""
    counts = [Counter(re.findall(r"\w+", text.lower())) for text in asked.texts]
    lengths = np.array([count.total() for count in counts], dtype=np.float32)
    where: dict[str, list[tuple[int, int]]] = {}
    for number, count in enumerate(counts):
        for word, times in count.items():
            where.setdefault(word, []).append((number, times))
    scores = np.zeros((len(asked.queries), len(counts)), dtype=np.float32)
    for row, query in zip(scores, asked.queries, strict=True):
        for word in set(re.findall(r"\w+", query.lower())) & where.keys():
            numbers, times = (np.array(each) for each in zip(*where[word], strict=True))
            rare = math.log(1 + (len(counts) - len(numbers) + 0.5) / (len(numbers) + 0.5))
            row[numbers] += rare * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * lengths[numbers] / lengths.mean()))
    return scores


def tfidf(asked: Questions) -> NDArray[np.float32]:
    """scikit-learn's, with sublinear counts."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    texts = vectorizer.fit_transform(asked.texts)
    return (vectorizer.transform(asked.queries) @ texts.T).toarray().astype(np.float32)


def figures_of(embed: Embed, asked: dict[str, Questions]) -> dict[str, float]:
    return {kind: recall(embed(each.queries) @ embed(each.texts).T) for kind, each in asked.items()}


def embed_with(folder: str | Path) -> Embed:
    import unmask

    model = unmask.load(folder)
    return lambda texts: model.embed(texts, normalize=True, long_texts="truncate")


def train_ours(model: str, text: Path, out: Path, seconds: float, seed: int) -> dict[str, Any]:
    import unmask

    shutil.rmtree(out, ignore_errors=True)
    return unmask.embedder(model, [text], out=out, minutes=seconds / 60, seed=seed).summary


def peer(model: str, *, pooling: str, dropout: float | None = None) -> Any:
    """The same weights in sentence-transformers."""
    from sentence_transformers import SentenceTransformer, models

    arguments = {}
    if dropout is not None:
        config = json.loads((Path(model) / "config.json").read_text())
        names = [name for name in ("attention_dropout", "mlp_dropout", "embedding_dropout", "hidden_dropout_prob",
                                   "attention_probs_dropout_prob") if name in config]  # fmt: skip
        arguments = {"config_kwargs": dict.fromkeys(names, dropout)}
    transformer = models.Transformer(model, **arguments)
    return SentenceTransformer(
        modules=[transformer, models.Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)], device="cpu"
    )


def fit_peer(model: Any, loss: Any, make: Callable[[random.Random], Sequence[list[str]]], seconds: float,
             seed: int) -> dict[str, Any]:  # fmt: skip
    """Trains by the clock: texts are tokenized batch by batch, as sentence-transformers' collator does it.

    Args:
        model: Of sentence-transformers.
        loss: One of its losses.
        make: Gives the columns of a batch.
        seconds: Wall-clock.
        seed: Of order and noise.
    """
    import torch

    torch.manual_seed(seed)
    rng, steps, tokens = random.Random(seed), 0, 0
    optimizer = torch.optim.AdamW(loss.parameters(), lr=RATE)
    model.train()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        features = [model.tokenize(column) for column in make(rng)]
        tokens += sum(int(each["attention_mask"].sum()) for each in features)
        value = loss(features, torch.arange(len(features[0]["input_ids"])))
        value.backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    model.eval()
    return {"steps": steps, "tokens": tokens, "seconds": time.monotonic() - began}


def passages_of(documents: Sequence[str]) -> list[str]:
    words = (document.split() for document in documents)
    return [" ".join(each[n : n + PASSAGE_WORDS]) for each in words for n in range(0, len(each), PASSAGE_WORDS)]


def noised(text: str, rng: random.Random) -> str:
    """TSDAE's noise: 60 % of the words are gone."""
    words = text.split()
    return " ".join(word for word in words if rng.random() >= 0.6) or rng.choice(words)


def measure(way: str, model: str, documents: Sequence[str], asked: dict[str, Questions], *, work: Path, seconds: float,
            seed: int) -> dict[str, Any]:  # fmt: skip
    """What a cell comes to."""
    if way in ("bm25", "tfidf"):
        scores = {"bm25": bm25, "tfidf": tfidf}[way]
        return {"figures": {kind: recall(scores(each)) for kind, each in asked.items()}}
    if way == "mean":
        return {"figures": figures_of(embed_with(model), asked)}
    text = work / "train.txt"
    text.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    if way in ("unmask", "speed"):
        summary = train_ours(model, text, work / "ours", seconds, seed)
        ours = {name: summary[name] for name in ("steps", "tokens_seen", "seconds", "tokens_per_second")}
        if way == "unmask":
            return {"figures": figures_of(embed_with(summary["model"]), asked), "trained": ours}
        return {"figures": speed_of_peer(model, passages_of(documents), seconds, seed) | {"unmask": ours}}
    from sentence_transformers import losses

    passages = passages_of(documents)
    if way == "tsdae":
        network = peer(model, pooling="cls")
        loss = losses.DenoisingAutoEncoderLoss(
            network, tie_encoder_decoder=False, decoder_name_or_path=decoder_for(model, work / "decoder")
        )
        make: Callable[[random.Random], Sequence[list[str]]] = lambda rng: _noisy(rng.sample(passages, BATCH), rng)  # noqa: E731
    else:
        network = peer(model, pooling="mean", dropout=0.1)
        loss = losses.MultipleNegativesRankingLoss(network)
        make = lambda rng: [each := rng.sample(passages, BATCH), each]  # noqa: E731
    trained = fit_peer(network, loss, make, seconds, seed)

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.asarray(network.encode(list(texts), normalize_embeddings=True, show_progress_bar=False))

    return {"figures": figures_of(embed, asked), "trained": trained}


def decoder_for(model: str, folder: Path) -> str:
    """A decoder of two layers of BERT's over the model's vocabulary: ModernBERT's layout has none of its own."""
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


def _noisy(texts: list[str], rng: random.Random) -> list[list[str]]:
    return [[noised(text, rng) for text in texts], texts]


def speed_of_peer(model: str, passages: Sequence[str], seconds: float, seed: int) -> dict[str, Any]:
    """Pairs of crops of passages, as long as ours are, in batches of as many, by cached gradients."""
    from sentence_transformers import losses

    from unmask.embedding.settings import EmbedderSettings

    network, settings = peer(model, pooling="mean"), EmbedderSettings()

    def crop(text: str, between: tuple[int, int], rng: random.Random) -> str:
        words = text.split()
        # A word is about 1.3 tokens.
        length = min(len(words), max(1, round(math.exp(rng.uniform(*map(math.log, between))) / 1.3)))
        begin = rng.randrange(len(words) - length + 1)
        return " ".join(words[begin : begin + length])

    def make(rng: random.Random) -> Sequence[list[str]]:
        chosen = rng.sample(passages, min(settings.batch_size, len(passages)))
        lengths = (settings.first_lengths, settings.second_lengths)
        return [[crop(text, between, rng) for text in chosen] for between in lengths]

    loss = losses.CachedMultipleNegativesRankingLoss(network, mini_batch_size=32)
    found = fit_peer(network, loss, make, seconds, seed)
    return {"cached": found | {"tokens_per_second": found["tokens"] / found["seconds"]}}


def settings_hash(text: bytes, model: str, seconds: float, most: int) -> str:
    """Of all that figures depend on, but for the way, the seed and the code."""
    from unmask.embedding.settings import EmbedderSettings
    from unmask.recipe.architecture import checkpoint_sha256

    content = [
        hashlib.sha256(text).hexdigest(), checkpoint_sha256(Path(model)), seconds, most,
        EmbedderSettings().model_dump(mode="json"),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", metavar="NAME=TEXT")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER", help="of each corpus")
    parser.add_argument("--results", type=Path, default=Path("docs/measured/embedder.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("runs/embedder-benchmark"))
    parser.add_argument("--seconds", type=float, default=600.0, help="of training, each way")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=2000, help="questions of a kind")
    parser.add_argument("--ways", default=",".join(WAYS))
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    models = dict(given.partition("=")[::2] for given in asked.model)
    asked.work.mkdir(parents=True, exist_ok=True)
    there = {(line["corpus"], line["way"], line["seed"], line["settings"]) for line in load(asked.results)}
    for seed in range(asked.seeds):
        for given in asked.corpora:
            name, _, source = given.partition("=")
            with open_bytes(Path(source)) as file:
                text = file.read()
            learned, held = split(documents_of(text.decode()))
            told = questions(held, asked.most)
            settings = settings_hash(text, models[name], asked.seconds, asked.most)
            for way in asked.ways.split(","):
                if way in ("bm25", "tfidf", "mean") and seed:
                    continue  # nothing is drawn
                if (name, way, seed, settings) in there:
                    continue
                found = measure(
                    way, models[name], learned, told, work=asked.work, seconds=asked.seconds, seed=seed
                )  # fmt: skip
                line = {"corpus": name, "way": way, "seed": seed, "settings": settings, "seconds": asked.seconds}
                append(asked.results, line | found | circumstances())
                print(f"{name}, {way}, seed {seed}: {json.dumps(found['figures'])}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
