"""The README's example does what its comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_prints_what_its_comments_say() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    expected = [said.split(", and")[0] for said in re.findall(r"print\(.*\) +# (.*)", example)]
    ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == expected
