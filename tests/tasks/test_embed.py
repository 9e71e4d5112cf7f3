from __future__ import annotations

import json
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import normalizers

import unmask
from tests.conftest import make_text
from tests.model.helpers import MakeModel
from unmask.core.errors import CorpusError, ModelError, SettingsError
from unmask.model.folder import save_model
from unmask.tasks import embed as embed_module
from unmask.tasks.embed import EmbedSettings, embed_texts, sparse_texts
from unmask.tokenizer.tokenizer import Tokenizer

LINES = [line for line in make_text(20, seed=5).split("\n") if line][:23]
TEXTS = [*LINES, "", "the", "the [MASK] and [SEP] king"]


@pytest.fixture
def sentence_folder(make_model: MakeModel, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    model = make_model(layout="bert")
    save_model(model, tmp_path)
    tokenizer.save(tmp_path, max_length=64)
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": None},
    }
    (tmp_path / "1_Pooling").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def ask_for(folder: Path, pooling: dict[str, object], *modules: str) -> None:
    """Changes the settings in a folder's files."""
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    content = json.loads((folder / "modules.json").read_text())[:2]
    more: list[dict[str, Any]] = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(modules, 2)
    ]
    (folder / "modules.json").write_text(json.dumps(content + more))
    for module in more:
        (folder / module["path"]).mkdir()
        (folder / module["path"] / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("pooling", "modules"),
    [
        ({"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}, ("Normalize",)),
        ({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}, ("Normalize",)),
        ({"word_embedding_dimension": 32, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, ()),
    ],
)
def test_a_folder_says_how_its_texts_are_embedded(
    sentence_folder: Path, pooling: dict[str, object], modules: tuple[str, ...]
) -> None:
    library = pytest.importorskip("sentence_transformers")
    ask_for(sentence_folder, pooling, *modules)
    wanted = library.SentenceTransformer(str(sentence_folder), device="cpu").encode(LINES[:5])
    model = unmask.load(sentence_folder)
    np.testing.assert_allclose(model.embed(LINES[:5]), wanted, atol=2e-5)
    plain = embed_texts(model.network, model.tokenizer, LINES[:5], EmbedSettings()).vectors
    assert np.abs(plain - wanted).max() > 0.01
    np.testing.assert_allclose(model.embed(LINES[:5], pooling="mean", normalize=False), plain, atol=1e-6)
    (sentence_folder / "modules.json").unlink()
    np.testing.assert_allclose(model.embed(LINES[:5]), plain, atol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "modules", "message"),
    [
        ({"pooling_mode_lasttoken": True}, (), r"config\.json: .*lasttoken"),
        ({"pooling_mode": ["mean", "lasttoken"]}, (), "mean and lasttoken"),
        ({"pooling_mode": "mean"}, ("Dense", "Normalize"), r"modules\.json: .*Dense"),
        ({}, ("Normalize",), None),
    ],
)
def test_pooling_that_is_not_offered(
    sentence_folder: Path, pooling: dict[str, object], modules: tuple[str, ...], message: str | None
) -> None:
    model = unmask.load(sentence_folder)
    plain = model.embed(LINES[:3])
    ask_for(sentence_folder, pooling, *modules)
    if message is None:
        assert model.embed_settings() == EmbedSettings("mean", True)
    else:
        with pytest.raises(ModelError, match=message):
            model.embed(LINES[:3])
    assert np.array_equal(model.embed(LINES[:3], pooling="mean", normalize=False), plain)
    assert model.embed_settings(pooling="first") == EmbedSettings("first", "Normalize" in modules)


def test_a_folder_that_folds_case_where_its_tokenizer_does_not(sentence_folder: Path) -> None:
    file, model = sentence_folder / "sentence_bert_config.json", unmask.load(sentence_folder)
    plain = model.embed(LINES[:3])
    file.write_text('{"do_lower_case": true}')
    with pytest.raises(ModelError, match=r"sentence_bert_config\.json: do_lower_case"):
        model.embed(LINES[:3])
    assert np.array_equal(model.embed(LINES[:3], pooling="mean"), plain)
    model.tokenizer.backend.normalizer = normalizers.Lowercase()
    assert model.embed(LINES[:3]).shape == plain.shape


def test_what_is_no_number_is_no_vector(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    model = make_model()
    with torch.no_grad():
        next(model.encoder.parameters()).fill_(torch.nan)
    with pytest.raises(ModelError, match="text 0"):
        embed_texts(model, tokenizer, TEXTS, EmbedSettings())
    with pytest.raises(ModelError, match="text 0"):
        sparse_texts(model, tokenizer, TEXTS, "split")


def test_bf16_is_close_and_not_the_same(run: unmask.Run) -> None:
    exact = run.model.embed(TEXTS, normalize=True)
    rough = unmask.load(run.folder, precision="bf16").embed(TEXTS, normalize=True)
    cosine = (exact * rough).sum(1) / np.linalg.norm(rough, axis=1)
    assert 0.99 < cosine.min() < 1.0
    assert np.abs(exact - rough).max() > 1e-6


def test_no_text_depends_on_the_others(run: unmask.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few are tokenized at once, and fewer if they are long."""
    whole = run.model.embed(TEXTS)
    np.testing.assert_allclose(run.model.embed(TEXTS[::-1])[::-1], whole, atol=1e-5)
    parts, encode_prompts = list[list[str]](), run.model.tokenizer.encode_prompts

    def watched(texts: list[str]) -> list[np.ndarray]:
        parts.append(list(texts))
        return encode_prompts(texts)

    monkeypatch.setattr(run.model.tokenizer, "encode_prompts", watched)
    monkeypatch.setattr(embed_module, "PART_TEXTS", 4)
    monkeypatch.setattr(embed_module, "PART_CHARS", 99)
    np.testing.assert_allclose(run.model.embed(TEXTS), whole, atol=1e-5)
    assert list(chain.from_iterable(parts)) == TEXTS
    assert all(len(part) <= 4 and len("".join(part[:-1])) < 99 for part in parts)
    assert run.model.embed([]).shape == (0, 64)


def test_long_texts_are_an_error_or_split_or_cut_off(make_model: MakeModel, tokenizer: Tokenizer) -> None:
    model = make_model(max_position_embeddings=16)
    long = " ".join(
        ["the king sees the queen at sea and the dog loves the cat in the garden at sea", *["the ship"] * 6]
    )
    ids = tokenizer.encode_prompt(long)
    assert 30 < len(ids) < 44, "three windows"
    texts = ["the king", long]
    with pytest.raises(SettingsError, match=rf"line 7 has {len(ids)} tokens"):
        embed_texts(model, tokenizer, texts, EmbedSettings(long_texts="error"), names=["line 6", "line 7"])

    def hidden(part: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model.encoder(torch.tensor([[2, *part, 3]]))[0]

    inner = ids[1:-1].tolist()
    bounds = [len(inner) * n // 3 for n in range(4)]
    windows = [hidden(inner[begin:end]) for begin, end in pairwise(bounds)]
    beginning = hidden(inner[:14])
    cases = {
        ("mean", "split"): torch.cat(windows).mean(0),
        ("first", "split"): sum(window[0] * len(window) for window in windows) / sum(map(len, windows)),
        ("max", "truncate"): beginning.amax(0),
        ("mean", "truncate"): beginning.mean(0),
        ("first", "truncate"): beginning[0],
    }
    for (pooling, long_texts), expected in cases.items():
        done = embed_texts(model, tokenizer, texts, EmbedSettings(pooling, False, long_texts))  # type: ignore[arg-type]
        np.testing.assert_allclose(done.vectors[1], expected.numpy(), atol=1e-5)
        kept = len(inner) if long_texts == "split" else 14
        assert (done.num_long, done.num_tokens) == (1, kept + len(tokenizer.encode_prompt("the king")) - 2)


def test_texts_are_taken_as_they_come(run: unmask.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From tables, columns, datasets and files, with the same vectors; long texts are split, with a note."""
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    texts = ["the king", "the dog sees the ship " * 99, "queen"]
    expected = run.model.embed(texts)
    assert "1 of 3 texts are longer" in caplog.text
    np.testing.assert_array_equal(run.model.embed(texts, long_texts="split"), expected)
    table = pandas.DataFrame({"number": [5, 7, 9], "body": texts})
    (tmp_path / "t.txt").write_text("\n".join(texts))
    rows = datasets.Dataset.from_pandas(table)
    column = table["body"][table["number"] > 0]
    for form in (table, column, rows, rows["body"], rows.to_list(), (*rows,), iter(texts), tmp_path / "t.txt"):
        np.testing.assert_array_equal(run.model.embed(form), expected)
    gaps = ["a king", None, float("nan"), "", "a dog"]
    expected = run.model.embed(["a king", "", "", "", "a dog"])
    frame = pandas.DataFrame({"body": gaps})
    (tmp_path / "gaps.txt").write_text("a king\n\n\n\na dog\n")
    for form in (gaps, frame["body"], pandas.Series(gaps, dtype="string"), frame, tmp_path / "gaps.txt"):
        caplog.clear()
        np.testing.assert_array_equal(run.model.embed(form), expected)
        assert "3 of 5 texts are empty" in caplog.text
    with pytest.raises(CorpusError, match="dict"):
        run.model.embed({"body": texts})
    with pytest.raises(SettingsError, match="text 1"):
        run.model.embed(["the king", "the king \udcff"])
    out = tmp_path / "v.parquet"
    for form, ids in ((texts, [0, 1, 2]), (table.rename(columns={"number": "id"}), [5, 7, 9])):
        unmask.embed(run.folder, form, out=out, overwrite=True)
        assert pq.read_table(out).column("id").to_pylist() == ids
    with pytest.raises(CorpusError, match=r"t\.txt"):
        unmask.embed(run.folder, [str(tmp_path / "t.txt")], out=out, overwrite=True)
