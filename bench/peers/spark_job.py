"""Spark's Kafka connector at work: `python -m bench.peers.spark_job JOB RESULT`, by the connector's own environment.

That environment holds PySpark and nothing else, so this file imports only what needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers.measure import Meter

WRITER = {"kafka.compression.type": "lz4", "kafka.linger.ms": "20", "kafka.batch.size": "1048576"}


def main(job_path: Path, result_path: Path) -> None:
    """Run the job as often as asked and write the figures of the last run."""
    job = json.loads(job_path.read_text())
    scratch = job_path.parent / "scratch"  # removed with the job's folder, whatever happens to this process
    scratch.mkdir()
    os.chdir(scratch)
    spark = session(job["jars"], scratch)
    try:
        act = action(spark, job)
        java = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001  # PySpark's only way to it
        for _ in range(job["runs"]):
            meter = Meter({"spark-java": java, "spark-python": os.getpid(), **job["pids"]})
            act()
            figures = meter.figures("Spark connector", f"{job['action']} {job['value_bytes']} B", job["messages"])
        check(spark, job)
    finally:
        spark.stop()
    result_path.write_text(json.dumps(asdict(figures)))


def session(jars: list[str], scratch: Path) -> Any:
    """A Spark on two cores and on loopback."""
    # Imported by name: it is there only in the connector's environment, not where types are checked.
    sql = importlib.import_module("pyspark.sql")
    settings = {
        "spark.jars": ",".join(jars),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = sql.SparkSession.builder.master("local[2]").appName("penstock-peer")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def action(spark: Any, job: dict[str, Any]) -> Callable[[], None]:
    """What the clock runs for."""
    rows = reader(spark, job)
    if job["action"] == "read":
        return lambda: rows.write.format("noop").mode("overwrite").save()
    values = rows.select("value")
    if job["action"] == "write":
        values = values.cache()
        values.count()
    writer = values.write.format("kafka").option("kafka.bootstrap.servers", job["target"])
    save: Callable[[], None] = writer.option("topic", job["target_topic"]).options(**WRITER).save
    return save


def reader(spark: Any, job: dict[str, Any]) -> Any:
    """The rows of the source topic, all of them."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", job["source"])
    return source.option("subscribe", job["topic"]).option("startingOffsets", "earliest").load()


def check(spark: Any, job: dict[str, Any]) -> None:
    """Outside the clock: Spark sees as many rows as there are messages."""
    found = reader(spark, job).count()
    if found != job["messages"]:
        raise SystemExit(f"Spark read {found} rows instead of {job['messages']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
