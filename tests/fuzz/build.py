"""The compiled kernel, built once more for the fuzzer: with AddressSanitizer where the compiler has it.

The runtime of the sanitizer is atheris' own library, which holds libFuzzer too and is loaded before anything else: the
compiler's would hide libFuzzer's hooks. So objects are compiled for the sanitizer, but not linked with it.
Must never import penstock: the fuzzer's process does so itself, instrumented, with this kernel in place.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

KERNEL_MODULE = "penstock.wire.kafka._batch"
SOURCE = Path(__file__).parents[2] / "src/penstock/wire/kafka/_batch.pyx"
OPTIONS = ["-O1", "-g", "-fPIC", "-fno-omit-frame-pointer"]
# In order of preference: clang can also have libFuzzer see the coverage of C code, gcc cannot.
SANITIZERS = (["-fsanitize=address,fuzzer-no-link"], ["-fsanitize=address"])


class Build(NamedTuple):
    """A kernel for the fuzzer, and how a process must be started that loads it."""

    kernel: Path
    sanitizer: list[str]
    environment: dict[str, str]


def load(kernel: Path) -> None:
    """Put this file where the installed kernel would be found; before anything imports it."""
    spec = importlib.util.spec_from_file_location(KERNEL_MODULE, kernel)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[KERNEL_MODULE] = module
    spec.loader.exec_module(module)


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which(os.environ.get("CC", "cc").split()[0])


def runtime() -> Path | None:
    """Atheris' library with the sanitizer and libFuzzer."""
    spec = importlib.util.find_spec("atheris")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent.parent / "asan_with_fuzzer.so"
    return library if library.exists() else None


def build(folder: Path) -> Build:
    """Build the kernel with the best sanitizer that compiles."""
    source = folder / "_batch.c"
    translate = [sys.executable, "-m", "cython", "--module-name", KERNEL_MODULE, "-o", str(source), str(SOURCE)]
    subprocess.run(translate, check=True)
    target = folder / f"_batch{sysconfig.get_config_var('EXT_SUFFIX')}"
    library = runtime()
    for sanitizer in SANITIZERS if library else ():
        if compiled(source, target, sanitizer):
            return Build(target, sanitizer, environment_with(library))
    assert compiled(source, target, []), "the kernel does not compile"
    return Build(target, [], dict(os.environ))


def compiled(source: Path, target: Path, sanitizer: list[str]) -> bool:
    """Compile for the sanitizer, link without it; False if the compiler does not know it."""
    command = [str(compiler()), *OPTIONS]
    include = f"-I{sysconfig.get_path('include')}"
    unlinked = source.with_suffix(".o")
    steps = [
        [*command, *sanitizer, include, "-c", str(source), "-o", str(unlinked)],
        [*command, "-shared", str(unlinked), "-o", str(target)],
    ]
    return all(subprocess.run(step, capture_output=True, check=False).returncode == 0 for step in steps)


def environment_with(library: Path | None) -> dict[str, str]:
    """Python itself leaks by design, and asks for memory too often for long stories of who did."""
    options = "detect_leaks=0:malloc_context_size=2:quarantine_size_mb=32"
    return os.environ | {"LD_PRELOAD": str(library), "ASAN_OPTIONS": options}
