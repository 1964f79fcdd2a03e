"""Pools of tables: the generated one and the files, and clear errors for files that are wrong."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from service.domain.errors import InvalidInputFile
from service.domain.reuse import reuse_fault, reuse_profile
from service.profiling.dlrm_file import tables_from_dlrm, tables_json
from service.profiling.pools import generated_pool, read_pool
from service.profiling.workload import measured_histogram

HISTOGRAM = [0.5, 0.5] + [0.0] * 15


def write(path: Path, tables: Any) -> Path:
    path.write_text(json.dumps({"tables": tables}))
    return path


def test_the_generated_pool_follows_the_published_statistics() -> None:
    pool = generated_pool()
    rows = np.array([t.num_embeddings for t in pool])
    pooling = np.array([t.pooling_factor for t in pool])
    assert len(pool) == 4_096
    assert 100 <= rows.min() <= 200
    assert rows.max() <= 12_543_670
    assert np.median(rows) == pytest.approx(5.87e6, rel=0.1)
    assert rows.mean() == pytest.approx(3.516e9 / 856, rel=0.1)
    assert np.median(pooling) == pytest.approx(4.57, rel=0.35)
    assert pooling.mean() == pytest.approx(15.81, rel=0.2)
    assert (pooling == 0).mean() == pytest.approx(36 / 856, rel=0.3)
    assert not [t.name for t in pool if reuse_fault(t)]


def test_the_generated_pool_spans_reuse_and_is_the_same_for_a_seed() -> None:
    shares = [p.distinct / p.lookups for p in (reuse_profile(t, 65_536) for t in generated_pool()) if p.lookups]
    assert min(shares) < 0.001
    assert max(shares) > 0.9
    assert generated_pool(50) == generated_pool(50) != generated_pool(50, seed=1)


def test_both_forms_of_files_are_read(tmp_path: Path) -> None:
    ours = {"name": "a", "num_embeddings": 100_000, "embedding_dim": 16, "pooling_factor": 2}
    published = {
        "index": 0,
        "row": 90_000,
        "dim": 8,
        "pooling_factor": 0.5,
        **{f"bin_{i}": f for i, f in enumerate(HISTOGRAM)},
    }
    (first, second), (third,) = (
        read_pool(write(tmp_path / "a.json", [ours, {**ours, "reuse_histogram": HISTOGRAM, "num_features": 2}])),
        read_pool(write(tmp_path / "b.json", [published])),
    )
    assert (first.name, first.pooling_factor, first.reuse_histogram) == ("a", 2.0, None)
    assert second.reuse_histogram is not None
    assert (second.reuse_histogram.batch_size, second.num_features) == (65_536, 2)
    assert (third.num_embeddings, third.embedding_dim) == (90_000, 8)
    assert third.reuse_histogram is not None
    assert list(third.reuse_histogram.fractions) == HISTOGRAM


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_embeddings": 0}, "num_embeddings must be a whole number"),
        ({"num_embeddings": 2.5}, "num_embeddings must be a whole number"),
        ({"embedding_dim": None}, "embedding_dim must be a whole number"),
        ({"pooling_factor": -1}, "pooling_factor must be a number"),
        ({"pooling_factor": float("nan")}, "pooling_factor must be a number"),
        ({"reuse_histogram": [0.5] * 17}, "sum to 1"),
        ({"reuse_histogram": [1.0]}, "17 fractions"),
        ({"reuse_histogram": "no"}, "list of 17"),
        ({"reuse_histogram": [1.0] + [0.0] * 16, "num_embeddings": 10}, "distinct ids"),
    ],
)
def test_a_wrong_table_is_named_with_its_field(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    good = {"name": "a", "num_embeddings": 1000, "embedding_dim": 16, "pooling_factor": 2.0}
    path = write(tmp_path / "pool.json", [good, {**good, **change}])
    with pytest.raises(InvalidInputFile, match=r"tables\[1\]") as error:
        read_pool(path)
    assert said in error.value.detail


@pytest.mark.parametrize("text", ["", "[]", '{"tables": []}', '{"tables": [3]}'])
def test_a_file_without_tables_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pool.json"
    path.write_text(text)
    with pytest.raises(InvalidInputFile, match=r"pool\.json"):
        read_pool(path)
    with pytest.raises(InvalidInputFile, match=r"nowhere\.json"):
        read_pool(tmp_path / "nowhere.json")


def dlrm_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two tables and three samples: bags of 2, 0, 1 and of 1, 1, 1 lookups."""
    lengths = torch.tensor([[2, 0, 1], [1, 1, 1]])
    return torch.tensor([5, 5, 9, 0, 0, 2]), torch.tensor([0, 2, 2, 3, 4, 5, 6]), lengths


@pytest.mark.parametrize("suffix", [".pt", ".pt.gz"])
def test_a_dlrm_file_becomes_tables_with_measured_reuse(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"batch{suffix}"
    torch.save(dlrm_batch(), path)
    if suffix.endswith("gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    first, second = tables_from_dlrm(path, embedding_dim=32)
    assert (first.num_embeddings, first.embedding_dim, first.pooling_factor, first.distinct_rows) == (10, 32, 1.0, 2.0)
    assert (second.num_embeddings, second.pooling_factor, second.distinct_rows) == (3, 1.0, 2.0)
    assert first.reuse_histogram is not None
    assert first.reuse_histogram.batch_size == 3
    assert first.reuse_histogram.fractions == measured_histogram(np.array([5, 5, 9]))
    assert read_pool(write(tmp_path / "tables.json", tables_json([first, second])["tables"])) == (first, second)


def test_a_dlrm_table_without_lookups_is_legal(tmp_path: Path) -> None:
    path = tmp_path / "batch.pt"
    torch.save((torch.tensor([1]), torch.tensor([0, 1, 1]), torch.tensor([[1], [0]])), path)
    empty = tables_from_dlrm(path, embedding_dim=8)[1]
    assert (empty.num_embeddings, empty.pooling_factor, empty.distinct_rows) == (1, 0.0, None)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2, 3],
        (torch.tensor([1]), torch.tensor([0, 1])),
        (torch.tensor([1]), torch.tensor([0, 1]), torch.tensor([1])),
        (torch.tensor([1, 2]), torch.tensor([0, 1]), torch.tensor([[1]])),
        (torch.tensor([1]), torch.tensor([0, 1]), torch.tensor([[2]])),
        (torch.tensor([-1]), torch.tensor([0, 1]), torch.tensor([[1]])),
        (torch.tensor([1.0]), torch.tensor([0, 1]), torch.tensor([[1]])),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "batch.pt"
    torch.save(content, path)
    with pytest.raises(InvalidInputFile, match=r"batch\.pt"):
        tables_from_dlrm(path, embedding_dim=8)


def test_bytes_that_are_no_torch_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "junk.pt"
    for junk in (b"", b"hello", b"PK\x03\x04junk", b"\x80\x02junk"):
        path.write_bytes(junk)
        with pytest.raises(InvalidInputFile, match=r"junk\.pt"):
            tables_from_dlrm(path, embedding_dim=8)


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"call": print}, path)
    with pytest.raises(InvalidInputFile, match="cannot be read as torch tensors"):
        tables_from_dlrm(path, embedding_dim=8)
