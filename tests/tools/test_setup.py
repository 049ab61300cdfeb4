from __future__ import annotations

from pathlib import Path

import pytest

from tools import setup


def test_a_stamp_is_fresh_until_its_sources_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "VENV", tmp_path)
    source = tmp_path / "lock.txt"
    source.write_text("one")
    assert not setup.Stamp("step", [source]).fresh()
    setup.Stamp("step", [source]).write()
    assert setup.Stamp("step", [source]).fresh()
    source.write_text("two")
    assert not setup.Stamp("step", [source]).fresh()


def test_an_unknown_profile_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["everything"]) == 2
    assert "run|dev" in capsys.readouterr().err


def test_a_python_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(setup, "PYTHON_MIN", (99, 0))
    assert setup.main(["run"]) == 1
    assert "Python 99.0 or newer is needed" in capsys.readouterr().err


def test_a_second_call_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: str) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(setup, "pip", refuse)
    setup.prepare("dev")
