from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import make_text
from unmask.commands.run_data import open_prepared
from unmask.core.errors import DataError
from unmask.core.files import file_sha256
from unmask.data.corpus import Corpus
from unmask.data.data_folder import Manifest, load_manifest, open_split
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.data.store import ShardWriter, TokenBatch, TokenStore
from unmask.tokenizer.settings import TokenizerSettings


def test_the_counts_add_up(corpus_file: Path, manifest: Manifest, store: TokenStore) -> None:
    texts = [p.text for p, _ in Corpus([corpus_file], CorpusSettings()).pieces()]
    assert manifest.documents == len(texts) == manifest.train.documents + manifest.validation.documents
    assert manifest.bytes == sum(len(t.encode()) for t in texts) == manifest.train.bytes + manifest.validation.bytes
    assert manifest.tokens == manifest.train.tokens + manifest.validation.tokens
    assert manifest.train.tokens == store.num_tokens == sum(manifest.token_frequencies)
    assert store.column("num_bytes").sum() == manifest.train.bytes
    assert manifest.skipped == {}


def test_a_long_document_comes_in_pieces_that_join(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(make_text(9000).replace("\n\n", "\n"))
    manifest = prepare(
        [path], tmp_path / "out", corpus=CorpusSettings(documents="file"), tokenizer=TokenizerSettings(vocab_size=200)
    )
    assert manifest.documents == 1
    assert manifest.train.pieces > 20
    data = open_prepared(tmp_path / "out")
    offset, num_bytes = (
        np.concatenate([split.column(name) for split in (data.train, data.validation)])
        for name in ("offset", "num_bytes")
    )
    assert num_bytes.sum() == manifest.bytes
    ends = dict(zip(offset + num_bytes, offset, strict=True))
    place = manifest.bytes
    while place:
        place = int(ends.pop(place))
    assert not ends


def test_a_shard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    lengths = np.array([5, 1, 3])
    ids = np.arange(9, dtype=np.int32) + 70_000
    starts = np.array([True, False, False, True, False, True, True, False, True])
    columns = np.array([3, 3, 8]), np.array([0, 10, 0]), np.array([10, 2, 6])
    writer = ShardWriter(tmp_path, "train/00000.arrow", vocab_size=100_000)
    writer.write(TokenBatch(ids, starts, lengths, *columns))
    writer.write(TokenBatch(ids, starts, lengths, *columns).select(np.array([False, True, True])))
    file = writer.save()
    assert file is not None
    assert (file.pieces, file.tokens, file.sha256) == (5, 13, file_sha256(tmp_path / file.name))
    store = TokenStore([tmp_path / file.name])
    texts = [store.gather(np.array([n])) for n in range(5)]
    rows = [[text.input_ids.tolist(), text.word_starts.tolist()] for text in texts]
    whole = [
        [[70_000, 70_001, 70_002, 70_003, 70_004], [1, 0, 0, 1, 0]],
        [[70_005], [1]],
        [[70_006, 70_007, 70_008], [1, 0, 1]],
    ]
    assert rows == whole + whole[1:]
    gathered = store.gather(np.array([4, 0, 3]))
    assert gathered.input_ids.tolist() == [id_ for n in (0, 3, 4) for id_ in rows[n][0]]
    assert gathered.word_starts.tolist() == [start for n in (0, 3, 4) for start in rows[n][1]]
    assert store.column("document").tolist() == [3, 3, 8, 3, 8]
    assert store.column("offset").tolist() == [0, 10, 0, 10, 0]
    assert store.column("num_bytes").tolist() == [10, 2, 6, 2, 6]
    assert ShardWriter(tmp_path, "train/00001.arrow", vocab_size=9).save() is None
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["00000.arrow"]


def test_damage_is_found(data_folder: Path, manifest: Manifest, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(data_folder, root)
    shard = root / manifest.train.files[0].name
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match="does not fit the checksum; prepare the data again"):
        open_split(root, manifest, manifest.train)
    shard.unlink()
    with pytest.raises(DataError, match="the manifest lists this file, but it is not there"):
        open_prepared(root)
    text = (root / "manifest.json").read_text()
    (root / "manifest.json").write_text(text[:-200])
    with pytest.raises(DataError, match="damaged"):
        load_manifest(root)
    (root / "manifest.json").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(DataError, match="damaged"):
        load_manifest(root)
    changed = json.loads(text)
    changed["train"]["files"][0]["sha256"] = "0"
    (root / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(DataError, match="fingerprint does not fit"):
        load_manifest(root)
    with pytest.raises(DataError, match=r"there is no manifest\.json; make the folder with `unmask prepare`"):
        load_manifest(tmp_path)


def test_chunks_are_the_store_in_order(store: TokenStore) -> None:
    """Whole pieces, as many as fit, whatever the size; together they are everything."""
    texts = [store.gather(np.array([n])) for n in range(len(store))]
    pieces = [(text.input_ids, text.word_starts) for text in texts]
    for size in (1, 50, 999, 10**9):
        chunks = list(store.chunks(size))
        assert np.array_equal(np.concatenate([chunk.lengths for chunk in chunks]), store.column("lengths"))
        for column in (0, 1):
            expected = np.concatenate([piece[column] for piece in pieces])
            assert np.array_equal(np.concatenate([chunk[column] for chunk in chunks]), expected)
        for chunk in chunks:
            assert len(chunk.input_ids) == len(chunk.word_starts) == chunk.lengths.sum()
            assert len(chunk.input_ids) <= size or len(chunk.lengths) == 1
    assert len(list(store.chunks(1))) == len(store)
