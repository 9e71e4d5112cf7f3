"""`unmask embedder` from a model and text to a folder: it learns, resumes, and its sparse vectors are right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

import unmask
from tests.command_line import Main
from tests.commands.checkpoints import Stopping, frees_its_model, released
from tests.conftest import small_config
from tests.model.helpers import MakeModel
from unmask.commands.embedder import forecast_embedder, plan_embedder
from unmask.core.errors import CorpusError, ModelError, RunError, SettingsError
from unmask.core.interruption import Interrupted
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.folder import save_model
from unmask.model.pooling import write_sentence_files
from unmask.search.known_items import HELD_OUT
from unmask.tasks.embed import sparse_texts
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train import contrast as splade
from unmask.train.contrast import splade_vectors

WORDS = ("king", "queen", "dog", "cat", "ship", "winter", "garden", "bridge", "sea", "mountaineer", "philosopher")
FAST = {
    "embedder.batch_size": 16,
    "embedder.first_lengths": [3, 8],
    "embedder.second_lengths": [4, 16],
    "embedder.part_tokens": 24,
    "embedder.precision": "float32",
}

EVERYTHING = FAST | {
    "embedder.micro_batch_tokens": 256,
    "embedder.checkpoint.every_steps": 3,
    "embedder.dimensions": [16],
    "card.license": "mit",
}
"""In parts of steps, with masked tokens."""


def passages(count: int) -> list[str]:
    """Each repeats a few words of its own."""
    generator = np.random.default_rng(0)
    stories = []
    for _ in range(count):
        own = generator.choice(WORDS, size=3, replace=False)
        stories.append(
            f"the {','.join(own)}\n" + "\n".join(f"the {a} sees the {b}." for a, b in generator.choice(own, (4, 2)))
        )
    return stories


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A masked language model that knows nothing."""
    model = MaskedLM(small_config(tokenizer, num_layers=2, initializer_range=0.02))
    initialise(model, seed=0)
    return released(model, tokenizer, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "passages.txt"
    file.write_text("\n\n".join(passages(80)) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def made(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> unmask.Embedder:
    return unmask.embedder(base, [corpus], out=tmp_path_factory.mktemp("made") / "e", steps=12, settings=EVERYTHING)


def metrics_of(trained: unmask.Embedder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]


PARTNERS = [{"query": a, "text": " ".join([b] * 8)} for a, b in zip(WORDS[:5], WORDS[5:10], strict=True)]
"""Pairs of texts that have no word in common."""


def test_every_text_finds_its_partner(base: Path, tmp_path: Path) -> None:
    """By heart."""
    settings = FAST | {"embedder.learning_rate": 3e-3, "embedder.mlm_weight": 0}
    trained = unmask.embedder(base, pairs=PARTNERS, out=tmp_path / "e", steps=60, settings=settings)
    losses = [line["loss"] for line in metrics_of(trained) if line["kind"] == "train"]
    assert losses[0] > 1.0
    assert losses[-1] < 0.05
    one, other = (trained.model.embed([pair[side] for pair in PARTNERS]) for side in ("query", "text"))
    assert (one @ other.T).argmax(1).tolist() == list(range(5))
    assert trained.after is None, "too little is held out"


def test_going_on_is_never_having_stopped(made: unmask.Embedder, base: Path, corpus: Path, tmp_path: Path) -> None:
    """Bit for bit."""
    options: dict[str, Any] = {"out": tmp_path / "e", "steps": 12}
    with pytest.raises(Interrupted, match="step 8"):
        unmask.embedder(base, [corpus], **options, settings=EVERYTHING, callbacks=[Stopping(8)])
    trained = unmask.embedder(base, [corpus], **options, settings=EVERYTHING, resume=True)
    ours, expected = (load_file(folder / "model" / "model.safetensors") for folder in (trained.folder, made.folder))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert (trained.after, trained.temperature) == (made.after, made.temperature)


def test_a_finished_one_is_compared_before_it_is_returned(
    made: unmask.Embedder, base: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other settings, and other text while the first is there, are refused; moved text may have another path. Neither
    the weights nor the text is read."""
    monkeypatch.setattr("unmask.commands.embedder.EmbedderRun", None)
    out, other = Path(shutil.copytree(made.folder, tmp_path / "e")), tmp_path / "other.txt"
    other.write_bytes(corpus.read_bytes())
    same: dict[str, Any] = {"out": out, "settings": EVERYTHING, "resume": True}
    again = unmask.embedder(base, [corpus], steps=12, **same).summary
    assert again == made.summary | {"model": str(out / "model")}
    for text, steps, key in ((corpus, 13, "steps"), (other, 12, "corpus_files")):
        with pytest.raises(RunError, match=f"{key} = "):
            unmask.embedder(base, [text], steps=steps, **same)
    settings = json.loads((out / "settings.json").read_text())
    (out / "settings.json").write_text(json.dumps(settings | {"corpus_files": [str(tmp_path / "gone.txt")]}))
    assert unmask.embedder(base, [other], steps=12, **same).summary == again


def test_the_memory_of_a_training_is_freed(base: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"pairs": PARTNERS, "out": tmp_path / "e", "steps": 1, "settings": FAST}
    assert frees_its_model(lambda watching: unmask.embedder(base, **options, callbacks=[watching]))


def test_what_a_training_leaves(made: unmask.Embedder) -> None:
    """Its figures, and a model that is still a masked language model."""
    evaluations = [line for line in metrics_of(made) if line["kind"] == "evaluation"]
    assert [line["step"] for line in evaluations] == [0, 3, 6, 9, 12]
    assert evaluations[-1]["kinds"] == made.after["kinds"]
    assert made.recall_at_10.keys() == made.before["kinds"].keys() == {"crops", "titles", "neighbours"}
    assert made.data["too_short"] == 0
    assert {*made.summary} == {*unmask.Embedder.__annotations__, "model"}, "declared for type checkers"
    assert made.summary == json.loads((made.folder / "summary.json").read_text())
    assert len(made.model.fill("the [MASK] sees", top_k=2).masks[0]) == 2
    assert unmask.verify(made.folder / "model").passed
    card = (made.folder / "model" / "README.md").read_text()
    assert all(text in card for text in ("library_name: sentence-transformers", "license: mit", "truncate_dim=16"))
    assert (made.folder / "report.html").read_text().count("data-plot=") == 2


def test_masked_tokens_are_measured_on_the_same_masks_whatever_the_seed(base: Path, tmp_path: Path) -> None:
    pairs, settings = tmp_path / "pairs.jsonl", FAST | {"embedder.holdout": 0.5}
    parts = (story.partition("\n") for story in passages(40))
    pairs.write_text("".join(json.dumps({"query": title, "text": body}) + "\n" for title, _, body in parts))
    made = (
        unmask.embedder(base, pairs=pairs, out=tmp_path / f"{seed}", steps=1, seed=seed, settings=settings)
        for seed in (0, 1)
    )
    one, other = (each.before for each in made)
    assert one["mlm_loss"] == pytest.approx(other["mlm_loss"], rel=1e-5)


def test_it_ends_early_with_the_best(base: Path, corpus: Path, tmp_path: Path) -> None:
    """At a learning rate that ruins the model."""
    settings = FAST | {"embedder.learning_rate": 1.0, "embedder.patience": 2, "embedder.evaluations": 20}
    trained = unmask.embedder(base, [corpus], out=tmp_path / "e", steps=60, settings=settings)
    evaluations = [line for line in metrics_of(trained) if line["kind"] == "evaluation" and line["step"]]
    best = min(evaluations, key=lambda line: line["loss"])
    assert trained.best_step == trained.model_step == best["step"] < trained.steps < 60
    assert f"The model is that of step {best['step']}." in (tmp_path / "e" / "model" / "README.md").read_text()
    assert trained.after["kinds"] == best["kinds"]
    pairs, batches = trained.data["parts"], -(-trained.data["parts"] // 16)
    epochs, rest = divmod(trained.steps, batches)
    assert trained.summary["pairs_seen"] == epochs * pairs + rest * pairs // batches

    # Resuming a run that had stopped early makes no further step.
    (tmp_path / "e" / "summary.json").unlink()
    again = unmask.embedder(base, [corpus], out=tmp_path / "e", steps=60, settings=settings, resume=True)
    assert (again.steps, again.best_step, again.after) == (trained.steps, trained.best_step, trained.after)


def test_pairs_alone_and_a_bare_encoder(
    tokenizer: Tokenizer, make_model: MakeModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = tmp_path / "bare"
    save_model(make_model(layout="bert", dropout=0.1), bare, with_head=False)
    tokenizer.save(bare, max_length=64)
    for changes, named in (({"embedder.mlm_weight": 0.1}, "mlm_weight"), (SPARSE, "sparse")):
        with pytest.raises(ModelError, match=f"bare encoder .*{named}"):
            unmask.embedder(bare, pairs=PARTNERS, out=tmp_path / "e", steps=2, settings=FAST | changes)
    assert forecast_embedder(bare, pairs=PARTNERS, steps=2, settings=FAST)["pairs"] == {"given": 5}
    with caplog.at_level("INFO"):
        trained = unmask.embedder(bare, pairs=PARTNERS, out=tmp_path / "e", steps=2, settings=FAST)
    said = [line for line in caplog.messages if "head" in line]
    assert len(said) == 1, said
    assert "no head for masked tokens" in said[0]
    assert trained.data == {"given_pairs": 5}
    assert json.loads((tmp_path / "e" / "settings.json").read_text())["held_out"] is None
    assert not unmask.load(tmp_path / "e").has_head
    assert trained.model.embed(["the king"]).shape == (1, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 2, "minutes": 1.0}, "minutes"),
        ({"settings": ["embedder.first_lengths=[70, 90]"]}, "first_lengths"),
        ({"settings": ["embedder.dimensions=[16]"], "sparse": True}, "dimensions"),
        ({"settings": ["embedder.dimensions=[16, 33]"]}, "32 .* 33"),
        ({"settings": ["embedder.pooling=mean"], "sparse": True}, "pooling"),
        ({"settings": ["embedder.columns.text=body"]}, "embedder.columns.text"),
        ({"settings": ["corpus.documents=line"], "corpus": None, "pairs": [{"query": "a", "text": "b"}]}, "documents"),
    ],
)
def test_errors(base: Path, corpus: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        unmask.embedder(base, **({"corpus": [corpus], "steps": 1} | changes), out=tmp_path / "e")
    assert not (tmp_path / "e" / "settings.json").exists()


def test_an_encoding_is_of_text_and_pairs(base: Path, corpus: Path, data_folder: Path) -> None:
    plan = plan_embedder(base, [corpus], encoding="cp1252", settings=FAST)
    assert plan.corpus.encoding == plan.settings.columns.encoding == "cp1252"
    with pytest.raises(SettingsError, match="prepared data"):
        plan_embedder(base, [data_folder], settings=FAST)


def test_the_column_of_a_run_does_not_apply_to_text(
    base: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Path(shutil.copytree(base, tmp_path / "run" / "model"))
    (tmp_path / "run" / "settings.json").write_text(json.dumps({HELD_OUT: {"column": "body"}}))
    unmask.embedder(model, [corpus], out=tmp_path / "e", steps=1, settings=FAST)
    assert "corpus.column = 'body'" in caplog.text
    with pytest.raises(CorpusError, match=r"corpus\.column = 'text' .*passages\.txt"):
        unmask.embedder(model, [corpus], out=tmp_path / "f", steps=1, settings=FAST | {"corpus.column": "text"})


def test_the_pooling_is_that_of_a_sentence_encoder(base: Path, corpus: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "encoder"))
    write_sentence_files(folder, max_length=64, width=32, pooling="first")
    assert plan_embedder(folder, [corpus], settings=FAST).settings.pooling == "first"
    assert plan_embedder(folder, [corpus], settings=FAST | {"embedder.pooling": "mean"}).settings.pooling == "mean"
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    with pytest.raises(ModelError, match=r"lasttoken.*embedder\.pooling"):
        plan_embedder(folder, [corpus], settings=FAST)
    assert plan_embedder(folder, [corpus], settings=FAST, sparse=True).settings.pooling == "mean"


SPARSE = FAST | {
    "embedder.micro_batch_tokens": 128,
    "embedder.checkpoint.every_steps": 3,
    "embedder.sparse.first_weight": 1e-3,
}


def encoded(folder: Path, some: list[str]) -> NDArray[np.float32]:
    """Vectors by sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    actual = library.SparseEncoder(str(folder), device="cpu").encode(some, convert_to_sparse_tensor=False)
    return np.asarray(actual)


@pytest.fixture(scope="module")
def sparse(base: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> unmask.Embedder:
    """In parts of steps, with masked tokens."""
    return unmask.embedder(base, [corpus], out=tmp_path_factory.mktemp("sparse") / "e", steps=9, settings=SPARSE)


@pytest.mark.parametrize(("logits", "places", "least"), [(1, 1, 0.0), (1 << 25, 1 << 22, 0.0), (1 << 25, 64, -2.5)])
def test_vectors_and_gradients_are_those_of_the_expression(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, logits: int, places: int, least: float
) -> None:
    """Gradients of hidden states, the embedding matrix, the bias and the layers before it: for texts one by one and all
    at once, and for vectors that are mostly 0.
    """
    monkeypatch.setattr(splade, "LOGITS", logits)
    monkeypatch.setattr(splade, "_PLACES", places)
    model = make_model()
    with torch.no_grad():
        model.head.bias.normal_(mean=least, generator=torch.Generator().manual_seed(1))
    lengths = (2, 5, 1)
    hidden = torch.randn(8, model.config.hidden_size, generator=torch.Generator().manual_seed(0)) * 3
    weights = torch.randn(3, model.config.vocab_size, generator=torch.Generator().manual_seed(2))

    def plain(x: torch.Tensor) -> torch.Tensor:
        texts = model.head(x, model.encoder.tokens).split(list(lengths))
        return torch.stack([each.max(0).values for each in texts]).relu().log1p()

    actual = []
    for make in (plain, lambda x: splade_vectors(model, x, lengths)):
        model.zero_grad()
        x = hidden.clone().requires_grad_()
        vectors = make(x)
        assert bool((vectors > 0).float().mean() < 0.2) == (least < 0)
        (vectors * weights).sum().backward()
        learned = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        actual.append({"vectors": vectors.detach(), "x": x.grad, **learned})
    assert actual[0].keys() == actual[1].keys() > {"x", "head.bias", "head.dense.weight"}
    for name, gradient in actual[0].items():
        assert gradient.abs().sum() > 0, name
        torch.testing.assert_close(actual[1][name], gradient, atol=1e-5, rtol=1e-4)


def test_a_file_of_sparse_vectors(sparse: unmask.Embedder, tmp_path: Path, main: Main) -> None:
    """They are those of sentence-transformers; of a text in several parts as `sparse_texts` makes them."""
    folder, some = sparse.folder / "model", [*passages(3), " ".join(passages(6))]
    (tmp_path / "t.txt").write_text("\n".join(each.replace("\n", " ") for each in some))
    command = ("embed", folder, tmp_path / "t.txt", "--long-texts", "split", "--out")
    code, printed, err = main(*command, tmp_path / "v.parquet", "--json")
    assert code == 0, err
    figures = json.loads(printed)
    assert (figures["pooling"], figures["dimension"], figures["long_texts"]) == ("splade", sparse.dimension, 1)
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    dense = np.zeros((4, sparse.dimension), dtype=np.float32)
    for row, tokens, values in zip(dense, table["indices"], table["values"], strict=True):
        row[tokens] = values
    np.testing.assert_allclose(dense[:3], encoded(folder, some[:3]), atol=1e-4)
    together = sparse_texts(sparse.model.predictor, sparse.model.tokenizer, some[3:], "split").vectors
    np.testing.assert_allclose(dense[3:], together.toarray(), atol=1e-4)
    assert main(*command, tmp_path / "u.parquet", "--normalize")[0] == 0
    values = pq.read_table(tmp_path / "u.parquet").column("values").to_pylist()
    np.testing.assert_allclose([np.linalg.norm(each) for each in values], 1.0, rtol=1e-6)
    assert main(*command, tmp_path / "v.npy")[0] == 2, "sparse vectors are written as .parquet"
    with pytest.raises(ModelError, match="sparse"):
        sparse.model.embed(some[:1])


def test_an_index_of_sparse_vectors(sparse: unmask.Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are products of the vectors of sentence-transformers, also after it was changed."""
    folder, out, some = sparse.folder / "model", tmp_path / "i", passages(20)
    (tmp_path / "t.txt").write_text("\n\n".join(some))
    index = unmask.Index.build(folder, tmp_path / "t.txt", documents="block", out=out)
    queries = [some[7][:40], "the king"]
    vectors = encoded(folder, [*some, *queries])
    scores = vectors[20:] @ vectors[:20].T
    for query, row in zip(index.query(queries, top_k=20).queries, scores, strict=True):
        hits = query["hits"]
        assert len(hits) == (row > 0).sum() > 1
        np.testing.assert_allclose([hit["score"] for hit in hits], np.sort(row)[::-1][: len(hits)], rtol=1e-4)
        np.testing.assert_allclose([row[hit["document"]] for hit in hits], [hit["score"] for hit in hits], rtol=1e-4)
    with pytest.raises(SettingsError, match="approximate"):
        unmask.Index.build(folder, tmp_path / "t.txt", documents="block", out=out, overwrite=True, approximate=True)
    monkeypatch.setattr("unmask.search.changes.LIGHT_IN_A_ROW", 2)
    changed = unmask.Index.build(folder, iter(["the queen", *some[:9]]), out=tmp_path / "changed")
    assert changed.add(iter(some[9:])).documents == 21
    assert changed.remove([1]).passages == 20
    for each, other in zip(
        changed.query(queries, top_k=20).queries, index.query(queries, top_k=20).queries, strict=True
    ):
        assert [hit["document"] for hit in each["hits"]] == [hit["document"] for hit in other["hits"]]
        scores = [[hit["score"] for hit in query["hits"]] for query in (each, other)]
        np.testing.assert_allclose(*scores, rtol=1e-5)
