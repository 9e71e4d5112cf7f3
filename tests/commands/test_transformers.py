"""Fine-tuning is as good as transformers' Trainer is with the same settings, from the same folder; and encoders of
transformers are fine-tuned or, as XLM-R and CamemBERT, trained further.

Deterministic parts must be equal: the weights after an epoch. Random parts are compared over seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import SequentialSampler

import unmask
from tests.commands.checkpoints import further
from tests.commands.finetune_helpers import finetune, write_classes
from tests.commands.transformers_models import save_transformers
from tests.conftest import make_text
from tests.model.helpers import LAYOUTS, MakeModel
from tests.model.test_task_parity import auto_class
from unmask.commands.finetune_run import _ORDER, begin_training
from unmask.core.errors import ModelError
from unmask.core.hashing import permutation
from unmask.model.encoder import MaskedLM
from unmask.model.folder import LAYOUTS as FOLDER_LAYOUTS
from unmask.model.folder import load_model, save_model, save_task_model, with_task_head
from unmask.tasks.answer import AnswerTask
from unmask.tasks.classify import Classify, ClassPrediction, MultiLabel, Pairs
from unmask.tasks.inputs import Example
from unmask.tasks.tag import Tag
from unmask.tasks.task import FinetuneSettings, Task
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.train.hardware import positions_on_cpu
from unmask.train.settings import LinearDecay

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
NO_LABEL = -100
INFOS = [
    Classify(("bored", "glad", "sad")),
    MultiLabel(("bored", "glad", "sad")),
    Pairs(("yes", "no", "maybe"), paired=True),
    Tag(("B-x", "I-x", "O")),
    AnswerTask(),
]
SIZE, RATE = 8, 1e-3


def their_model(folder: Path, info: Task) -> Any:
    """Transformers' class for the task, with what it takes from the folder."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    labels: dict[str, Any] = {"num_labels": len(info.names)} if info.names else {}
    if info.problem_type is not None:
        labels["problem_type"] = info.problem_type
    return auto_class(info).from_pretrained(folder, **labels)


def features(example: Example, info: Task) -> dict[str, Any]:
    """An example in `Trainer`'s form."""
    row: dict[str, Any] = {"input_ids": example.input_ids.tolist()}
    if example.type_ids is not None:
        row["token_type_ids"] = example.type_ids.tolist()
    targets = {name: column.tolist() for name, column in example.targets.items()}
    if info.kind == "tag":
        row["labels"] = [NO_LABEL] * len(example.input_ids)
        for place, tag in zip(example.places, targets["target"], strict=True):
            row["labels"][place] = tag
    elif info.kind == "answer":
        row["start_positions"], row["end_positions"] = targets["begin"][0], targets["end"][0]
    elif info.kind == "multi_label" and targets:
        row["labels"] = [float(targets["labels0"][0] >> number & 1) for number in range(len(info.names))]
    elif targets:
        row["labels"] = targets["target"][0]
    return row


def padded(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Rows as long as the longest, as transformers' collators make them."""
    length = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": 0, "labels": NO_LABEL, "token_type_ids": 0}
    batch: dict[str, Any] = {}
    for name, first in rows[0].items():
        column = [row[name] for row in rows]
        lists = isinstance(first, list) and len(first) == len(rows[0]["input_ids"])
        batch[name] = [each + [fill[name]] * (length - len(each)) for each in column] if lists else column
    batch["attention_mask"] = [[n < len(row["input_ids"]) for n in range(length)] for row in rows]
    tensors = {name: torch.tensor(column) for name, column in batch.items()}
    return {name: tensor if tensor.is_floating_point() else tensor.long() for name, tensor in tensors.items()}


def some_examples(info: Task, number: int, layout: str) -> list[Example]:
    """Random examples; those of answers have equal lengths, since transformers lets answers begin in the padding."""
    random = np.random.default_rng(0)
    made = []
    for n in range(number):
        length = 12 if info.kind == "answer" else int(random.integers(5, 20))
        places = np.arange(1, length) if info.kind == "tag" else np.zeros(1, dtype=np.int64)
        if info.kind == "answer":
            begin, end = np.sort(random.integers(1, length, 2))
            targets = {"begin": np.array([begin]), "end": np.array([end])}
        elif info.kind == "multi_label":
            targets = {"labels0": random.integers(0, 8, 1)}
        else:
            targets = {"target": random.integers(0, 3, len(places))}
        ids = random.integers(5, 60, length)
        types = (np.arange(length) > length // 2).astype(np.int64) if info.paired and layout == "bert" else None
        made.append(Example(n, ids, types, places, places, targets))
    return made


def both(make_model: MakeModel, layout: str, info: Task, folder: Path) -> tuple[MaskedLM, Any]:
    ours = with_task_head(make_model(layout=layout), info.task_head, seed=0)
    save_task_model(ours, info.task_head, folder)
    return ours, their_model(folder, info)


def pooled(info: Task, layout: str) -> Task:
    """Pairs are classified from the mean of all tokens in layouts that pool so."""
    return replace(info, pooling="mean") if info.paired and layout == "modernbert" else info


def our_names(model: MaskedLM, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under transformers' names, without those that no output depends on, whose gradients are rounding errors:
    biases of keys, and what is added to all tokens of a text in which an answer is searched."""
    rounding = ["key.bias"]
    if hasattr(model, "answer_head"):
        rounding += ["qa_outputs.bias", "classifier.bias", f"{model.config.num_layers - 1}.output.LayerNorm.bias"]
    actual = FOLDER_LAYOUTS[model.config.layout].to_transformers(tensors)
    return {name: tensor for name, tensor in actual.items() if not name.endswith(tuple(rounding))}


# Pairs in both layouts, since only one has token types; tests/model/test_task_parity.py has all heads of all layouts.
TRAINED = [*zip(("modernbert", "bert", "bert", "modernbert", "bert"), INFOS, strict=True), ("modernbert", INFOS[2])]


@pytest.mark.parametrize(("layout", "info"), TRAINED, ids=lambda each: getattr(each, "kind", each))
def test_the_same_weights_after_an_epoch(make_model: MakeModel, tmp_path: Path, layout: str, info: Task) -> None:
    """Clipping, AdamW and which weights decay are Trainer's; it gets our order, and our rate half a step late."""
    info = pooled(info, layout)
    ours, theirs = both(make_model, layout, info, tmp_path)
    examples = some_examples(info, 4 * SIZE, layout)
    settings = FinetuneSettings(
        epochs=1, batch_size=SIZE, learning_rate=RATE, weight_decay=0.1, warmup=0.25, precision="float32"
    )
    before = {name: parameter.detach().clone() for name, parameter in ours.named_parameters()}
    trainer = begin_training(ours, info, examples, settings, seed=3)
    steps = list(trainer.steps())
    assert trainer.state.micro_tokens == positions_on_cpu(ours.config)
    assert len(steps) == 4

    class InOurOrder(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            rate = LinearDecay(kind="linear", warmup=0.25)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda step: rate.at((step + 0.5) / num_training_steps)
            )
            return self.lr_scheduler

    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        num_train_epochs=1, per_device_train_batch_size=SIZE, learning_rate=RATE, weight_decay=0.1,
    )  # fmt: skip
    order = permutation(len(examples), _ORDER, 3, 0)
    InOurOrder(
        model=theirs,
        args=arguments,
        train_dataset=[features(examples[number], info) for number in order],
        data_collator=padded,
    ).train()
    after = our_names(ours, {n: p.detach() for n, p in ours.named_parameters()})
    moved = our_names(ours, {n: (p.detach() - before[n]).abs() for n, p in ours.named_parameters()})
    by_name = dict(theirs.named_parameters())
    compared = [name for name in after if name in by_name]
    assert len(compared) > 10
    for name in compared:
        apart = (after[name] - by_name[name].detach()).abs()
        assert apart.mean() < 0.002 * RATE, name  # Adam makes whole steps of gradients that are rounding
        assert moved[name].mean() > 0.1 * RATE or "embeddings" in name, name


@pytest.mark.parametrize("info", [INFOS[0], *INFOS[3:]], ids=lambda info: info.kind)  # a head each
@pytest.mark.parametrize("layout", LAYOUTS)
def test_new_heads_are_drawn_as_transformers_draws_them(
    make_model: MakeModel, tmp_path: Path, layout: str, info: Task
) -> None:
    """New weights have the same standard deviation over 5 seeds; all other weights are the folder's in both."""
    model = make_model(layout=layout, hidden_size=128, initializer_range=0.02)
    save_model(model, tmp_path)
    actual: list[dict[str, list[torch.Tensor]]] = [{}, {}]
    for seed in range(5):
        torch.manual_seed(seed)
        theirs = dict(their_model(tmp_path, info).named_parameters())
        ours = with_task_head(model, info.task_head, seed=seed)
        drawn = our_names(ours, {n: p.detach() for n, p in ours.named_parameters() if n.endswith(("weight", "bias"))})
        for name in drawn.keys() & theirs.keys():
            if name.startswith(("classifier", "qa_outputs", "bert.pooler")):
                for remaining, weights in zip(actual, (drawn, theirs), strict=True):
                    remaining.setdefault(name, []).append(weights[name].detach().flatten())
            else:
                assert torch.equal(drawn[name], theirs[name]), name
    assert actual[0]
    for name, ours_ in actual[0].items():
        mine, other = torch.cat(ours_), torch.cat(actual[1][name])
        tolerance = 5.0 * (1.0 / mine.numel()) ** 0.5  # of two standard deviations, each with an error of 1 / sqrt(2 n)
        assert mine.std().item() == pytest.approx(other.std().item(), rel=tolerance), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_dropped_before_the_classifier(make_model: MakeModel, tmp_path: Path, layout: str) -> None:
    """The rate is that of transformers' class; kept values are scaled up; without a seed nothing is dropped."""
    model = make_model(layout=layout, hidden_size=64, dropout=0.2, classifier_dropout=0.3)
    save_model(model, tmp_path)
    info = Tag(tuple(map(str, range(64))))
    for folder_rate, expected in ((0.3, 0.3), (None, 0.0 if layout == "modernbert" else 0.2)):
        if folder_rate is None:
            text = (tmp_path / "config.json").read_text()
            (tmp_path / "config.json").write_text(text.replace('"classifier_dropout": 0.3,', ""))
        theirs = their_model(tmp_path, info)
        dropouts = [each.p for name, each in theirs.named_modules() if name in ("drop", "dropout")]
        assert dropouts == [expected]
        assert load_model(tmp_path, mask_id=4).config.classifier_dropout == expected
    ours = with_task_head(model, info.task_head, seed=0)
    with torch.no_grad():
        ours.tag_head.weight.copy_(torch.eye(64))
    hidden = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    whole = ours.eval().outputs("tag_head", hidden, dropout_seed=1)
    ours.train()
    assert torch.equal(ours.outputs("tag_head", hidden), whole)
    actual = ours.outputs("tag_head", hidden, dropout_seed=1)
    remaining = actual != 0.0
    torch.testing.assert_close(actual[remaining], whole[remaining] / 0.7)
    share = 1.0 - remaining.float().mean().item()
    assert share == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / actual.numel()) ** 0.5)
    assert torch.equal(actual, ours.outputs("tag_head", hidden, dropout_seed=1))
    assert not torch.equal(actual, ours.outputs("tag_head", hidden, dropout_seed=2))


# ----------------------------------------
# Encoders of transformers.

TEXTS = ["The dog loves the ship at sea.", "The king sees the ship in the garden."]


def theirs(folder: Path, auto: str) -> tuple[Any, Any]:
    """The saved folder as users of transformers load it."""
    model, found = getattr(transformers, auto).from_pretrained(folder / "model", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert model.config.architectures == [type(model).__name__]
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder / "model")


def test_a_classifier_from_an_encoder_of_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder = save_transformers("DebertaV2", tokenizer, tmp_path / "encoder")
    train, dev = write_classes(tmp_path / "train.jsonl", 96, 0), write_classes(tmp_path / "dev.jsonl", 24, 1)
    result = finetune(encoder, "classify", train, dev, tmp_path / "out", "finetune.epochs=6")
    assert result.summary["metrics"]["accuracy"] == 1.0
    found = result.model.predict(TEXTS)
    assert [each.label for each in found if isinstance(each, ClassPrediction)] == ["sea", "garden"]
    again = unmask.load(tmp_path / "out")
    assert found == again.predict(TEXTS)
    with pytest.raises(ModelError, match="classify"):
        again.fill("The [MASK].")
    with pytest.raises(ModelError, match="deberta"):
        _ = again.network

    model, words = theirs(tmp_path / "out", "AutoModelForSequenceClassification")
    assert model.config.id2label == {0: "garden", 1: "sea"}
    assert model.config.problem_type == "single_label_classification"
    assert str(tmp_path) not in (tmp_path / "out" / "model" / "config.json").read_text()
    for text, ours, vector in zip(TEXTS, found, again.embed(TEXTS), strict=True):
        inputs = words(text, return_tensors="pt")
        with torch.no_grad():
            shares = model(**inputs).logits.softmax(-1)[0].tolist()
            hidden = model.base_model(**inputs).last_hidden_state[0]
        assert vector == pytest.approx(hidden.mean(0).numpy(), abs=1e-5), "it embeds with what it has learned"
        assert isinstance(ours, ClassPrediction)
        assert list(ours.probabilities.values()) == pytest.approx(shares, abs=1e-6)
    more = finetune(tmp_path / "out" / "model", "classify", train, dev, tmp_path / "more", "finetune.epochs=1")
    assert more.summary["labels"] == result.summary["labels"]


PIECES = 150
XLM_R = ["<s>", "<pad>", "</s>", "<unk>"]
CAMEMBERT = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
# The beginning of transformers' names, the first entries, and the ids of <s> and </s>.
KINDS: dict[str, tuple[str, list[str], tuple[int, int]]] = {
    "xlm-roberta": ("XLMRoberta", XLM_R, (0, 2)),
    "camembert": ("Camembert", CAMEMBERT, (5, 6)),
}
SENTENCES = ["The cat sees the dog.", "The queen loves the king in Ångström, and no one follows her."]


def save(kind: str, folder: Path) -> Path:
    """A model with random weights, as transformers saves it."""
    name, first, (bos, eos) = KINDS[kind]
    trained = tokenizers.Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator([make_text(100)], trainers.UnigramTrainer(vocab_size=PIECES, show_progress=False))
    pieces = [(piece, float(score)) for piece, score in json.loads(trained.to_str())["model"]["vocab"]]
    vocab = [*((token, 0.0) for token in first), *pieces, ("<mask>", 0.0)]
    getattr(transformers, f"{name}Tokenizer")(vocab=vocab, model_max_length=64).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(vocab), max_position_embeddings=66, type_vocab_size=1, initializer_range=0.2,
        pad_token_id=1, bos_token_id=bos, eos_token_id=eos, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    getattr(transformers, f"{name}ForMaskedLM")(config).save_pretrained(folder)
    return folder


@torch.no_grad()
def check_equal(folder: Path) -> None:
    """Ids, and the hidden states and logits at every token."""
    loaded = unmask.load(folder)
    assert isinstance(loaded.network, MaskedLM), "our encoder runs it"
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    for text in SENTENCES:
        ids = loaded.tokenizer.encode_prompt(text)
        assert ids.tolist() == words(text)["input_ids"]
        rows = torch.from_numpy(ids).long()[None]
        logits = loaded.network(rows, positions_N=torch.arange(len(ids)))
        assert logits.std() > 0.1
        assert (logits - model(input_ids=rows).logits[0]).abs().max() < 1e-4
        mean = model.base_model(input_ids=rows).last_hidden_state[0].mean(0).numpy()
        assert loaded.embed([text])[0] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_trained_on_and_written_as_what_it_was(kind: str, corpus_file: Path, tmp_path: Path) -> None:
    folder = save(kind, tmp_path / "released")
    check_equal(folder)
    expected = transformers.pipeline("fill-mask", model=str(folder), top_k=4)("The <mask> sees the dog.")
    (candidates,) = unmask.fill(folder, "The <mask> sees the dog.", top_k=4).masks
    assert [each.token_id for each in candidates] == [each["token"] for each in expected]
    assert unmask.evaluate(folder, corpus_file, pseudo_tokens=0).bits_per_byte > 0.0

    run = further(corpus_file, tmp_path / "run", folder, steps=3, extend_vocab=2 if kind == "xlm-roberta" else None)
    again = run.folder / "model"
    check_equal(again)
    for file, key in (
        ("config.json", "architectures"), ("config.json", "model_type"), ("tokenizer_config.json", "tokenizer_class"),
    ):  # fmt: skip
        old, new = (json.loads((place / file).read_text())[key] for place in (folder, again))
        assert new == old
    name = "roberta.embeddings.position_embeddings.weight"
    before, after = (load_file(place / "model.safetensors")[name] for place in (folder, again))
    assert not torch.equal(before, after), "it was trained"
    assert unmask.verify(again).passed
