"""Images and videos on disk. Cases S01 and S02."""

import gc
import sys

import imageio.v3 as imageio
import numpy as np
import pytest
import torch

import diffrender as dr
from diffrender.io import image_to_uint8, save_video, video_suffix

F64 = torch.float64


# Images ---------------------------------------------------------------------------------------------------------------


def test_s01_linear_half_is_stored_as_188(tmp_path):
    dr.save_image(tmp_path / "half.png", torch.full((4, 6, 3), 0.5))
    pixels = imageio.imread(tmp_path / "half.png")
    assert pixels.shape == (4, 6, 3)
    assert np.unique(pixels).tolist() == [188]
    assert float(dr.srgb_to_linear(torch.tensor(188 / 255))) == pytest.approx(0.5029, abs=1e-4)


def test_save_image_takes_the_picture_of_one_camera(tmp_path):
    picture = torch.rand(1, 4, 6, 4)  # with the batch axis that the renderer gives it
    dr.save_image(tmp_path / "a.png", picture)
    dr.save_image(tmp_path / "b.png", picture[0])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_srgb_curves_refuse_bytes():
    byte_picture = torch.full((4, 6, 3), 188, dtype=torch.uint8)  # the curve would take 188 for far too bright
    for curve, name in ((dr.srgb_to_linear, "srgb"), (dr.linear_to_srgb, "linear")):
        with pytest.raises(TypeError, match=f"{curve.__name__}: {name} must be a float tensor, got torch.uint8"):
            curve(byte_picture)
    with pytest.raises(TypeError, match="over: background must be a float tensor, got torch.uint8"):
        dr.over(torch.rand(4, 6, 4), byte_picture)


def test_row_0_is_on_top_of_the_file(tmp_path):
    image = torch.zeros(2, 2, 3)
    image[0, 1] = torch.tensor([1.0, 0.0, 0.0])
    dr.save_image(tmp_path / "a.png", image)
    assert imageio.imread(tmp_path / "a.png").tolist() == [[[0, 0, 0], [255, 0, 0]], [[0, 0, 0], [0, 0, 0]]]


def test_alpha_is_stored_straight_and_unencoded(tmp_path):
    premultiplied = torch.tensor([[[0.25, 0.5, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]]])
    dr.save_image(tmp_path / "a.png", premultiplied)
    assert imageio.imread(tmp_path / "a.png").tolist() == [[[188, 255, 0, 128], [0, 0, 0, 0]]]


def test_data_images_are_not_encoded_and_odd_values_are_clamped():
    image = torch.tensor([[-1.0, 0.5, 2.0, float("nan"), float("inf")]])
    assert image_to_uint8(image, encode="none").tolist() == [[0, 128, 255, 0, 255]]


def test_s02_srgb_curve_has_finite_slopes():
    linear = torch.tensor([-0.01, 0.0, 1e-9, 0.0031308, 0.5, 1.0, 4.0], dtype=F64, requires_grad=True)
    slopes = torch.autograd.grad(dr.linear_to_srgb(linear).sum(), linear)[0]
    assert torch.isfinite(slopes).all()
    assert slopes[:3].tolist() == pytest.approx([12.92] * 3)
    assert float(slopes[4]) == pytest.approx(0.6586, abs=1e-3)
    knee = torch.tensor([0.0031308 - 1e-9, 0.0031308 + 1e-9], dtype=F64)
    low, high = dr.linear_to_srgb(knee).tolist()
    assert high - low < 1e-4
    samples = torch.linspace(0, 1, 101, dtype=F64)
    torch.testing.assert_close(dr.srgb_to_linear(dr.linear_to_srgb(samples)), samples, atol=1e-6, rtol=0)
    black = torch.zeros(3, requires_grad=True)
    assert torch.autograd.grad(dr.srgb_to_linear(black).sum(), black)[0].tolist() == pytest.approx([1 / 12.92] * 3)


@pytest.mark.parametrize(
    ("image", "options", "error", "message"),
    [
        (torch.zeros(2, 4, 4, 3), {}, ValueError, r"\(H, W, 1 to 4\), got \(2, 4, 4, 3\). Save the items of a batch"),
        (np.zeros((4, 4, 3), np.float32), {}, TypeError, "image must be a float tensor, got ndarray"),
        (torch.zeros(4, 4, 5), {}, ValueError, r"got \(4, 4, 5\)"),
        (torch.zeros(4, 4, 3).byte(), {}, TypeError, "image must be a float tensor, got torch.uint8"),
        (torch.zeros(4, 4, 3), {"encode": "gamma"}, ValueError, 'encode must be "srgb" or "none", got \'gamma\''),
    ],
)
def test_save_image_says_what_is_wrong(tmp_path, image, options, error, message):
    with pytest.raises(error, match=message):
        dr.save_image(tmp_path / "a.png", image, **options)
    with pytest.raises(ValueError, match="save_image: path must end in one of"):
        dr.save_image(tmp_path / "a.psd", torch.zeros(2, 2, 3))


# Videos ---------------------------------------------------------------------------------------------------------------


# imageio's ffmpeg reader leaves its pipes to the garbage collector.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_videos_read_back(tmp_path, suffix):
    frames = [np.full((33, 48, 3), 40 + 20 * k, np.uint8) for k in range(6)]
    frames[0][:10] = 255
    save_video(tmp_path / f"a{suffix}", frames, fps=12)
    read = list(imageio.imiter(tmp_path / f"a{suffix}", plugin="FFMPEG" if suffix == ".mp4" else "pillow"))
    assert len(read) == 6
    assert read[0].shape[:2] == ((34, 48) if suffix == ".mp4" else (33, 48))
    assert read[0][2, 5].mean() > 240  # row 0 on top
    assert abs(read[5].mean() - 140) < 6
    gc.collect()  # here, where the warning is expected


def test_videos_take_linear_pictures_as_the_renderer_makes_them(tmp_path):
    frames = torch.stack([torch.full((16, 16, 1), value) for value in (0.0, 0.5, 1.5)]).requires_grad_()
    save_video(tmp_path / "a.gif", frames, fps=10)
    read = list(imageio.imiter(tmp_path / "a.gif", plugin="pillow"))
    assert [int(frame[0, 0, 0]) for frame in read] == [0, 188, 255]  # encoded to sRGB, not stretched


@pytest.mark.parametrize(
    ("frames", "error", "message"),
    [
        ([np.zeros((4, 4, 3))], TypeError, "frames must be float tensors or uint8 arrays, got float64 array"),
        ([torch.zeros(4, 4, 4)], ValueError, r"have shape \(H, W, 3\), .* got \(4, 4, 4\). dr.over puts RGBA over"),
        ([torch.zeros(4, 4, 3), torch.zeros(4, 6, 3)], ValueError, r"one size, got \(4, 4, 3\), but \(4, 6, 3\) at 1"),
    ],
)
def test_videos_say_what_is_wrong_with_a_frame(tmp_path, frames, error, message):
    with pytest.raises(error, match=f"save_video: {message}" if "frames" in message else message):
        save_video(tmp_path / "a.gif", frames)


def test_videos_need_frames_and_a_known_suffix(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="save_video: frames must hold at least one frame, got none"):
        save_video(tmp_path / "a.mp4", [])
    with pytest.raises(ValueError, match="save_video: path must end in .mp4 or .gif"):
        save_video(tmp_path / "a.avi", [])
    assert video_suffix() == ".mp4"
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # what an import then raises
    assert video_suffix() == ".gif"
