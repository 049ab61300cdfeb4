from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from penstock.config.options import OPTIONS
from penstock.wire.kafka.kernel import KERNEL


def penstock(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", *arguments]
    return subprocess.run(
        command, env={**os.environ, "COLUMNS": "200", **environment}, capture_output=True, text=True, check=False
    )


def test_version_tells_the_kernel() -> None:
    assert f"({KERNEL} kernel" in penstock("--version").stdout


def test_version_tells_the_plain_kernel_when_it_is_wanted() -> None:
    assert "(plain kernel" in penstock("--version", PENSTOCK_KERNEL="plain").stdout


def test_a_kernel_that_does_not_exist_is_refused() -> None:
    told = penstock("--version", PENSTOCK_KERNEL="fast")
    assert told.returncode == 1
    assert told.stderr.splitlines() == ["penstock: PENSTOCK_KERNEL: expected plain or compiled, found 'fast'"]


def test_options_lists_every_option() -> None:
    rows = json.loads(penstock("options", "--format", "json").stdout)
    assert [row["name"] for row in rows] == [option.name for option in OPTIONS]


@pytest.mark.parametrize("name", ["linger.ms", "LINGER", "batch_delay_ms"])
def test_options_are_found_by_their_names_elsewhere(name: str) -> None:
    assert "batch_delay_ms" in penstock("options", name).stdout


def test_an_unknown_option_is_one_line_and_exit_code_1() -> None:
    told = penstock("options", "no-such-thing")
    assert told.returncode == 1
    assert told.stderr.splitlines() == [
        "penstock: no option's name contains 'no-such-thing'; `penstock options` lists them all"
    ]


def test_a_wrong_command_line_is_exit_code_2() -> None:
    assert penstock("--no-such-flag").returncode == 2
