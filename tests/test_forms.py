"""Every form of files that docs/reference/forms.md shows is read as the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forms import FORMS, PAGE, Form, holds, written


@pytest.mark.parametrize("form", FORMS, ids=[f"{form.kind}: {form.name}" for form in FORMS])
def test_a_form_is_read(form: Form, tmp_path: Path) -> None:
    assert holds(form, tmp_path) == form.holds


def test_the_page_is_what_the_script_writes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert written(text) == text, "python -m tests.forms writes it anew"
