"""The kernel under a coverage-guided fuzzer, with a sanitizer, for as long as PENSTOCK_FUZZ_SECONDS says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.build import Build, build, compiled, compiler
from tests.fuzz.targets import Fuzzed, seeds

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = int(os.environ.get("PENSTOCK_FUZZ_SECONDS", "120"))
RUNS_MAX = 10_000_000
INPUT_BYTES_MAX = 1024

READ_PAST_THE_END = """
#include <stdlib.h>
int read_past_the_end(void) {
    volatile char *bytes = malloc(10);
    return bytes[10];
}
"""


@pytest.fixture(scope="module")
def fuzzed_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: it has no wheel for this Python or platform")
    if compiler() is None:
        pytest.skip("there is no C compiler to build the kernel with")
    return build(tmp_path_factory.mktemp("kernel"))


def run(build_of: Build, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=build_of.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def test_twins_agree_on_what_the_fuzzer_starts_from() -> None:
    fuzzed = Fuzzed()
    for seed in seeds():
        fuzzed.feed(seed)


@pytest.mark.stress
def test_sanitizer_finds_a_read_past_the_end(fuzzed_build: Build, tmp_path: Path) -> None:
    if not fuzzed_build.sanitizer:
        pytest.skip("the C compiler has no AddressSanitizer")
    source, target = tmp_path / "canary.c", tmp_path / "canary.so"
    source.write_text(READ_PAST_THE_END)
    assert compiled(source, target, fuzzed_build.sanitizer)
    done = run(fuzzed_build, "-c", f"import ctypes; ctypes.CDLL({str(target)!r}).read_past_the_end()")
    assert "AddressSanitizer: heap-buffer-overflow" in done.stdout
    assert done.returncode != 0


@pytest.mark.stress
def test_kernels_own_tests_pass_under_the_sanitizer(fuzzed_build: Build) -> None:
    environment = fuzzed_build.environment | {"PENSTOCK_FUZZ_KERNEL": str(fuzzed_build.kernel)}
    names = ("arrow", "batch", "buffer", "gather", "records")
    tests = [f"tests/wire/kafka/test_{name}.py" for name in names]
    options = ("-q", "-p", "tests.fuzz.plugin", "-p", "no:cacheprovider")
    done = run(fuzzed_build._replace(environment=environment), "-m", "pytest", *options, *tests)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.stress
@pytest.mark.timeout(SECONDS + 300)
def test_fuzzer_finds_nothing(fuzzed_build: Build, tmp_path: Path) -> None:
    corpus, findings = tmp_path / "corpus", tmp_path / "findings"
    corpus.mkdir()
    findings.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    done = run(
        fuzzed_build,
        *("-m", "tests.fuzz.run", str(fuzzed_build.kernel), f"-runs={RUNS_MAX}", f"-max_total_time={SECONDS}"),
        *(f"-max_len={INPUT_BYTES_MAX}", "-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1"),
        *(f"-artifact_prefix={findings}/", str(corpus)),
    )
    found = "\n".join(f"{path.name} in hex: {path.read_bytes().hex()}" for path in sorted(findings.iterdir()))
    assert not found, f"{done.stdout[-6000:]}\n{found}"
    assert done.returncode == 0, done.stdout[-6000:]
    coverage = [int(number) for number in re.findall(r"cov: (\d+)", done.stdout)]
    assert coverage, f"the fuzzer saw no coverage\n{done.stdout[-6000:]}"
    runs = re.search(r"number_of_executed_units: +(\d+)", done.stdout)
    sys.stdout.write(f"{runs[1] if runs else '?'} runs, coverage {coverage[0]} to {coverage[-1]}\n")
