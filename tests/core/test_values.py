"""JSON and TOML that Python cannot hold: one sentence, a `ValueError`, wherever a file of settings is read."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.seeds import DEEP, DIGITS
from unmask.commands.recipe import load_recipe
from unmask.commands.tune import read_dimension
from unmask.core.errors import (
    RunError,
    SettingsError,
    listed,
    parse_json,
    sealed,
    shortened,
    shown,
    unsealed,
    whole_number,
)
from unmask.core.files import read_object


def test_values_are_read_as_the_standard_library_reads_them() -> None:
    value = {"a": [1, -2.5e3, None, True, "x", {"b": []}], "n": 10**4000}
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value
    toml = "a.b = 1\n[c]\nd = [1, {e = 0xff}]"
    assert parse_json(toml, tomllib.loads) == {"a": {"b": 1}, "c": {"d": [1, {"e": 255}]}}
    for text, error in (("{oops", json.JSONDecodeError), (b'"\xff"', UnicodeDecodeError)):
        with pytest.raises(error):
            parse_json(text)


@pytest.mark.parametrize(("text", "what"), [(DEEP, "nested too deep"), (f"[{DIGITS}]", "too many digits")])
def test_json_that_python_cannot_hold(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_json(text)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RunError, match=rf"a\.json.*{what}"):
        read_object(tmp_path / "a.json", "make it anew")


@pytest.mark.parametrize(("value", "what"), [(DEEP, "too deep"), (DIGITS, "too many digits")])
def test_toml_that_python_cannot_hold(tmp_path: Path, value: str, what: str) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(f"training.steps = {value}\n")
    with pytest.raises(SettingsError, match=rf"r\.toml.*{what}"):
        load_recipe(str(recipe))
    with pytest.raises(SettingsError, match=rf"training\.steps.*{what}"):
        load_recipe(overrides=(f"training.steps={value}",))
    with pytest.raises(SettingsError, match=what) as caught:
        read_dimension(f"training.steps=1..{value}")
    assert len(str(caught.value)) < 500


def test_whole_numbers_are_of_ascii_digits() -> None:
    numbers = [whole_number(text) for text in ("07", "0", "-5", "²", "٣", "", " 1", "1_0", "9" * 18, "9" * 19)]
    assert numbers == [7, 0, None, None, None, None, None, None, 10**18 - 1, None]


def test_what_is_sealed_shows_a_change() -> None:
    content = {"step": 3, "names": ["a"]}
    assert unsealed(json.loads(json.dumps(sealed(content)))) == content
    for changed in ({**sealed(content), "step": 4}, [1]):
        with pytest.raises(ValueError, match=r"checksum|object"):
            unsealed(changed)


def test_errors_show_a_part_of_what_is_long() -> None:
    assert [shown(value) for value in ("a", [0, 4, "PER"], None, -1.5)] == ["'a'", "[0, 4, 'PER']", "None", "-1.5"]
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for value in ("x" * 10**6, ["x" * 100] * 1000, 10**6000, deep, {"a": deep}):
        assert len(shown(value)) < 500
    assert listed(["a", "b" * 100]) == f"a, {'b' * 30}...{'b' * 30}"
    assert listed(map(str, range(50)), 2) == "0, 1 and 48 more"
    assert listed([]) == "none"
    assert (shortened("ab", 2), shortened("abcdef", 4)) == ("ab", "ab...ef")
