"""What the operations are measured against: embree's rays, Mesa's software rasterizer, and a plain copy of memory.

Each function returns a `Yardstick`; `available()` says beforehand which of them can run and what is missing otherwise.
None of them is a dependency of the package: `pip install diffrender-torch[bench]` (or `make setup-bench`) brings
embreex and moderngl, the distribution brings Mesa (Debian and Ubuntu: `apt-get install libegl1 libgl1-mesa-dri`).
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.scenes import Scene, camera_rays


@dataclass(frozen=True)
class Yardstick:
    """One competitor, ready to be timed.

    Attributes:
        call: renders (or copies) once.
        triangle_id: returns the (size, size) triangle ids of the last call, -1 where nothing was hit, to check that
            the same picture was computed; None for a copy.
        facts: figures found while preparing, for instance the time for building an acceleration structure.
    """

    call: Callable[[], object]
    triangle_id: Callable[[], np.ndarray] | None = None
    facts: dict[str, float] = field(default_factory=dict)


def available() -> dict[str, str | None]:
    """Name of each renderer -> None where it can run, else one line that says what is missing."""
    return {"embree": _missing_embree(), "llvmpipe": _missing_llvmpipe()}


def memcpy(output_bytes: int) -> Yardstick:
    """Copy as many bytes as an operation returns, between two buffers that were touched before."""
    source = torch.ones(output_bytes, dtype=torch.uint8)
    target = torch.zeros(output_bytes, dtype=torch.uint8)
    return Yardstick(lambda: target.copy_(source))


def parallel_control() -> Yardstick:
    """A function of torch that needs only the processor: its gain is what a second thread was worth at that moment."""
    values = torch.linspace(-0.99, 0.99, 2**20)
    result = torch.empty_like(values)
    return Yardstick(lambda: torch.erfinv(values, out=result))


def embree(scene: Scene, size: int) -> Yardstick:
    """Primary rays through every pixel centre: triangle id, depth and barycentrics (and a normal, always computed).

    One thread, one ray at a time, which is all that embreex offers. Building the tree of boxes is not part of a call;
    its time is in `facts` as wall and processor time (embree builds with all cores).
    """
    from embreex import mesh_construction, rtcore_scene

    wall, cpu = time.perf_counter(), time.process_time()
    embree_scene = rtcore_scene.EmbreeScene()
    mesh_construction.TriangleMesh(embree_scene, scene.vertices, scene.triangles)
    # The tree is built by the first query.
    embree_scene.run(*camera_rays(1), output=True)
    facts = {
        "build_wall_ms": (time.perf_counter() - wall) * 1e3,
        "build_cpu_ms": (time.process_time() - cpu) * 1e3,
    }
    origins, directions = camera_rays(size)
    last: dict[str, np.ndarray] = {}

    def call() -> None:
        last.update(embree_scene.run(origins, directions, output=True))

    return Yardstick(call, lambda: last["primID"].reshape(size, size), facts)


def llvmpipe(scene: Scene, size: int) -> Yardstick:
    """Mesa's software OpenGL: triangle id, depth and two barycentrics into one float texture, read back to memory.

    One rasterizer thread. Corners are expanded to 3 T vertices beforehand, so that the barycentrics are an ordinary
    varying (a geometry shader takes as long); uploading them is not part of a call.
    """
    context, renderer = _software_context()
    if "llvmpipe" not in renderer:
        raise RuntimeError(f"llvmpipe: the renderer must be Mesa's llvmpipe, got {renderer}.")
    import moderngl

    context.enable(moderngl.DEPTH_TEST)
    program = context.program(vertex_shader=_VERTEX_SHADER, fragment_shader=_FRAGMENT_SHADER)
    corners = context.buffer(scene.clip_positions[scene.triangles].tobytes())
    vertex_array = context.vertex_array(program, [(corners, "4f", "position")])
    texture = context.texture((size, size), 4, dtype="f4")
    framebuffer = context.framebuffer([texture], context.depth_renderbuffer((size, size)))
    pixels = np.empty((size, size, 4), np.float32)

    def call() -> None:
        framebuffer.use()
        framebuffer.clear(-1.0, 1.0, 0.0, 0.0, depth=1.0)
        vertex_array.render(moderngl.TRIANGLES)
        texture.read_into(pixels)

    return Yardstick(call, lambda: pixels[..., 0].astype(np.int32))


# The picture is drawn upside down, because OpenGL returns the bottom row first.
_VERTEX_SHADER = """
#version 330
in vec4 position;
out vec2 barycentrics;
void main() {
    gl_Position = vec4(position.x, -position.y, position.zw);
    int corner = gl_VertexID % 3;
    barycentrics = vec2(corner == 0, corner == 1);
}
"""
_FRAGMENT_SHADER = """
#version 330
in vec2 barycentrics;
out vec4 result;
void main() { result = vec4(float(gl_PrimitiveID), gl_FragCoord.z, barycentrics); }
"""


def _software_context():
    """An OpenGL context without a window, made by Mesa's software renderer, and the renderer's name."""
    # Read by Mesa when its first context is made; a machine without a display needs the surfaceless platform.
    os.environ["LIBGL_ALWAYS_SOFTWARE"] = "1"
    os.environ["LP_NUM_THREADS"] = "1"
    os.environ.setdefault("EGL_PLATFORM", "surfaceless")
    import moderngl

    context = moderngl.create_context(standalone=True, backend="egl", require=330)
    return context, str(context.info["GL_RENDERER"])


def _missing_embree() -> str | None:
    if importlib.util.find_spec("embreex") is None:
        return "embree left out: embreex is not installed. pip install embreex"
    return None


def _missing_llvmpipe() -> str | None:
    if importlib.util.find_spec("moderngl") is None:
        return "llvmpipe left out: moderngl is not installed. pip install moderngl"
    hint = "Debian and Ubuntu: apt-get install libegl1 libgl1-mesa-dri"
    try:
        context, renderer = _software_context()
    except Exception as error:  # glcontext and moderngl raise bare Exceptions for a missing library or driver
        return f"llvmpipe left out: no OpenGL context through EGL ({error}). {hint}"
    context.release()
    if "llvmpipe" not in renderer:
        return f"llvmpipe left out: the software renderer is {renderer}. {hint}"
    return None
