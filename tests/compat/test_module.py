"""The module as a whole: public names, contexts, log level, and scripts that import nvdiffrast by its name."""

import inspect
import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import diffrender
from diffrender.compat import nvdiffrast as dr

ROOT = Path(__file__).resolve().parent.parent.parent

SIGNATURES = {
    "RasterizeCudaContext": ["device=None"],
    "RasterizeGLContext": ["output_db=True", "mode='automatic'", "device=None"],
    "rasterize": ["glctx", "pos", "tri", "resolution", "ranges=None", "grad_db=True"],
    "DepthPeeler": ["glctx", "pos", "tri", "resolution", "ranges=None", "grad_db=True"],
    "interpolate": ["attr", "rast", "tri", "rast_db=None", "diff_attrs=None"],
    "texture": [
        "tex", "uv", "uv_da=None", "mip_level_bias=None", "mip=None", "filter_mode='auto'", "boundary_mode='wrap'",
        "max_mip_level=None",
    ],
    "texture_construct_mip": ["tex", "max_mip_level=None", "cube_mode=False"],
    "antialias": ["color", "rast", "pos", "tri", "topology_hash=None", "pos_gradient_boost=1.0"],
    "antialias_construct_topology_hash": ["tri"],
    "get_log_level": [],
    "set_log_level": ["level"],
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_nvdiffrast(name):
    """Arguments by position and by name; what we add is keyword-only."""
    assert name in dr.__all__
    parameters = [
        p.replace(annotation=p.empty)
        for p in inspect.signature(getattr(dr, name)).parameters.values()
        if p.kind != p.KEYWORD_ONLY
    ]
    assert [str(p) for p in parameters] == SIGNATURES[name]


def test_contexts_exist_without_a_gpu_and_for_any_device():
    for device in (None, "cpu", "cuda:0", torch.device("cuda"), 0):
        assert dr.RasterizeCudaContext(device=device).device == device
    context = dr.RasterizeGLContext(output_db=False, mode="manual", device=None)
    assert isinstance(context, dr.RasterizeCudaContext)
    context.set_context()
    context.release_context()
    with pytest.raises(ValueError, match="mode must be one of 'automatic', 'manual'"):
        dr.RasterizeGLContext(mode="other")
    corners = torch.tensor([[[-0.8, -0.8, 0, 1], [0.8, -0.8, 0, 1], [-0.8, 0.8, 0, 1]]])
    assert dr.rasterize(context, corners, torch.tensor([[0, 1, 2]]), (8, 8))[0].any()


def test_log_level_filters_the_messages_of_the_module(caplog):
    assert dr.get_log_level() == 1
    try:
        dr.RasterizeGLContext()
        assert not caplog.records
        dr.set_log_level(0)
        assert dr.get_log_level() == 0
        dr.RasterizeGLContext()
        assert "deprecated" in caplog.text
        for level, number in ((1, logging.WARNING), (2, logging.ERROR), (3, logging.CRITICAL)):
            dr.set_log_level(level)
            assert dr.get_log_level() == level
            assert logging.getLogger("diffrender.compat.nvdiffrast").getEffectiveLevel() == number
        with pytest.raises(ValueError, match="level must be one of 0, 1, 2, 3"):
            dr.set_log_level(4)
    finally:
        dr.set_log_level(1)


def run(script: str) -> str:
    """Output of a script in a process of its own: what it installs stays there."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


# Written for the other library: nothing in it knows of this one.
SCRIPT = """
import numpy as np
import torch
import nvdiffrast
import nvdiffrast.torch as dr

device = "cuda" if torch.cuda.is_available() else "cpu"
assert nvdiffrast.torch is dr and nvdiffrast.__version__.split(".")[0] == "0"
glctx = dr.RasterizeGLContext(output_db=True, device=device)
dr.set_log_level(1)

pos = torch.tensor([[[-0.8, -0.8, 0.2, 1], [0.8, -0.8, 0.2, 1], [-0.8, 0.8, 0.2, 1]]], device=device)
tri = torch.from_numpy(np.array([[0, 1, 2]], dtype=np.int32)).to(device)
col = torch.eye(3, device=device)[None, ...]
uv = torch.tensor([[0.0, 0], [1, 0], [0, 1]], device=device)
tex = torch.rand(1, 32, 32, 3, device=device, requires_grad=True)
env = torch.rand(1, 6, 16, 16, 3, device=device)
pos_opt = (pos + 0.05 * torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]]], device=device)).requires_grad_()
optimizer = torch.optim.Adam([pos_opt], lr=1e-2)
topology = dr.antialias_construct_topology_hash(tri)


def render(p, resolution):
    rast_out, rast_out_db = dr.rasterize(glctx, p, tri, resolution=[resolution, resolution], grad_db=False)
    color, _ = dr.interpolate(col, rast_out, tri)
    return dr.antialias(color.contiguous(), rast_out, p, tri.int(), topology_hash=topology, pos_gradient_boost=1.0)


target = render(pos, 32)
first = last = None
for it in range(60):
    loss = torch.mean((render(pos_opt, 32) - target) ** 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last = loss.item()
    first = last if first is None else first
assert last < 0.1 * first, (first, last)

rast_out, rast_out_db = dr.rasterize(glctx, pos, tri, (64, 64))
texc, texd = dr.interpolate(uv[None, ...], rast_out, tri, rast_db=rast_out_db, diff_attrs="all")
image = dr.texture(tex[None, ...][0], texc, texd, filter_mode="linear-mipmap-linear", max_mip_level=4)
image = torch.where(rast_out[..., 3:] > 0, image, torch.tensor(1.0, device=device))
image.sum().backward()
assert tex.grad.abs().sum() > 0
mips = [torch.rand(1, 6, 8, 8, 3, device=device), torch.rand(1, 6, 4, 4, 3, device=device)]
bias = torch.full((1, 64, 64), 1.5, device=device)
direction = torch.cat((texc, torch.ones_like(texc[..., :1])), dim=-1)
trilinear = "linear-mipmap-linear"
spec = dr.texture(env, direction, mip=mips, mip_level_bias=bias, filter_mode=trilinear, boundary_mode="cube")
assert spec.shape == (1, 64, 64, 3)
with dr.DepthPeeler(glctx, pos, tri, (64, 64)) as peeler:
    layers = [peeler.rasterize_next_layer()[0] for _ in range(2)]
assert (layers[0] == rast_out).all() and not layers[1].any()
print("pixels", int((rast_out[..., 3] > 0).sum()), "row", int(torch.nonzero(rast_out[0, :, :, 3])[0, 0]))
"""


# Its triangle covers the pixels (i, j) >= 6 with i + j < 63: 51 * 52 / 2; the lowest row is 6, since rows run upwards.
EXPECTED = "pixels 1326 row 6"


def test_a_script_written_for_nvdiffrast_runs_unchanged():
    """Warnings of the script are errors."""
    install = "import diffrender\ndiffrender.compat.install_as_nvdiffrast()\n"
    assert run(install + SCRIPT).strip() == EXPECTED


@pytest.mark.parametrize("exact_legacy", [False, True])
def test_the_module_itself_serves_as_the_import(exact_legacy, capsys):
    """`import diffrender.compat.nvdiffrast as dr` in place of `import nvdiffrast.torch as dr`."""
    script = SCRIPT.replace("import nvdiffrast\n", "").replace("import nvdiffrast.torch", f"import {dr.__name__}")
    script = "\n".join(line for line in script.splitlines() if not line.startswith("assert nvdiffrast.torch"))
    assert "import nvdiffrast" not in script
    try:
        dr.set_exact_legacy(exact_legacy)
        exec(script, {})
    finally:
        dr.set_exact_legacy(False)
    assert capsys.readouterr().out.strip() == EXPECTED


def test_install_is_found_by_every_way_to_import_and_may_be_repeated():
    run("""
        import importlib, importlib.util, sys
        import diffrender
        assert "diffrender.compat.nvdiffrast" not in sys.modules and "nvdiffrast" not in sys.modules
        from diffrender.compat import install_as_nvdiffrast
        install_as_nvdiffrast()
        install_as_nvdiffrast(exact_legacy=True)
        import nvdiffrast.torch as a
        from nvdiffrast import torch as b
        from nvdiffrast.torch import rasterize, RasterizeCudaContext
        c = importlib.import_module("nvdiffrast.torch")
        import diffrender.compat.nvdiffrast as ours
        assert a is b is c is ours and rasterize is ours.rasterize
        assert importlib.util.find_spec("nvdiffrast") is not None
        assert importlib.util.find_spec("nvdiffrast.torch") is not None
        assert ours.get_exact_legacy() is True
        install_as_nvdiffrast(exact_legacy=False)
        assert ours.get_exact_legacy() is False
        try:
            import nvdiffrast.tensorflow
        except ModuleNotFoundError:
            pass
        else:
            raise AssertionError("a module that does not exist was found")
    """)


def test_install_refuses_to_replace_a_package_in_use():
    """Modules that imported it before would go on using the other one."""
    run("""
        import sys, types
        from diffrender.compat import install_as_nvdiffrast
        sys.modules["nvdiffrast"] = types.ModuleType("nvdiffrast")
        try:
            install_as_nvdiffrast()
        except RuntimeError as error:
            assert "imported already" in str(error)
        else:
            raise AssertionError("no error")
    """)


def test_version_and_names_are_there():
    assert "compat" in diffrender.__all__
    for name in dr.__all__:
        assert getattr(dr, name).__doc__
