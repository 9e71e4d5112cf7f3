from __future__ import annotations

import gzip
import io
import json
import math
import statistics
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unmask
from tests.model.helpers import MakeModel
from unmask.commands.evaluate import score
from unmask.core.errors import CorpusError, SettingsError
from unmask.measure.questions import Pair, pseudo_log_likelihoods, read_pairs, tally
from unmask.measure.uncertainty import mean_interval, ratio_over_draws, wilson
from unmask.model.encoder import MaskedLM
from unmask.tokenizer.tokenizer import Tokenizer


def line(good: str, bad: str, **more: str) -> str:
    return json.dumps({"sentence_good": good, "sentence_bad": bad, **more}) + "\n"


AGREEMENT = line("The cat sees.", "The cat see.", UID="agreement_1", linguistics_term="agreement")


def test_files_folders_and_archives_hold_the_same_pairs(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "b.jsonl").write_text(AGREEMENT + "\n" + line("The dog.", "Dog the."))
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(line("A ship.", "Ship a.").encode()))
    (folder / "readme.md").write_text("not pairs")
    (folder / "notes.csv").write_text("no,pairs")
    (folder / ".ipynb_checkpoints").mkdir()
    for hidden in ("._b.jsonl", ".ipynb_checkpoints/b-checkpoint.jsonl"):
        (folder / hidden).write_text(AGREEMENT)
    from_folder = read_pairs(folder)
    assert [(p.good, p.paradigm, p.phenomenon) for p in from_folder] == [
        ("A ship.", "a", "a"),
        ("The cat sees.", "agreement_1", "agreement"),
        ("The dog.", "b", "b"),
    ]
    assert from_folder[2].where == f"{folder / 'b.jsonl'}: line 3"
    assert read_pairs(folder / "b.jsonl") == from_folder[1:]
    (tmp_path / "b.json").write_text(json.dumps([json.loads(each) for each in AGREEMENT.splitlines()] * 2, indent=1))
    assert [pair.where[-8:] for pair in read_pairs(tmp_path / "b.json")] == ["n: row 1", "n: row 2"]
    assert [pair.good for pair in read_pairs(tmp_path / "b.json")] == ["The cat sees."] * 2
    for kind in ("gz", "xz"):
        archive = tmp_path / f"pairs.tar.{kind}"
        with tarfile.open(archive, f"w:{kind}") as tar:
            for name in ("b.jsonl", "readme.md"):
                tar.add(folder / name, arcname=f"data/{name}")
            tar.addfile(tarfile.TarInfo("data/._b.jsonl"), io.BytesIO())
        members = read_pairs(archive)
        assert [(p.good, p.bad, p.paradigm) for p in members] == [(p.good, p.bad, p.paradigm) for p in from_folder[1:]]
        assert members[0].where == f"{archive}:data/b.jsonl: line 1"


HELPS = {"Context1": "It rains.", "Target1": "It is wet.", "Context2": "It shines.", "Target2": "It is dry."}
SWAPPED = {"Context1": "It shines.", "Target1": "It is dry.", "Context2": "It rains.", "Target2": "It is wet."}


def test_world_knowledge_is_two_pairs_each_in_its_context(tmp_path: Path) -> None:
    path = tmp_path / "weather.jsonl"
    path.write_text(json.dumps({**HELPS, "Domain": "material"}) + "\n" + json.dumps(HELPS) + "\n" + json.dumps(SWAPPED))
    wet, dry = ("It is wet.", "It is dry."), ("It is dry.", "It is wet.")
    assert [(pair.good, pair.bad, pair.paradigm, pair.context) for pair in read_pairs(path)] == [
        (*wet, "material", "It rains."),
        (*dry, "material", "It shines."),
        (*wet, "weather", "It rains."),  # and the last line is not counted again
        (*dry, "weather", "It shines."),
    ]
    assert [pair.where[-6:] for pair in read_pairs(path)] == ["line 1", "line 1", "line 2", "line 2"]
    assert read_pairs(path)[1].texts == ("It shines. It is dry.", "It shines. It is wet.")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (AGREEMENT + "{oops\n", "line 2"),
        (AGREEMENT + '{"good": "a", "bad": "b"}\n', "line 2"),
        ("[" + AGREEMENT + ", {}]", "row 2"),
        ("[" * 5000, "line 1 .* too deep"),
        (line("a", " "), "line 1"),
        ("\n", "no minimal pairs"),
        (json.dumps({**HELPS, "Context2": None}), "line 1"),
    ],
)
def test_files_that_are_no_pairs(tmp_path: Path, content: str, place: str) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(CorpusError, match=rf"x\.jsonl: .*{place}"):
        read_pairs(tmp_path / "x.jsonl")


def test_paths_that_are_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty", "x.tar.gz"):
        with pytest.raises(CorpusError, match=name):
            read_pairs(tmp_path / name)


def test_the_tally_by_hand() -> None:
    pairs = [Pair("", "", paradigm, phenomenon, "") for paradigm, phenomenon in (("a1", "a"), ("a2", "a"), ("b", "b"))]
    pairs.append(pairs[0])
    result = tally(pairs, np.array([2.0, -1.0, 1e-6, 0.5]))
    assert result["accuracy"] == (1 + 0 + 0.5 + 1) / 4
    assert result["ties"] == 1
    assert result["phenomena"] == {"a": 2 / 3, "b": 0.5}
    accuracies = {name: figures["accuracy"] for name, figures in result["paradigms"].items()}
    assert accuracies == {"a1": 1.0, "a2": 0.0, "b": 0.5}
    assert result["by_phenomenon"]["a"]["pairs"] == 3
    # Over three paradigms, of which a1 has two pairs: 2.5 of 4, and without one of them 0.5 of 2, 2.5 of 3, 2 of 3.
    assert result["interval_over"] == "paradigms"
    assert result["num_paradigms"] == 3
    stderr = math.sqrt((0.25 - 0.625) ** 2 + (2.5 / 3 - 0.625) ** 2 + (2 / 3 - 0.625) ** 2)
    assert ratio_over_draws([2.0, 0.0, 0.5], [2.0, 1.0, 1.0]).stderr == pytest.approx(stderr)
    low, high = result["interval"]
    assert 0.0 < low < 0.1, "of a share, of which three paradigms say little"
    assert 0.9 < high < 1.0
    assert result["by_phenomenon"]["b"]["interval"] == list(wilson(0.5, 1))
    assert result["by_phenomenon"]["b"]["interval_over"] == "pairs"
    assert {figures["interval_over"] for figures in result["paradigms"].values()} == {"pairs"}


def test_the_interval_is_over_paradigms() -> None:
    """Four paradigms of 100 pairs each, of which a share is right: the number of trials follows from their variance."""
    shares = [0.7, 0.75, 0.72, 0.8]
    pairs = [Pair("", "", str(number), "all", "") for number in range(4) for _ in range(100)]
    result = tally(pairs, np.concatenate([np.where(np.arange(100) < 100 * share, 1.0, -1.0) for share in shares]))
    trials = 0.7425 * 0.2575 / (statistics.variance(shares) / 3)  # over 4, but for 4 / 3
    assert result["interval"] == pytest.approx(wilson(0.7425 * trials, trials, degrees=3))
    assert result["by_phenomenon"]["all"].items() <= result.items()
    assert "4 paradigms" in str(result["warning"])
    solved = tally(pairs, np.ones(400))
    assert (solved["interval"], solved["interval_over"]) == (list(wilson(400, 400)), "pairs"), "no spread"
    many = tally([Pair("", "", str(n), "all", "") for n in range(20)], np.array([1.0, -1.0] * 10))
    assert many["warning"] is None


def test_a_trained_model_knows_the_order_of_words(run: unmask.Run, tmp_path: Path) -> None:
    """The corpus has one grammar; equal sentences are ties."""
    words = [(a, b) for a in ("cat", "king", "ship", "queen") for b in ("dog", "winter", "philosopher", "embroidery")]
    right = [line(f"The {a} sees the {b} at sea.", f"The {a} the {b} sees sea at.", UID="order") for a, b in words]
    same = [line("The cat.", "The cat.", UID="same")] * 3
    (tmp_path / "p.jsonl").write_text("".join(right + same))
    for form in ("plain", "word_l2r"):
        result = score(run.model, tmp_path / "p.jsonl", form=form)
        assert (result["pairs"], result["ties"], result["phenomena"]["same"]) == (19, 3, 0.5)
        assert result["phenomena"]["order"] > 0.9
        assert result["accuracy"] == pytest.approx((16 * result["phenomena"]["order"] + 1.5) / 19)
        assert result["interval"][0] < result["accuracy"] < result["interval"][1]
    (tmp_path / "w.jsonl").write_text(json.dumps({**HELPS, "Target2": HELPS["Target1"]}))
    equal = score(run.model, tmp_path / "w.jsonl")
    assert (equal["pairs"], equal["ties"], equal["accuracy"]) == (2, 2, 0.5), "equal scores of both count one half"
    few = score(run.model, tmp_path / "p.jsonl", pairs_per_paradigm=2)
    assert {name: figures["pairs"] for name, figures in few["paradigms"].items()} == {"order": 2, "same": 2}


def test_blimp_is_read_whole(shared_data: Path) -> None:
    pairs = read_pairs(shared_data / "blimp" / "blimp.tar.gz")
    assert len(pairs) == 67_000
    assert len({pair.paradigm for pair in pairs}) == 67
    assert len({pair.phenomenon for pair in pairs}) == 13, "the paper's 12; the files call s-selection one of its own"


def test_wilsons_interval() -> None:
    for count in (1, 3, 10, 400, 2000, 10_000):
        assert (wilson(0, count)[0], wilson(count, count)[1]) == (0.0, 1.0), "exactly"
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)  # Wilson's formula at 0: z^2 / (n + z^2)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_the_interval_of_a_mean() -> None:
    assert mean_interval([1.0]) is None
    assert mean_interval([0.1 + 0.2, 0.3, 0.3]) is None, "equal up to rounding"
    assert mean_interval([0.3, 0.3, 0.3 + 1e-6]) is not None
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)


SENTENCES = [
    "The mountaineer misunderstands the queen in Constantinople.",
    "The cat sees the dog.",
    "Embroidery",
    "The cat sees the dog.",
    "Balo and the philosopher photographs the embroidery under the bridge at sea.",
]


def naive_losses(model: MaskedLM, tokenizer: Tokenizer, sentence: str, *, l2r: bool = False) -> Iterator[float]:
    """The naive way, one forward pass per hidden token: nats of each token of a sentence."""
    special: Any = tokenizer.special
    [tokens] = tokenizer.encode_corpus([sentence])
    ids = [special.cls, *tokens.input_ids.tolist(), special.sep]
    starts = [True, *tokens.word_starts.tolist(), True]
    for place in range(1, len(ids) - 1):
        hidden = list(ids)
        hidden[place] = special.mask
        behind = place + 1
        while l2r and not starts[behind]:
            hidden[behind] = special.mask
            behind += 1
        with torch.no_grad():
            logits = model(torch.tensor([hidden]), positions_N=torch.tensor([place]))
        yield -float(torch.log_softmax(logits[0].float(), -1)[ids[place]])


@pytest.mark.parametrize("layout", ["modernbert", "bert"])
@pytest.mark.parametrize("form", ["plain", "word_l2r"])
def test_the_naive_loop_gives_the_same(make_model: MakeModel, tokenizer: Tokenizer, layout: str, form: str) -> None:
    model = make_model(layout=layout)
    totals = pseudo_log_likelihoods(model, tokenizer, SENTENCES, form=form)  # type: ignore[arg-type]
    for sentence, total in zip(SENTENCES, totals, strict=True):
        losses = naive_losses(model, tokenizer, sentence, l2r=form == "word_l2r")
        assert total == pytest.approx(-sum(losses), rel=1e-4)
    assert totals[1] == totals[3], "equal sentences, equal to the last bit"


@pytest.mark.parametrize("form", ["plain", "word_l2r"])
def test_a_context_is_seen_and_not_scored(make_model: MakeModel, tokenizer: Tokenizer, form: str) -> None:
    model, context, sentence = make_model(), "The philosopher sees", "the embroidery."
    texts, contexts = [sentence] * 2, ["", context]
    alone, behind = pseudo_log_likelihoods(model, tokenizer, texts, form=form, contexts=contexts)  # type: ignore[arg-type]
    losses = list(naive_losses(model, tokenizer, f"{context} {sentence}", l2r=form == "word_l2r"))
    [before, after] = tokenizer.encode_corpus([context, sentence])
    assert len(losses) == len(before.input_ids) + len(after.input_ids)
    assert behind == pytest.approx(-sum(losses[len(before.input_ids) :]), rel=1e-4)
    # In a batch of another size, products may be summed in another order.
    [by_itself] = pseudo_log_likelihoods(model, tokenizer, [sentence], form=form)  # type: ignore[arg-type]
    assert alone == pytest.approx(by_itself, rel=1e-6)
    with pytest.raises(SettingsError, match="sentence 1"):
        pseudo_log_likelihoods(model, tokenizer, [" "], contexts=[context])


def test_a_mask_in_a_sentence_is_text(run: unmask.Run) -> None:
    assert run.model.score(["[MASK]"])[0] != 0.0
    assert len(run.model.score([])) == 0


@pytest.mark.parametrize(
    ("sentences", "named"),
    [
        (["The king.", " "], "sentence 2"),
        (["The king.", "the " * 80], "sentence 2 .*80"),
        (["The king.", None], "sentence 2 .*None"),
        (["The king.", "the king \udcff"], r"sentence 2 \('the king \\udcff'\)"),
        ("The king.", "list"),
    ],
)
def test_sentences_that_cannot_be_scored(run: unmask.Run, sentences: list[Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        run.model.score(sentences)
