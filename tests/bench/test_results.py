"""Benchmarks compare equal work, their arithmetic holds, and each keeps to its own section of the results."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench import results, timing
from bench.micro import append, decode, encode, header, kernels, peers
from bench.micro.messages import make
from bench.results import Bar, Row, Section
from bench.timing import Clock, Ratio, Sample, Timings, interleave
from penstock.wire.kafka import kernel

needs_kernel = pytest.mark.skipif(kernel.KERNEL != "compiled", reason="the bars are the compiled kernel's")


def section(name: str, ours: str = "1 ns", ratio: float = 2.0) -> Section:
    row = Row("case", ours, "peer", "2 ns", Ratio(ratio, 1.5, 2.5), Bar("≥", 2))
    return Section(name, "What was compared.\n", [row], 7)


def timings(clock: Clock = Clock.WALL, **seconds: list[float]) -> Timings:
    return Timings({name: [Sample(s, s + 100, s + 200) for s in each] for name, each in seconds.items()}, clock)


# Results


def test_a_section_tells_figures_ratio_spread_bar_and_machine() -> None:
    text = results.render(section("micro.one"))
    assert text.startswith("## micro.one\n\nWhat was compared.\n\n| case | ours |")
    assert "| case | 1 ns | peer | 2 ns | 2x | 1.5 to 2.5 | ≥ 2x | met |" in text
    assert "7 rounds on " in text
    assert "CPython" in text


def test_writing_a_section_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    results.write(section("micro.two"), path)
    results.write(section("micro.one"), path)
    before = results.read(path)
    results.write(section("micro.one", "9 ns"), path)
    after = results.read(path)
    assert list(after) == ["micro.one", "micro.two"]
    assert after["micro.two"] == before["micro.two"]
    assert "9 ns" in after["micro.one"]


def test_what_is_written_does_not_depend_on_the_order_of_writing(tmp_path: Path) -> None:
    names = ["b", "a.z", "a.b"]
    for path, order in ((tmp_path / "one", names), (tmp_path / "other", names[::-1])):
        for name in order:
            results.write(section(name), path)
    results.write(section("b"), tmp_path / "one")
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text()


@pytest.mark.parametrize(
    ("sign", "ratio", "met"),
    [("≥", 2.0, True), ("≥", 1.99, False), ("≤", 2.0, True), ("≤", 2.01, False), ("<", 2.0, False), ("<", 1.9, True)],
)
def test_a_bar_is_met_or_missed(sign: str, ratio: float, met: bool) -> None:
    row = Row("case", "", "", "", Ratio(ratio, 0, 9), Bar(sign, 2))
    assert row.verdict() == ("met" if met else "MISSED")
    assert Section("s", "", [row], 1).missed() == ([] if met else [row])


def test_a_row_without_a_peer_has_no_verdict() -> None:
    assert Row("case", "1 ns").cells() == ("case", "1 ns", "", "", "", "", "", "")


def test_names_choose_benchmarks_by_their_beginning() -> None:
    assert command.select([]) == list(command.BENCHMARKS)
    assert command.select(["micro.append"]) == ["micro.append"]
    assert command.select(["micro"]) == [name for name in command.BENCHMARKS if name.startswith("micro.")]
    with pytest.raises(SystemExit, match="there is no 'micr'"):
        command.select(["micr"])


# Timing


def test_figures_are_medians_by_the_clock_that_counts() -> None:
    assert timings(a=[5, 1, 3]).median("a") == 3
    assert timings(Clock.PROCESS, a=[5, 1, 3]).median("a") == 103
    assert timings(Clock.THREAD, a=[5, 1, 3]).median("a") == 203


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    both = timings(a=[2, 30, 8], b=[1, 10, 2])
    assert both.ratio("a", "b") == Ratio(3, 2, 4)
    assert both.rounds == 3


def test_overhead_is_taken_off_round_by_round() -> None:
    net = timings(Clock.WALL, loop=[1, 2], a=[5, 7]).without("loop")
    assert list(net.samples) == ["a"]
    assert net.seconds("a") == [4, 5]


def test_contestants_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "RUN_S_MIN", 0)
    calls: list[str] = []
    found = interleave({name: partial(calls.append, name) for name in "abc"}, rounds=3, clock=Clock.WALL)
    assert "".join(calls[-9:]) == "abcabcabc"
    assert found.rounds == 3


# Micro-benchmarks: each case runs, and checks on its way that all contestants did the same work


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "RUN_S_MIN", 0)


@needs_kernel
@pytest.mark.usefixtures("once")
def test_every_way_to_encode_runs() -> None:
    found = encode.run(rounds=1, count=400)
    assert {row.beside for row in found.rows} == {"aiokafka", "kafka-python", "plain twin", encode.FLOOR}
    assert [str(row.bar) for row in found.rows if row.bar] == ["≥ 10x", "≥ 10x", "≥ 5x", "≥ 5x"] * 2


@needs_kernel
@pytest.mark.usefixtures("once")
def test_every_way_to_decode_runs() -> None:
    found = decode.run(rounds=1, count=400)
    assert {row.beside for row in found.rows} == {"aiokafka", "kafka-python", "plain twin"}
    assert [str(row.bar) for row in found.rows if row.bar] == ["≥ 3x", "≥ 2x"] * 2


@needs_kernel
@pytest.mark.usefixtures("once")
def test_appending_runs_beside_an_empty_call() -> None:
    found = append.run(rounds=1, bytes_max=4096)
    assert [str(row.bar) for row in found.rows if row.bar] == ["≤ 3x", "≤ 6x"]


@needs_kernel
@pytest.mark.usefixtures("once")
def test_headers_are_rewritten_beside_copies() -> None:
    found = header.run(rounds=1, sizes={"16 KB": 1500, "1 MB": 3000}, seal_bytes=2000)
    assert [str(row.bar) for row in found.rows if row.bar] == ["< 1x"]


@needs_kernel
def test_an_encoder_that_frames_less_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = make(50, 100, with_properties=True)
    whole = encode.encoders()

    def lazy(some: Any, ship: encode.Ship) -> None:
        whole["list"](make(49, 100, with_properties=True), ship)

    encode.check(messages)
    monkeypatch.setattr(encode, "encoders", lambda: whole | {"lazy": lazy})
    with pytest.raises(AssertionError, match="lazy did not frame"):
        encode.check(messages)


@needs_kernel
def test_a_reader_that_reads_something_else_is_found_out() -> None:
    batches = decode.batches_of(make(50, 100, with_properties=True))
    with pytest.raises(AssertionError, match="did not read"):
        decode.check(make(50, 100, with_properties=False), batches)


@needs_kernel
def test_the_plain_twin_is_another_kernel_than_ours() -> None:
    assert kernels.ours().BatchBuffer.__base__ is not kernels.plain().BatchBuffer.__base__
    assert kernels.ours() == kernels.ours()


def test_the_peer_is_the_compiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [peer.name for peer in peers.peers()] == ["aiokafka", "kafka-python"]
    monkeypatch.setattr("aiokafka.record.default_records.DefaultRecordBatch", peers.peers()[1].reader)
    with pytest.raises(SystemExit, match="is not its compiled one"):
        peers.peers()
