"""Everything that has to be known about the CUDA side, in one command on a machine with a GPU:

    python tools/gpu_check.py                    # at most 8 minutes; writes out/gpu_check/results.json and .md
    python tools/gpu_check.py --dry-run          # the same code paths on the CPU, with tiny inputs, in seconds
    python tools/gpu_check.py --only compare benchmark

Needs torch >= 2.10 with CUDA and numpy; pytest for the section `contract`. It uses the library in diffrender/_lib where
that has code for the GPU (it may have been built elsewhere), and builds it otherwise, which takes nvcc.

| section | does |
| --- | --- |
| contract | the contract table, the case catalogue and the CUDA tests on the GPU, in several processes |
| compare | CPU = CUDA: 200 random scenes and every raw kernel call of the contract table |
| special | streams, CUDA graphs, host synchronisation, deterministic sums, tensors of more than 2^31 elements |
| sanitizer | compute-sanitizer memcheck and racecheck over one call of every op, where it is installed |
| benchmark | times of each op and of a fit step over sizes, batches and meshes, next to nvdiffrast where that imports |

Each section is a process of its own with a time limit: one that fails or crashes hides nothing of the others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.gpu import driver  # noqa: E402

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny inputs")
    parser.add_argument("--only", nargs="+", choices=driver.SECTIONS, default=list(driver.SECTIONS))
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu_check")
    parser.add_argument("--budget-s", type=float, default=460.0, help="seconds for everything, default %(default)s")
    options = parser.parse_args()
    sys.exit(driver.run(options.only, options.out, options.budget_s, options.dry_run))
