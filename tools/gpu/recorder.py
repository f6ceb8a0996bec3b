"""pytest plugin of the section `contract`: one line of JSON per finished test, and one share of the tests per process.

GPU_CHECK_RECORD   file that the lines are appended to
GPU_CHECK_SHARD    "2/8": the third of every eight tests
"""

from __future__ import annotations

import json
import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    index, count = (int(part) for part in os.environ["GPU_CHECK_SHARD"].split("/"))
    chosen = items[index::count]
    config.hook.pytest_deselected(items=[item for k, item in enumerate(items) if k % count != index])
    items[:] = chosen


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        record(report.nodeid, report.outcome, report.longreprtext if report.failed else "", report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        record(report.nodeid, "failed", report.longreprtext, 0.0)


def record(name: str, outcome: str, text: str, seconds: float) -> None:
    line = json.dumps({"name": name, "outcome": outcome, "text": text[-1200:], "seconds": round(seconds, 3)})
    with open(os.environ["GPU_CHECK_RECORD"], "a") as stream:
        stream.write(line + "\n")
