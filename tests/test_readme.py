"""The README's example does what its comments say, on a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from pathlib import Path

from brokers.kafka import KafkaCluster

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_example_prints_what_its_comments_say(real_kafka: KafkaCluster) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    topic = f"orders{uuid.uuid4().hex[:8]}"
    expected = [said.replace("orders", topic) for said in re.findall(r"print\(.*\) +# (.*)", example)]
    example = example.replace("localhost:9092", real_kafka.bootstrap).replace('"orders"', f'"{topic}"')
    ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == expected
