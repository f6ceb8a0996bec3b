"""What a material makes of textures that nobody trains: their stack and its mips, kept from one picture to the next.

A model of 2048 x 2048 texels with four maps has 180 MB of them; making them anew takes many times as long as a picture
of 256 x 256 pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ._autograd import is_captured
from .ops.build_mips import PackedMips


@dataclass
class _Kept:
    textures: list[Tensor]  # held, so that no other tensor can take their identity
    states: list[tuple]
    stream: int
    stack: Tensor
    mips: PackedMips | None


class FrozenTextures:
    """Stacks of textures and their mips, made again when a texture was replaced or changed in place."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], _Kept] = {}

    def __reduce__(self) -> tuple:
        return FrozenTextures, ()  # copies and pickles of a material start without

    def stacked(
        self, names: Sequence[str], textures: list[Tensor], with_mips: bool
    ) -> tuple[Tensor, PackedMips | None]:
        """The textures side by side along their channels, and the mips of that.

        Args:
            names: of the properties, the key under which the result is kept.
            textures: (..., Ht, Wt, C) of one size, type and device, none of which requires a gradient.
            with_mips: False makes no mips: the second result may be None.
        """
        if not _may_keep(textures):
            stack = _stack(textures)
            return stack, PackedMips.of(stack) if with_mips else None
        key, states, stream = tuple(names), [_state(texture) for texture in textures], _stream(textures[0])
        kept = self._kept.get(key)
        if kept is None or not _is_current(kept, textures, states, stream):
            # A texture has moved to another group, or changed: what was made of it goes before the new takes its place.
            # The dictionary is replaced, never changed: another thread may walk over it.
            self._kept = {names: old for names, old in self._kept.items() if not set(names) & set(key)}
            kept = None
            kept = _Kept(textures, states, stream, _stack(textures), None)
            self._kept = {**self._kept, key: kept}
        if with_mips and kept.mips is None:
            kept.mips = PackedMips.of(kept.stack)
        return kept.stack, kept.mips

    def keep_only(self, groups: Collection[tuple[str, ...]]) -> None:
        """Lets go of all other groups: their textures are constants now, or trained."""
        if torch.compiler.is_compiling() or all(key in groups for key in self._kept):
            return
        self._kept = {key: kept for key, kept in self._kept.items() if key in groups}


def _stack(textures: list[Tensor]) -> Tensor:
    return textures[0] if len(textures) == 1 else torch.cat(textures, -1)


def _state(texture: Tensor) -> tuple:
    """What changes with the values: a count of changes in place; where `.data` was assigned (Module.to), the rest."""
    return texture._version, texture.data_ptr(), texture.shape, texture.stride(), texture.dtype, texture.device


def _is_current(kept: _Kept, textures: list[Tensor], states: list[tuple], stream: int) -> bool:
    same = all(a is b for a, b in zip(kept.textures, textures, strict=True))
    return same and kept.states == states and kept.stream == stream


def _stream(texture: Tensor) -> int:
    """What was made on one stream is not ready on another."""
    return torch.cuda.current_stream(texture.device).cuda_stream if texture.is_cuda else 0


def _may_keep(textures: list[Tensor]) -> bool:
    """Whether tensors made now are ordinary ones, and changes of these textures leave a trace."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return False
    if torch._C._are_functorch_transforms_active() or _get_current_dispatch_mode() is not None:
        return False  # wrapped tensors; and modes look at all that is made, such as the count of saved_bytes
    if is_captured(textures[0]):
        return False
    return all(type(t) in (Tensor, torch.nn.Parameter) and not t.is_inference() for t in textures)
