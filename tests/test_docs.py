from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from penstock.config import print_docs
from penstock.config.options import NOT_OPTIONS, OPTIONS, Option

ROOT = Path(__file__).resolve().parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "docs.py"))


def test_the_option_docs_are_as_the_table_prints_them() -> None:
    assert TOOL["differing"](ROOT) == []


def test_a_page_that_differs_or_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert TOOL["main"](["--check"], tmp_path) == 1
    assert TOOL["main"]([], tmp_path) == 0
    assert TOOL["main"](["--check"], tmp_path) == 0
    page = tmp_path / "docs" / "options.md"
    page.write_text(page.read_text(encoding="utf-8").replace("batch_delay_ms", "linger"), encoding="utf-8")
    capsys.readouterr()
    assert TOOL["main"](["--check"], tmp_path) == 1
    assert "docs/options.md differs" in capsys.readouterr().err


def test_printing_twice_gives_the_same() -> None:
    assert print_docs() == print_docs()


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_one_whole_row(option: Option) -> None:
    rows = [line for line in print_docs().splitlines() if line.startswith(f"| `{option.name}` |")]
    assert len(rows) == 1
    assert rows[0].count(" | ") == 5
    assert option.text in rows[0]
    assert all(f"`{alias.name}` ({alias.systems}" in rows[0] for alias in option.aliases)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_text_is_a_sentence_or_more(option: Option) -> None:
    assert option.text[0].isupper()
    assert option.text.endswith(".")
    assert "|" not in option.text


def test_names_that_are_no_options_are_documented() -> None:
    assert all(f"| `{name}` | {instead} |" in print_docs() for name, instead in NOT_OPTIONS.items())
