"""`coverage` where the compiler is at work: outside of its graphs, since the length of the result depends on values.

A module of its own because the decorator imports the compiler, which takes over a second.
"""

import torch

from .coverage import _coverage_with_driver

coverage_outside = torch.compiler.disable(_coverage_with_driver)
