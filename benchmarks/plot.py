"""Draw the sweeps that scaling.py measured: time against pixels and against triangles, with lines of linear growth.

    python -m benchmarks.plot scaling.json scaling.png

Needs matplotlib: pip install diffrender-torch[fit]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the JSON file, write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(description="Draw the sweeps of scaling.py.")
    parser.add_argument("json", type=Path, help="file written by scaling.py --json")
    parser.add_argument("picture", type=Path, help="picture to write (png, svg, pdf)")
    options = parser.parse_args(arguments)
    draw(json.loads(options.json.read_text()), options.picture)
    return 0


def draw(sweeps: list[dict], path: Path) -> None:
    """One panel per axis, both logarithmic; a dotted line through the last point of a curve grows linearly."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("plot.py: matplotlib must be installed. pip install diffrender-torch[fit]") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = list(dict.fromkeys(sweep["axis"] for sweep in sweeps))
    figure, panels = pyplot.subplots(1, len(axes), figsize=(5.0 * len(axes), 4.0), squeeze=False, layout="constrained")
    for axis, panel in zip(axes, panels[0], strict=True):
        for sweep in (sweep for sweep in sweeps if sweep["axis"] == axis):
            work, times = sweep["work"], sweep["cpu_ms"]
            (line,) = panel.loglog(work, times, marker="o", label=sweep["operation"])
            linear = [times[-1] * w / work[-1] for w in work]
            panel.loglog(work, linear, linestyle=":", color=line.get_color(), label="_linear growth")
        panel.set_xlabel(axis)
        panel.set_ylabel("milliseconds, one thread")
        panel.grid(True, which="major", alpha=0.3)
        panel.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
