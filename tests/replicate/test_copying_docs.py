"""The examples of the page on copying do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import penstock
from tests.replicate.pair import LIMIT_S, End

PAGE = Path(__file__).resolve().parents[2] / "docs" / "copying.md"


def test_the_examples_run_one_after_the_other() -> None:
    copied, compared, moved = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with penstock.embedded() as source, penstock.embedded() as target:
        end = End(source.url)
        end.client.create_topic("orders", 2)
        end.send("orders", [b"%d" % number for number in range(50)])
        end.client.cursor("orders", "billing").commit({0: 3, 1: 4})
        end.close()

        def run(example: str) -> list[str]:
            example = example.replace("kafka://localhost:9092", source.url).replace(
                "kafka://localhost:9093", target.url
            )
            command = [sys.executable, "-c", example]
            ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
            return ran.stdout.splitlines()

        assert run(copied) == ["50"]
        assert run(compared) == []
        assert [line.split(":")[0] for line in run(moved)] == ["orders-0, position 3", "orders-1, position 4"]
        with penstock.connect(target.url, client_id="docs") as client:
            assert client.cursor("orders", "billing").positions() == {0: 3, 1: 4}
