"""A corpus prepared by one process, by several, by parts on any machine or by a cluster: the files are the same."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from tests.data.test_shards import SMALL, contents
from tests.data.test_split_check import changed, jaccard, random_text, words_of
from unmask.commands.prepare import prepare as prepare_verb
from unmask.core.errors import CorpusError, SettingsError
from unmask.core.results import Progress
from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.prepare import PreparationInput, prepare, prepare_part
from unmask.data.settings import AnnotationSettings, CorpusSettings
from unmask.data.store import TokenStore
from unmask.data.work import Sample
from unmask.tokenizer.settings import TokenizerSettings

EVERYTHING = CorpusSettings.model_validate(
    {"label": "mood", "leaks": "drop", "holdout": 0.1, "cleaning": {"duplicates": "drop_near", "min_chars": 9}}
)
SIZES = {"task_bytes": 12_000, "size_bytes": 5000}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with classes in two large files and one that cannot be cut; some stand twice, and some nearly."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(5)
    rows = [random_text(rng, rng.choice([2, 30, 60])) for _ in range(900)]
    rows += [row if n % 2 else changed(rng, row, 1) for n, row in enumerate(rng.sample(rows[:300], 80))]
    rng.shuffle(rows)
    lines = [json.dumps({"text": row, "mood": ["glad", "sad"][n % 2]}) + "\n" for n, row in enumerate(rows)]
    (folder / "a.jsonl").write_text("".join(lines[:400]))
    (folder / "b.jsonl").write_text("".join(lines[400:700]))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress("".join(lines[700:]).encode()))
    return folder


def given(corpus: Path) -> PreparationInput:
    return PreparationInput([corpus], EVERYTHING, SMALL, AnnotationSettings(), SIZES["size_bytes"], SIZES["task_bytes"])


def in_parts(asked: PreparationInput, out: Path, of: int) -> tuple[Manifest, int]:
    """Parts and join in turns, until the data is there; and how many rounds it took."""
    for rounds in range(1, 5):
        for number in range(of, 0, -1):
            assert "--join" in str(prepare_part(asked, out, (number, of), workers=1))
        found = prepare_part(asked, out, None)
        if isinstance(found, Manifest):
            return found, rounds
        assert "run the parts again" in found
    raise AssertionError("it does not end")


def alone(asked: PreparationInput, out: Path, workers: int = 1, **options: object) -> Manifest:
    return prepare(
        asked.paths, out, corpus=asked.corpus, tokenizer=asked.tokenizer, workers=workers, **SIZES, **options
    )  # type: ignore[arg-type]


def test_the_files_are_the_same_whoever_makes_them(corpus: Path, tmp_path: Path) -> None:
    asked = given(corpus)
    manifest = alone(asked, tmp_path / "one")
    assert sum(file.name.startswith("train/00003-") for file in manifest.train.files) > 1
    alone(asked, tmp_path / "two", 2)
    found, rounds = in_parts(asked, tmp_path / "parts", 3)
    assert found == manifest
    assert rounds == 3
    whole = contents(tmp_path / "one")
    assert contents(tmp_path / "two") == whole
    assert contents(tmp_path / "parts") == whole
    assert prepare_part(asked, tmp_path / "parts", (1, 3)) == f"{tmp_path / 'parts'} is complete already"
    assert prepare_part(asked, tmp_path / "parts", None) == manifest
    plain = prepare([corpus], tmp_path / "whole", corpus=EVERYTHING, tokenizer=SMALL)
    assert [plain.documents, plain.tokens, plain.skipped, plain.labels, plain.token_frequencies] == [
        manifest.documents, manifest.tokens, manifest.skipped, manifest.labels, manifest.token_frequencies,
    ]  # fmt: skip


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_makes_the_same(
    corpus: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster()
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20)
        asked = given(corpus)
        with pytest.raises(SettingsError, match="ray"):
            alone(asked, tmp_path / "no", 2, ray=cluster.address)
        made = prepare([corpus], tmp_path / "ray", corpus=EVERYTHING, tokenizer=SMALL, ray=cluster.address, **SIZES)
        assert made == alone(asked, tmp_path / "one")
        assert contents(tmp_path / "ray") == contents(tmp_path / "one")
        broken = tmp_path / "broken.txt"
        broken.write_bytes(b"one line\n" * 3000 + b"\xff")
        with pytest.raises(CorpusError, match=r"broken\.txt"):
            prepare([broken], tmp_path / "no", corpus=CorpusSettings(), tokenizer=SMALL, ray="auto", task_bytes=9000)
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_duplicates_are_found_over_all_tasks(tmp_path: Path) -> None:
    """By a brute force: a text stays if no equal one, or none that is nearly equal, stands before it."""
    rng = random.Random(7)
    rows = [random_text(rng, rng.choice([6, 40, 90])) for _ in range(250)]
    rows += rng.sample(rows, 40)
    rows += [changed(rng, row, 1) for row in rng.sample([row for row in rows if len(row.split()) == 90], 30)]
    rng.shuffle(rows)
    (tmp_path / "a.txt").write_text("\n".join(rows), encoding="utf-8")
    equal = [number for number, row in enumerate(rows) if row in rows[:number]]
    near = [
        number
        for number, row in enumerate(rows)
        if number not in equal
        and any(words_of(row) == words_of(other) or jaccard(row, other) > 0.85 for other in rows[:number])
    ]
    assert len(near) > 25
    for kind, left_out in (("drop", equal), ("drop_near", [*equal, *near])):
        settings = CorpusSettings.model_validate({"documents": "line", "cleaning": {"duplicates": kind}})
        manifest = prepare(
            [tmp_path / "a.txt"], tmp_path / kind, corpus=settings, tokenizer=SMALL, workers=1, task_bytes=9000
        )
        assert manifest.documents == len(rows) - len(left_out)
        assert manifest.skipped["duplicates"] == len(equal)
        assert manifest.skipped.get("near-duplicates", 0) == len(left_out) - len(equal)
        kept = [len(row.encode()) for number, row in enumerate(rows) if number not in left_out]
        stores = [
            TokenStore([tmp_path / kind / file.name for file in split.files])
            for split in (manifest.train, manifest.validation)
        ]
        assert sum(int(store.column("num_bytes").sum()) for store in stores) == sum(kept)
        assert len(manifest.left_out) == (5 if kind == "drop_near" else 0)
        for pair in manifest.left_out:
            begins = [next(n for n, row in enumerate(rows) if row.startswith(text)) for text in pair]
            assert begins[1] not in left_out
            assert any(row.startswith(pair.left_out) for n, row in enumerate(rows) if n in near)
        assert load_manifest(tmp_path / kind) == manifest


def test_training_text_that_stands_in_the_held_out_text_is_left_out(tmp_path: Path) -> None:
    """Also what goes on behind the first piece of a long document."""
    rng = random.Random(8)
    long = " ".join(random_text(rng, 60_000) for _ in range(1))
    assert len(long) > 1 << 18
    held = [random_text(rng, 30) for _ in range(20)] + [long]
    training = [random_text(rng, 30) for _ in range(200)] + [held[0], held[1].upper() + "!", long]
    rng.shuffle(training)
    (tmp_path / "held.txt").write_text("\n".join(held))
    (tmp_path / "train.txt").write_text("\n".join(training))
    settings = {"documents": "line", "validation": (str(tmp_path / "held.txt"),)}
    found = {}
    for leaks in ("keep", "drop"):
        asked = CorpusSettings.model_validate({**settings, "leaks": leaks})
        out = tmp_path / leaks
        found[leaks] = prepare(
            [tmp_path / "train.txt"], out, corpus=asked, tokenizer=SMALL, workers=1, task_bytes=9000, size_bytes=3000
        )
        near = found[leaks].near_duplicates
        assert near is not None
        assert (near.equal, near.normalised, near.similar, near.left_out) == (2, 1, 0, 3 if leaks == "drop" else 0)
    gone = len(held[0]) + len(held[1]) + 1 + len(long)
    assert found["keep"].train.bytes - found["drop"].train.bytes == gone
    assert found["drop"].skipped == {"training documents that nearly stand in the held-out text": 3}
    assert found["drop"].validation.bytes == found["keep"].validation.bytes


def test_the_tokenizer_is_trained_on_a_sample_chosen_by_hash(tmp_path: Path) -> None:
    rng = random.Random(9)
    rows = [random_text(rng, 20) for _ in range(3000)]
    (tmp_path / "a.txt").write_text("\n".join(rows))
    share = 0.3
    chosen = [Sample(share, False).takes(row) for row in rows]
    assert abs(sum(chosen) - share * len(rows)) < 4 * (share * (1 - share) * len(rows)) ** 0.5
    assert [Sample(share, False).takes(row) for row in reversed(rows)] == chosen[::-1]
    asked = TokenizerSettings(vocab_size=200, sample_bytes=1 << 16)
    vocabularies = []
    for size in (None, 30_000):
        out = tmp_path / str(size)
        prepare([tmp_path / "a.txt"], out, corpus=CorpusSettings(), tokenizer=asked, workers=1, task_bytes=size)
        vocabularies.append((out / "tokenizer" / "tokenizer.json").read_bytes())
    assert vocabularies[0] == vocabularies[1]
    prepare([tmp_path / "a.txt"], tmp_path / "all", corpus=CorpusSettings(), tokenizer=SMALL, workers=1)
    assert (tmp_path / "all" / "tokenizer" / "tokenizer.json").read_bytes() != vocabularies[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"part": "1/2", "join": True}, "join"),
        ({"part": "1/2", "resume": True}, "resume"),
        ({"join": True, "ray": "auto"}, "ray"),
        ({"part": "1 of 2"}, "2/8"),
        ({"ray": "127.0.0.1:1"}, "refused"),
        ({"ray": "somewhere"}, "host:port"),
    ],
)
def test_mistakes_in_sharing(corpus: Path, tmp_path: Path, options: dict[str, object], named: str) -> None:
    if "ray" in options:
        pytest.importorskip("ray")
    with pytest.raises(SettingsError, match=named):
        prepare_verb([str(corpus)], out=tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_text_that_changes_meanwhile_is_no_result(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\n".join(f"line {n} of the text" for n in range(6000)))

    def change(progress: Progress) -> None:
        if progress.what == "tokenizing":
            text.write_text("\n".join(f"line {n} of another text" for n in range(6000)))

    with pytest.raises(CorpusError, match=r"a\.txt: has changed while it was read; run the same command again"):
        prepare([text], tmp_path / "out", corpus=CorpusSettings(), tokenizer=SMALL, workers=1, notify=change)
