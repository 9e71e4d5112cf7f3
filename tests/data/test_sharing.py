"""A corpus prepared by one process, by several, by parts on any machine or by a cluster: the files are the same."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.data.corpora import SMALL, changed, contents, jaccard, prepare, random_text, words_of, write_jsonl
from unmask.commands.prepare import prepare as prepare_verb
from unmask.core.errors import CorpusError, DataError, SettingsError
from unmask.core.results import Progress
from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.prepare import Unfinished
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore
from unmask.data.work import Sample
from unmask.tokenizer.trainers import TokenizerSettings

EVERYTHING = CorpusSettings.model_validate(
    {"label": "mood", "leaks": "drop", "holdout": 0.1, "cleaning": {"duplicates": "drop_near"}}
)
SIZES = {"task_bytes": 4000, "size_bytes": 1700}
in_one = partial(prepare, tokenizer=SMALL, workers=1, task_bytes=9000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with classes in two large files and one that cannot be divided, with duplicates and near-duplicates."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(5)
    texts = [random_text(rng, rng.choice([2, 30, 60])) for _ in range(200)]
    texts += [text if n % 2 else changed(rng, text) for n, text in enumerate(rng.sample(texts[:100], 30))]
    rng.shuffle(texts)
    rows = [{"text": text, "mood": ["glad", "sad"][n % 2]} for n, text in enumerate(texts)]
    write_jsonl(folder / "a.jsonl", rows[:90])
    write_jsonl(folder / "b.jsonl", rows[90:160])
    packed = write_jsonl(folder / "c.jsonl", rows[160:])
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return folder


def in_parts(make: Callable[..., Manifest], number: int) -> tuple[Manifest, int]:
    """Runs the parts and the join in turn until the data is complete; returns the number of rounds."""
    for rounds in range(1, 5):
        for part in range(number, 0, -1):
            with pytest.raises(Unfinished, match="--join"):
                make(part=(part, number))
        with suppress(Unfinished):
            return make(join=True), rounds
    raise AssertionError("it does not end")


def test_the_files_are_the_same_whoever_makes_them(corpus: Path, tmp_path: Path) -> None:
    make = partial(prepare, [corpus], corpus=EVERYTHING, tokenizer=SMALL, **SIZES)
    manifest, *_ = [make(tmp_path / str(n), workers=n) for n in (1, 2)]
    assert sum(file.name.startswith("train/00003-") for file in manifest.train.files) > 1
    make_part = partial(make, tmp_path / "parts", workers=1)
    assert in_parts(make_part, 2) == (manifest, 3)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "parts")
    assert make_part(part=(1, 2)) == make_part(join=True) == manifest
    plain = prepare([corpus], tmp_path / "whole", corpus=EVERYTHING, tokenizer=SMALL)
    for name in ("documents", "tokens", "skipped", "labels", "token_frequencies"):
        assert getattr(plain, name) == getattr(manifest, name), name


def test_a_damaged_sample_of_text_is_made_again(corpus: Path, tmp_path: Path) -> None:
    """It would give another tokenizer."""
    make = partial(prepare, [corpus], corpus=CorpusSettings(), tokenizer=SMALL, workers=1, **SIZES)
    make(tmp_path / "whole")
    make_part = partial(make, tmp_path / "parts")
    with suppress(Unfinished):
        make_part(part=(1, 1))
    sample = tmp_path / "parts" / "parts" / "sample-00000.arrow"
    content = sample.read_bytes()
    sample.write_bytes(content[:-100] + b"?" + content[-99:])
    with pytest.raises(DataError, match="1 of .* tasks are not done"):
        make_part(join=True)
    in_parts(make_part, 1)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_makes_the_same(
    corpus: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster()
    make = partial(prepare, [corpus], corpus=EVERYTHING, tokenizer=SMALL, **SIZES)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20)
        with pytest.raises(SettingsError, match="ray"):
            make(tmp_path / "no", workers=2, ray=cluster.address)
        assert make(tmp_path / "ray", ray=cluster.address) == make(tmp_path / "one", workers=1)
        assert contents(tmp_path / "ray") == contents(tmp_path / "one")
        broken = tmp_path / "broken.txt"
        broken.write_bytes(b"one line\n" * 3000 + b"\xff")
        with pytest.raises(CorpusError, match=r"broken\.txt"):
            prepare([broken], tmp_path / "no", corpus=CorpusSettings(), tokenizer=SMALL, ray="auto", task_bytes=9000)
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_duplicates_are_found_over_all_tasks(tmp_path: Path) -> None:
    """By brute force: a text stays if no equal one and no near-duplicate comes before it."""
    rng = random.Random(7)
    texts = [random_text(rng, rng.choice([6, 40, 90])) for _ in range(150)]
    texts += rng.sample(texts, 25)
    texts += [changed(rng, text) for text in rng.sample([text for text in texts if len(text.split()) == 90], 25)]
    rng.shuffle(texts)
    (tmp_path / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    equal = {number for number, text in enumerate(texts) if text in texts[:number]}
    near = {
        number
        for number, text in enumerate(texts)
        if number not in equal
        and any(words_of(text) == words_of(other) or jaccard(text, other) > 0.85 for other in texts[:number])
    }
    assert len(near) > 15
    settings = CorpusSettings.model_validate({"documents": "line", "cleaning": {"duplicates": "drop_near"}})
    manifest = in_one([tmp_path / "a.txt"], tmp_path / "out", corpus=settings)
    assert manifest.documents == len(texts) - len(equal) - len(near)
    assert manifest.skipped == {"duplicates": len(equal), "near-duplicates": len(near)}
    left = sum(len(text.encode()) for number, text in enumerate(texts) if number not in equal | near)
    files = [tmp_path / "out" / file.name for file in (*manifest.train.files, *manifest.validation.files)]
    assert sum(int(TokenStore([file]).column("num_bytes").sum()) for file in files) == left
    assert load_manifest(tmp_path / "out") == manifest


@pytest.mark.parametrize(("kind", "skipped"), [("drop", 1), ("drop_near", 2)])
def test_held_out_files_stay_whole_and_their_copies_leave_the_training_text(
    tmp_path: Path, kind: str, skipped: int
) -> None:
    rng = random.Random(10)
    held = [random_text(rng, 30) for _ in range(20)]
    training = [random_text(rng, 30) for _ in range(200)]
    (tmp_path / "held.txt").write_text("\n".join(held))
    (tmp_path / "train.txt").write_text("\n".join([held[0], *training, held[1].upper() + "!"]))
    settings = {"documents": "line", "validation": [str(tmp_path / "held.txt")], "cleaning": {"duplicates": kind}}
    manifest = in_one([tmp_path / "train.txt"], tmp_path / "out", corpus=CorpusSettings.model_validate(settings))
    assert (manifest.train.documents, manifest.validation.documents) == (202 - skipped, 20)
    assert sum(manifest.skipped.values()) == skipped


def test_training_text_that_stands_in_the_held_out_text_is_left_out(tmp_path: Path) -> None:
    """Also the later pieces of a long document."""
    rng = random.Random(8)
    long = random_text(rng, 60_000)
    assert len(long) > 1 << 18
    held = [random_text(rng, 30) for _ in range(20)] + [long]
    training = [random_text(rng, 30) for _ in range(200)] + [held[0], held[1].upper() + "!", long]
    rng.shuffle(training)
    (tmp_path / "held.txt").write_text("\n".join(held))
    (tmp_path / "train.txt").write_text("\n".join(training))
    settings = {"documents": "line", "validation": (str(tmp_path / "held.txt"),)}
    manifests = {}
    for leaks, left_out in (("keep", 0), ("drop", 3)):
        corpus = CorpusSettings.model_validate({**settings, "leaks": leaks})
        manifest = in_one([tmp_path / "train.txt"], tmp_path / leaks, corpus=corpus, size_bytes=3000)
        near = manifest.near_duplicates
        assert (near.equal, near.normalised, near.similar, near.left_out) == (2, 1, 0, left_out)
        assert load_manifest(tmp_path / leaks) == manifest
        manifests[leaks] = manifest
    gone = len(held[0]) + len(held[1]) + 1 + len(long)
    assert manifests["drop"].documents == manifests["keep"].documents - 3
    assert manifests["keep"].train.bytes - manifests["drop"].train.bytes == gone
    assert manifests["drop"].skipped == {"training texts that nearly repeat held-out text": 3}
    assert manifests["drop"].validation.bytes == manifests["keep"].validation.bytes


def test_the_tokenizer_is_trained_on_a_sample_chosen_by_hash(tmp_path: Path) -> None:
    rng = random.Random(9)
    texts = [random_text(rng, 20) for _ in range(1500)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    (tmp_path / "b.txt").write_text(" ".join(texts))  # one document, of which pieces are chosen
    share = 0.3
    chosen = [Sample(share, False).takes(text) for text in texts]
    assert abs(sum(chosen) - share * len(texts)) < 4 * (share * (1 - share) * len(texts)) ** 0.5
    assert [Sample(share, False).takes(text) for text in reversed(texts)] == chosen[::-1]
    vocabularies = []
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    for file, sample_bytes, task_bytes in (
        (a, 1 << 16, None), (a, 1 << 16, 30_000), (a, 1 << 30, None), (b, 1 << 16, None), (b, 1 << 30, None)
    ):  # fmt: skip
        out = tmp_path / str(len(vocabularies))
        tokenizer = TokenizerSettings(vocab_size=200, sample_bytes=sample_bytes)
        in_one([file], out, corpus=CorpusSettings(), tokenizer=tokenizer, task_bytes=task_bytes)
        vocabularies.append((out / "tokenizer" / "tokenizer.json").read_bytes())
    assert vocabularies[0] == vocabularies[1] != vocabularies[2]
    assert vocabularies[3] != vocabularies[4]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"part": "1/2", "join": True}, "join"),
        ({"part": "1/2", "resume": True}, "resume"),
        ({"join": True, "ray": "auto"}, "ray"),
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

    with pytest.raises(CorpusError, match=r"a\.txt: "):
        in_one([text], tmp_path / "out", corpus=CorpusSettings(), notify=change)
