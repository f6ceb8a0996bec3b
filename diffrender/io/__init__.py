"""Files: meshes, images, videos. Needs the extra `io` (`pip install diffrender-torch[io]`) for all but geometry."""

from diffrender.io.images import image_to_uint8, load_image, save_image
from diffrender.io.meshes import load_mesh, save_mesh
from diffrender.io.video import save_video, video_suffix

__all__ = ["image_to_uint8", "load_image", "load_mesh", "save_image", "save_mesh", "save_video", "video_suffix"]
