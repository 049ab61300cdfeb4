"""The repository's own rules: format, lint, types, layers, and documents that tell the truth about the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_code_is_formatted() -> None:
    run("ruff", "format", "--check", ".")


def test_code_is_free_of_lint() -> None:
    run("ruff", "check", ".")


def test_types_hold() -> None:
    run("mypy")


def test_imports_go_downward_only() -> None:
    lint = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert lint.returncode == 0, lint.stdout + lint.stderr


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(path for path in listed.stdout.splitlines() if (ROOT / path).exists())


def file_map() -> set[str]:
    """The paths of the file map in DESIGN.md: the first word of each row of its tables."""
    text = (ROOT / "DESIGN.md").read_text()
    section = text.split("## File map", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def is_bare(path: str) -> bool:
    """Whether this marks a package and defines nothing."""
    return path.endswith("__init__.py") and not re.search(r"^(def|class) ", (ROOT / path).read_text(), re.MULTILINE)


def test_file_map_names_every_source_file() -> None:
    sources = {path for path in tracked("src") if not path.endswith((".pyi", "py.typed")) and not is_bare(path)}
    mapped = {path for path in file_map() if path.startswith("src/")}
    assert mapped == sources


def test_file_map_names_only_what_exists() -> None:
    assert [path for path in file_map() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", tracked("*.md"))
def test_links_between_documents_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [target for target in targets if not (ROOT / document).parent.joinpath(target).exists()] == []


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "DESIGN.md").read_text()
    assert [path for path in tracked("docs/decisions") if path not in listed] == []


def test_locks_carry_hashes_and_no_registry() -> None:
    for path in tracked("requirements/*.txt"):
        text = (ROOT / path).read_text()
        assert "--hash=sha256:" in text, path
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text), path


def test_help_lists_every_verb() -> None:
    text = (ROOT / "Makefile").read_text()
    verbs = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())  # type: ignore[index]
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert verbs == set(re.findall(r"make ([a-z-]+)", shown))
