"""Views shared out over processes: two ranks under torchrun (gloo, on this machine) against one process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import diffrender as dr
from tests.support.lit_scene import poses, weights
from tests.support.two_ranks import VIEWS, Model, gradients

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
ROOT = Path(__file__).resolve().parents[1]


def torchrun(*arguments, cwd=ROOT):
    """Runs two ranks, one thread each, and returns what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    ranks = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, errors = ranks.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(ranks.pid, signal.SIGKILL)
        raise
    assert ranks.returncode == 0, printed[-2000:] + errors[-4000:]
    return printed


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    torchrun("-m", "tests.support.two_ranks", str(out))
    return [torch.load(out / f"rank{k}.pt") for k in (0, 1)]


def single():
    return dr.distributed.Group(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("views", VIEWS)
def test_summed_gradients_are_those_of_one_process(ranks, views):
    """Also with fewer views than ranks. The order of additions differs, so equal but for rounding of float64."""
    whole = gradients(views, single(), slice(0, views))
    for value, other, truth in zip(ranks[0][f"{views} views"], ranks[1][f"{views} views"], whole, strict=True):
        assert truth.any()
        torch.testing.assert_close(value, truth, rtol=1e-10, atol=1e-13)
        assert torch.equal(value, other)


def test_sum_and_broadcast(ranks):
    for found in ranks:
        assert found["sum"] == 3
        assert torch.equal(found["start"], torch.zeros(2, 3))


def test_distributed_data_parallel_gives_the_gradient_of_one_process(ranks):
    model = Model()
    (model(poses(4)) * weights(4)).sum().backward()
    for found in ranks:
        torch.testing.assert_close(found["ddp"], model.vertices.grad, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
def test_the_example_under_torchrun_equals_one_process(tmp_path):
    script = tmp_path / "short.py"
    script.write_text(
        "import os, sys; sys.path.insert(0, 'examples'); import fit_views\n"
        "difference = fit_views.main(sys.argv[1], steps=6)\n"
        "open(f'{sys.argv[1]}.{os.environ.get(\"RANK\", \"0\")}.txt', 'w').write(repr(difference))\n"
    )
    shared = torchrun(str(script), str(tmp_path / "two.png"))
    alone = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "one.png")], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, check=True,
    ).stdout  # fmt: skip
    first = float(alone.split("picture difference ")[1].split()[0])
    results = [
        [float(file.read_text()) for file in sorted(tmp_path.glob(f"{name}.png.*.txt"))] for name in ("two", "one")
    ]
    assert len(results[0]) == 2
    assert len(results[1]) == 1
    assert results[0][0] == results[0][1]
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-3)
    assert results[1][0] < 0.8 * first
    assert "2 processes, 8 views" in shared
    one, two = (dr.load_image(tmp_path / f"{name}.png") for name in ("one", "two"))
    assert one.shape == (96, 288, 3)
    assert (one - two).abs().max() < 0.05


@pytest.mark.slow
def test_the_example_recovers_the_ring(tmp_path):
    printed = torchrun("examples/fit_views.py", str(tmp_path / "two.png"))
    differences = [float(line.split()[-1]) for line in printed.splitlines() if line.startswith("step")]
    assert differences[-1] < 0.05 * differences[0]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 5, 8, 17])
def test_shards_cover_all_views_once(size, count):
    shards = [dr.distributed.Group(rank, size, torch.device("cpu")).shard(count) for rank in range(size)]
    assert [k for shard in shards for k in range(count)[shard]] == list(range(count))
    lengths = [shard.stop - shard.start for shard in shards]
    assert max(lengths) - min(lengths) <= 1


def test_one_process_is_a_group_of_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with dr.distributed.group() as group:
        assert (group.rank, group.size, group.is_first) == (0, 1, True)
        leaf = torch.ones(3, requires_grad=True)
        (2 * leaf).sum().backward()
        group.sum_gradients([leaf])
        group.broadcast([leaf])
        assert leaf.grad.tolist() == [2, 2, 2]
        assert group.sum(leaf).tolist() == [1, 1, 1]
        assert not group.sum(leaf).requires_grad
    assert not torch.distributed.is_initialized()


def test_groups_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"Group.shard: count must be an int of at least 0, got -1"):
        single().shard(-1)
    with pytest.raises(TypeError, match=r"Group.sum_gradients: parameters must be tensors that require grad, got one"):
        single().sum_gradients([torch.ones(2)])
