"""Reading what py-spy has sampled."""

from __future__ import annotations

from benchmarks.cell_profile import read

RAW = """\
process 10:"python -m benchmarks";main (/a/bench/worker.py:5);send (/a/client/outbox.py:7) 6
process 10:"python -m benchmarks";main (/a/bench/worker.py:9);send (/a/client/outbox.py:8) 2
process 10:"python -m benchmarks";main (/a/bench/worker.py:3) 2
process 10:"python -m benchmarks";process 12:"ray";process 13:"ray::host";run (/b/loop.py:1) 4
process 10:"python -m benchmarks"  1
"""


def test_samples_belong_to_the_innermost_process() -> None:
    found = read(RAW)
    assert found.keys() == {10, 13}
    assert found[13].total == 4


def test_lines_of_a_function_count_together() -> None:
    client = read(RAW)[10]
    assert client.total == 10
    assert client.own == {"client/outbox.py send": 8, "bench/worker.py main": 2}
