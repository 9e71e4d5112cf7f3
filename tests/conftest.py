"""Small things that many tests need: a corpus, a tokenizer, shards, and a model that a test has trained."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import HealthCheck, settings

import unmask
from tests.command_line import Main
from tests.commands.checkpoints import released
from tests.elsewhere import Elsewhere
from unmask.commands import cli
from unmask.core import remote as addresses
from unmask.core.declarations import settings_of
from unmask.core.files import CACHE, cache
from unmask.core.plugins import entry_points
from unmask.data.data_folder import Manifest, load_manifest
from unmask.data.prepare import prepare
from unmask.data.settings import CorpusSettings
from unmask.data.store import TokenStore
from unmask.masking.settings import STRATEGIES
from unmask.model.config import PARTS, EncoderConfig
from unmask.model.encoder import MaskedLM, initialise
from unmask.model.layers import heads_for
from unmask.model.pooling import POOLINGS
from unmask.tokenizer.loading import load_tokenizer
from unmask.tokenizer.tokenizer import Tokenizer
from unmask.tokenizer.trainers import TokenizerSettings


def pytest_configure() -> None:
    """Keeps tests off the network, where unknown names would be looked up; fixes the cache of compiled loops, for tests
    that set a cache folder; and lets hypothesis draw the same examples each time, however busy the machine is."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache()))
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=checks)
    settings.load_profile("tests")


@pytest.fixture(autouse=True)
def plug_ins_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test adds to tables of plug-ins are removed after it."""
    for table in (STRATEGIES, POOLINGS):
        monkeypatch.setattr(table, "data", dict(table.data))


@pytest.fixture
def main(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Main:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unmask", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module, its source and its entry points, for this process and those that it starts."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))
    modules = set(sys.modules)

    def forget() -> None:
        for cached in (entry_points, settings_of, cli.read_parameters):
            cached.cache_clear()

    def install(module: str, source: str, points: str) -> None:
        name = module.replace("_", "-")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
        (site / f"{module}.py").write_text(source)
        importlib.invalidate_caches()
        forget()

    yield install
    forget()
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == site:
            del sys.modules[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process is left with a long one when the others have nothing."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the shared data is not at {SHARED}")
    return SHARED


def make_text(num_documents: int, seed: int = 0) -> str:
    """Documents between empty lines, of a small language with some grammar and long words."""
    rng = random.Random(seed)
    nouns = ["cat", "dog", "mountaineer", "king", "queen", "philosopher", "ship", "winter", "embroidery"]
    verbs = ["sees", "follows", "remembers", "misunderstands", "loves", "photographs"]
    places = ["in the garden", "at sea", "under the bridge", "in Constantinople"]
    names = ["".join(rng.choices(["ba", "lo", "min", "ter", "ska", "vu", "ri", "on"], k=3)) for _ in range(300)]
    documents = []
    for _ in range(num_documents):
        lines = [
            f"{rng.choice(names).title()} and the {rng.choice(nouns)} "
            f"{rng.choice(verbs)} the {rng.choice(nouns)} {rng.choice(places)}."
            for _ in range(rng.randint(1, 9))
        ]
        documents.append("\n".join(lines))
    return "\n\n".join(documents) + "\n"


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(make_text(400), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def data_folder(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "prepared"
    prepare([corpus_file], out, corpus=CorpusSettings(), tokenizer=TokenizerSettings(vocab_size=200))
    return out


@pytest.fixture(scope="session")
def manifest(data_folder: Path) -> Manifest:
    return load_manifest(data_folder)


@pytest.fixture(scope="session")
def tokenizer(data_folder: Path) -> Tokenizer:
    return load_tokenizer(data_folder / "tokenizer")


@pytest.fixture(scope="session")
def store(data_folder: Path, manifest: Manifest) -> TokenStore:
    return TokenStore([data_folder / file.name for file in manifest.train.files])


@pytest.fixture(scope="session")
def validation_store(data_folder: Path, manifest: Manifest) -> TokenStore:
    return TokenStore([data_folder / file.name for file in manifest.validation.files])


def small_config(tokenizer: Tokenizer, **changes: object) -> EncoderConfig:
    """A small model, with weights large enough for differences to show."""
    values = {
        "vocab_size": tokenizer.vocab_size, "pad_id": 0, "cls_id": 2, "sep_id": 3, "mask_id": 4,
        "num_layers": 4, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "activation": "gelu",
        "max_position_embeddings": 64, "norm_eps": 1e-5, "initializer_range": 0.2,
    }  # fmt: skip
    parts = PARTS[changes.get("layout", "modernbert")]  # type: ignore[index]
    values["rotary"] = {"global_every": 3, "local_window": 8} if parts.rotary else None
    values["type_vocab_size"] = parts.type_vocab_size
    return EncoderConfig.model_validate(values | changes)


@pytest.fixture
def make_model(tokenizer: Tokenizer) -> Callable[..., MaskedLM]:
    """Makes a small model whose biases are not 0."""

    def make(**changes: object) -> MaskedLM:
        model = MaskedLM(small_config(tokenizer, **changes))
        initialise(model, seed=0)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1)
            model.head.bias.normal_(generator=generator)
            for name, parameter in model.named_parameters():
                if name.endswith(".bias") and name != "head.bias":
                    parameter.normal_(0.0, 0.2, generator=generator)
        return model.eval()

    return make


@pytest.fixture
def model_folder(make_model: Callable[..., MaskedLM], tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A model that has learned nothing; texts that share words still have similar vectors."""
    return released(make_model(), tokenizer, tmp_path / "model")


def rich_model(config: EncoderConfig, **heads: Any) -> MaskedLM:
    """A model with the heads of `heads_for`; its weights are not initialised yet."""
    return MaskedLM(config, heads_for(config, **heads))


@pytest.fixture(scope="session")
def run(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> unmask.Run:
    """A short run, with a model that has learned a little."""
    out = tmp_path_factory.mktemp("runs") / "short"
    return unmask.pretrain([corpus_file], out=out, steps=300, vocab_size=200, settings=SMALL)


@pytest.fixture
def model_copy(run: unmask.Run, tmp_path: Path) -> Path:
    """A copy of the short run's model, which a test may change."""
    return Path(shutil.copytree(run.folder / "model", tmp_path / "copy"))


SMALL = (
    "model.num_layers=2", "model.hidden_size=64", "model.num_heads=2",
    "training.sequence_length=64", "training.batch_tokens=512",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.0)
    Elsewhere.pseudo_dirs[:] = [""]
    for state in (Elsewhere.store, Elsewhere.fetched, Elsewhere.failing, Elsewhere.sent):
        state.clear()  # type: ignore[attr-defined]
    return Elsewhere(skip_instance_cache=True)
