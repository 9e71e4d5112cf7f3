"""What is written opens elsewhere and says the same there: transformers, sentence-transformers, ONNX."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import transformers

import unmask
from tests.contract.conftest import SMALL

TEXT = "Anna Lee sees the [MASK] near York ."
TEXTS = ["Anna Lee sees the ship near York .", "Clara follows the winter .", "the old lighthouse in Lima"]
LAYOUTS = {
    "modernbert": "ModernBertForMaskedLM",
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "roberta-prelayernorm": "RobertaPreLayerNormForMaskedLM",
}
TASKS = {
    "classify": ("classify.jsonl", transformers.AutoModelForSequenceClassification),
    "regress": ("regress.jsonl", transformers.AutoModelForSequenceClassification),
    "pairs": ("pairs.jsonl", transformers.AutoModelForSequenceClassification),
    "tag": ("tag.conll", transformers.AutoModelForTokenClassification),
    "answer": ("answer.json", transformers.AutoModelForQuestionAnswering),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(layout: str, run: unmask.Run, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a layout that has learned a little."""
    if layout == "modernbert":
        return run.folder / "model"
    out = tmp_path_factory.mktemp(layout) / "run"
    unmask.pretrain(data, out=out, steps=10, settings=[*SMALL, f"model.layout={layout}"])
    return out / "model"


def probabilities(folder: Path) -> np.ndarray:
    """Of every entry, where the text has its mask, as `fill` says them."""
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    (mask,) = unmask.load(folder).fill(TEXT, top_k=size).masks
    found = np.zeros(size)
    found[[candidate.token_id for candidate in mask]] = [candidate.probability for candidate in mask]
    return found


def in_transformers(folder: Path) -> np.ndarray:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    inputs = tokenizer(TEXT, return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    with torch.no_grad():
        return model(**inputs).logits[0, place].softmax(-1).double().numpy()


def test_a_layout_predicts_in_transformers_what_it_predicts_here(layout: str, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [LAYOUTS[layout]]
    assert "auto_map" not in config, "no remote code"
    here, there = probabilities(folder), in_transformers(folder)
    assert here.sum() == pytest.approx(1.0)
    assert np.abs(np.log(here) - np.log(there)).max() < 1e-4


def test_a_layout_embeds_as_transformers_does(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = transformers.AutoModelForMaskedLM.from_pretrained(folder).base_model.eval()
    for text, vector in zip(TEXTS, unmask.load(folder).embed(TEXTS), strict=True):
        with torch.no_grad():
            hidden = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert np.allclose(hidden.mean(0).numpy(), vector, atol=1e-4)


def test_a_layout_is_verified(folder: Path) -> None:
    verified = unmask.verify(folder).to_dict()
    assert verified["passed"]
    assert {"packed_equals_alone", "padded_equals_unpadded", "transformers_equals_ours"} <= verified["checks"].keys()


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_model_of_transformers_predicts_here_what_it_predicts_there(
    kind: str, run: unmask.Run, tmp_path: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=64, initializer_range=0.2, **ids,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    here, there = probabilities(tmp_path / "model"), in_transformers(tmp_path / "model")
    assert np.abs(np.log(here) - np.log(there)).max() < 1e-4


def test_a_pipeline_fills_what_fill_fills(run: unmask.Run) -> None:
    pipeline = transformers.pipeline("fill-mask", str(run.folder / "model"))
    there = pipeline(TEXT, top_k=3)
    (mask,) = unmask.load(run.folder / "model").fill(TEXT, top_k=3).masks
    assert [candidate.token_id for candidate in mask] == [one["token"] for one in there]
    assert [candidate.probability for candidate in mask] == pytest.approx([one["score"] for one in there], rel=1e-4)


def test_a_model_is_a_sentence_transformer(run: unmask.Run) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    there = sentence_transformers.SentenceTransformer(str(run.folder / "model"), device="cpu").encode(TEXTS)
    assert np.allclose(unmask.load(run.folder / "model").embed(TEXTS), there, atol=1e-4)


def test_an_embedder_is_a_sentence_transformer(run: unmask.Run, samples: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    made = unmask.embedder(
        run.folder / "model", [samples / "corpus.txt"], out=tmp_path / "made", steps=2,
        settings=["embedder.batch_size=16"],
    )  # fmt: skip
    folder = made.to_dict()["model"]
    there = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    here = unmask.load(folder).embed(TEXTS)
    assert np.allclose(here, there, atol=1e-4)
    assert np.allclose(np.linalg.norm(here, axis=1), np.linalg.norm(there, axis=1), atol=1e-4)


def test_a_sparse_embedder_is_a_sparse_encoder(run: unmask.Run, samples: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    made = unmask.embedder(
        run.folder / "model", [samples / "corpus.txt"], out=tmp_path / "made", steps=2, sparse=True,
        settings=["embedder.batch_size=16"],
    )  # fmt: skip
    folder = made.to_dict()["model"]
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    unmask.embed(folder, tmp_path / "texts.txt", out=tmp_path / "vectors.parquet")
    encoder = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    there = encoder.encode(TEXTS, convert_to_tensor=True).to_dense().numpy()
    for row, vector in zip(pq.read_table(tmp_path / "vectors.parquet").to_pylist(), there, strict=True):
        here = np.zeros_like(vector)
        here[row["indices"]] = row["values"]
        assert np.allclose(here, vector, atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_a_fine_tuned_model_opens_in_the_class_of_its_task(
    task: str, run: unmask.Run, samples: Path, tmp_path: Path
) -> None:
    name, kind = TASKS[task]
    tuned = unmask.finetune(
        run.folder / "model", task=task, train=samples / name, validation=samples / name, out=tmp_path / "tuned",
        settings=["finetune.epochs=1", "finetune.batch_size=16"],
    )  # fmt: skip
    assert tuned.metrics
    model, loaded = kind.from_pretrained(tuned.to_dict()["model"], output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]
    if task != "answer":
        assert [model.config.id2label[number] for number in range(model.config.num_labels)] == tuned.to_dict()["labels"]
    assert unmask.verify(tuned.to_dict()["model"]).to_dict()["passed"]


def test_a_classifier_classifies_in_a_pipeline_as_here(tuned: Path) -> None:
    pipeline = transformers.pipeline("text-classification", str(tuned / "model"), top_k=None)
    for text, here in zip(TEXTS, unmask.load(tuned).predict(TEXTS), strict=True):
        there = {one["label"]: one["score"] for one in pipeline(text)[0]}
        assert here.probabilities == pytest.approx(there, abs=1e-5)


@pytest.mark.slow
def test_graphs_say_what_the_model_says(run: unmask.Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = run.folder / "model"
    exported = unmask.export(folder, tmp_path / "onnx")
    assert all(graph["largest_difference"] < 1e-4 for graph in exported.to_dict()["graphs"].values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, return_tensors="np", padding=True)
    fed = {name: inputs[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "feature-extraction" / "onnx" / "model.onnx")
    (vectors,) = session.run(["sentence_embedding"], fed)
    assert np.allclose(unmask.load(folder).embed(TEXTS), vectors, atol=1e-4)
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "fill-mask" / "onnx" / "model.onnx")
    (logits,) = session.run(["logits"], fed)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        there = model(**tokenizer(TEXTS, return_tensors="pt", padding=True)).logits.numpy()
    seen = fed["attention_mask"].astype(bool)
    assert np.allclose(logits[seen], there[seen], atol=1e-4)
    assert unmask.verify(folder, onnx=tmp_path / "onnx").to_dict()["passed"]


def test_a_collator_trains_in_the_trainer_of_transformers(run: unmask.Run, samples: Path, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    lines = (samples / "lines.txt").read_text(encoding="utf-8").splitlines()
    rows = [tokenizer(line, truncation=True, max_length=64) for line in lines]
    collator = unmask.MaskingCollator(tokenizer, strategy="span", rate=0.15, seed=0)
    trainer = transformers.Trainer(
        transformers.AutoModelForMaskedLM.from_pretrained(run.folder / "model"),
        transformers.TrainingArguments(
            str(tmp_path), max_steps=2, per_device_train_batch_size=8, report_to=[], use_cpu=True
        ),
        train_dataset=rows[8:],
        eval_dataset=collator.fixed(rows[:8]),
        data_collator=collator,
        callbacks=[collator.callback],
        compute_metrics=unmask.evaluation_loss,
        preprocess_logits_for_metrics=unmask.token_losses,
    )
    trainer.train()
    assert 1.0 < trainer.evaluate()["eval_loss"] < 6.0
