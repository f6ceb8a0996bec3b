"""What the sections share: their command line, and a result file that is complete after every check.

A section is called as `python -m tools.gpu.NAME --result FILE --budget-s SECONDS [--dry-run]`. Its result is a
dictionary with `checks`, a list of {"name", "status": "passed" | "failed" | "skipped", "detail"}, and whatever else it
measures. The file is written again after each check, so that what was found before a crash or the time limit is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Skipped(Exception):
    """Raised by a check that can not run here; the text says why."""


class Section:
    """Command line of the running section and the result under construction.

    Attributes:
        device: "cuda", or "cpu" in a dry run.
        dry_run: tiny inputs.
        data: the result; more keys than `checks` may be added.
    """

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--result", type=Path, required=True)
        parser.add_argument("--budget-s", type=float, default=120.0)
        parser.add_argument("--dry-run", action="store_true")
        options = parser.parse_args()
        self.dry_run: bool = options.dry_run
        self.device = "cpu" if self.dry_run else "cuda"
        self.data: dict[str, Any] = {"checks": []}
        self._path: Path = options.result
        self._end = time.monotonic() + options.budget_s
        self.write()

    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def check(self, name: str, call: Callable[[], str | None]) -> None:
        """Runs `call`, whose text goes into the report; an exception is a failure with its traceback."""
        start = time.monotonic()
        entry = {"name": name, "status": "passed"}
        if self.seconds_left() <= 0:
            entry.update(status="skipped", detail="no time left")
        else:
            try:
                entry["detail"] = call() or ""
                if self.device == "cuda":
                    torch.cuda.synchronize()  # an error of a kernel belongs to the check that launched it
            except Skipped as reason:
                entry.update(status="skipped", detail=str(reason))
            except Exception:
                entry.update(status="failed", detail=traceback.format_exc(limit=-4))
        entry["seconds"] = round(time.monotonic() - start, 3)
        self.data["checks"].append(entry)
        self.write()

    def write(self) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.data, indent=1))
        os.replace(partial, self._path)


def require(condition: bool, text: str) -> None:
    """A check that failed, with what was seen."""
    if not condition:
        raise AssertionError(text)
