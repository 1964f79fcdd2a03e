"""From modules, constraints and samples of TorchRec to what the service is asked."""

from typing import Any

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.types import CustomTopologyData
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CommOp, QuantizedCommCodecs
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.optim import LAMB, RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from service.domain.id_counts import bin_of
from service.domain.reuse import reuse_fault
from service.domain.tables import ReuseHistogram, Table
from shardwright_client.errors import InvalidArgument
from shardwright_client.torchrec import NotModelled, Question, find_tables, measured_lookups, model_question
from tests.client.adapter.models import FEATURES, Model, batch, collection, config, sharder, topology

pytestmark = pytest.mark.filterwarnings("ignore")


def _asked(module: nn.Module, **options: Any) -> Question:
    tables = find_tables(module, [sharder()])
    return model_question(tables, topology(2, ddr_cap=10**9), 6, "fake", **options)


def test_a_model_on_the_meta_device_is_asked_with_names_of_its_own() -> None:
    question = _asked(Model("meta"))
    assert question.request == _asked(Model()).request
    assert [(table.path, table.table) for table in question.tables] == [
        ("first", "cat"), ("first", "dog"), ("first", "cow"), ("second.inner", "cat"),
    ]  # fmt: skip
    assert [table["name"] for table in question.request["tables"]] == ["first/cat", "dog", "cow", "second.inner/cat"]
    assert question.request["tables"][1] == {
        "name": "dog", "num_embeddings": 30, "embedding_dim": 16, "pooling_factor": 2.0, "num_features": 2,
        "pooling_mode": "sum", "data_type": "fp32",
    }  # fmt: skip
    assert question.request["tables"][2]["pooling_mode"] == "mean"
    assert question.request["devices"] == {"count": 2, "memory_bytes": 10**9, "hardware": "fake"}
    assert question.request["global_batch_size"] == 12


def test_a_name_that_another_table_takes_is_told_apart() -> None:
    first = collection(config("t", ["a"]), config("y/t", ["b"]), device="meta")
    module = nn.ModuleDict({"x": first, "y": collection(config("t", ["a"]), device="meta")})
    names = [table.name for table in find_tables(module, [sharder()])]
    assert names == ["x/t", "y/t", "y/t'"]


def test_memory_is_each_ranks_own_on_its_device() -> None:
    tables = find_tables(Model("meta"), [sharder()])
    own = CustomTopologyData(data={"hbm_cap": [5, 7]}, world_size=2)
    unlike = model_question(tables, topology(2, "cuda", custom_topology_data=own), 6, "fake")
    assert unlike.request["devices"]["memory_bytes"] == [5, 7]


def test_constraints_say_pooling_and_what_a_plan_may_do() -> None:
    constraints = {
        "dog": ParameterConstraints(pooling_factors=[2.0, 5.5], min_partition=8),
        "cow": ParameterConstraints(sharding_types=["table_wise", "row_wise"], compute_kernels=["fused", "dense"]),
    }
    request = _asked(Model("meta"), constraints=constraints, further={"constraints": {"pin": {"dog": [1]}}}).request
    assert [table["pooling_factor"] for table in request["tables"]] == [1.0, 7.5, 1.0, 1.0]
    limits = request["constraints"]
    assert (limits["sharding_types"], limits["min_shard_dim"], limits["pin"]) == (["table_wise"], 8, {"dog": [1]})


def test_further_members_are_sent_and_replace() -> None:
    request = _asked(Model("meta"), further={"seed": 3, "algorithm": "random", "global_batch_size": 7}).request
    assert (request["seed"], request["algorithm"], request["global_batch_size"]) == (3, "random", 7)


def test_samples_are_counted_as_the_service_counts() -> None:
    random = np.random.default_rng(3)
    rows, samples, pooled = 200_000, 4096, 5
    ids = np.minimum(random.zipf(1.2, samples * pooled), rows) - 1
    halves = [
        KeyedJaggedTensor.from_lengths_sync(["f"], torch.from_numpy(half), torch.full((samples // 2,), pooled))
        for half in np.split(ids, 2)
    ]
    tables = find_tables(collection(config("t", ["f"], rows=rows)), [sharder()])
    found = measured_lookups(tables, halves)["t"]
    counts = np.unique(ids, return_counts=True)[1]
    by_bin = np.bincount(bin_of(counts), minlength=17)
    assert by_bin[0] > 0
    assert by_bin[9:].sum() > 0
    assert (found.pooling_factor, found.distinct_rows, found.histogram.batch_size) == (pooled, len(counts), samples)
    assert found.histogram.fractions == pytest.approx(by_bin / len(counts))
    told = Table(
        "t", rows, 16, found.pooling_factor, distinct_rows=found.distinct_rows,
        reuse_histogram=ReuseHistogram(samples, tuple(found.histogram.fractions)),
    )  # fmt: skip
    assert reuse_fault(told) is None


@pytest.mark.parametrize(("count", "expected"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (2**15, 15), (2**15 + 1, 16)])
def test_the_edges_of_bins(count: int, expected: int) -> None:
    tables = find_tables(collection(config("t", ["f"])), [sharder()])
    ids = torch.full((count,), 7)
    sample = KeyedJaggedTensor.from_lengths_sync(["f"], ids, torch.tensor([count]))
    fractions = measured_lookups(tables, [sample])["t"].histogram.fractions
    assert [i for i, fraction in enumerate(fractions) if fraction == 1.0] == [expected]


def test_features_of_a_table_are_counted_together_and_none_is_no_lookup() -> None:
    tables = find_tables(collection(config("t", ["f", "g"]), config("u", ["h"])), [sharder()])
    ids, lengths = torch.tensor([1, 1, 2, 1]), torch.tensor([1, 2, 0, 1, 0, 0])
    sample = KeyedJaggedTensor.from_lengths_sync(["f", "g", "h"], ids, lengths)
    found = measured_lookups(tables, [sample])
    assert (found["t"].pooling_factor, found["t"].distinct_rows) == (2.0, 2.0)
    assert found["t"].histogram.fractions[:3] == (0.5, 0.0, 0.5)
    assert (found["u"].pooling_factor, found["u"].distinct_rows) == (0.0, 0.0)
    assert not any(found["u"].histogram.fractions)


@pytest.mark.parametrize(
    ("ids", "key", "said"),
    [
        ([50], "f", "ids from 50 to 50 of feature 'f', but table 't' of module '(the model)' has rows 0 to 49"),
        ([-1], "f", "ids from -1"),
        ([1], "g", "lack feature 'f' of table 't' of module '(the model)'; feature 'f2' of table 'u'"),
    ],
)
def test_samples_that_are_not_the_models(ids: list[int], key: str, said: str) -> None:
    tables = find_tables(collection(config("t", ["f"]), config("u", ["f2"])), [sharder()])
    keys = [key] if key == "g" else [key, "f2"]
    sample = KeyedJaggedTensor.from_lengths_sync(keys, torch.tensor(ids * len(keys)), torch.ones(len(keys)).int())
    with pytest.raises(InvalidArgument) as caught:
        measured_lookups(tables, [sample])
    assert said in str(caught.value)


def test_samples_of_another_kind_are_refused() -> None:
    tables = find_tables(collection(config("t", ["f"])), [sharder()])
    sample = KeyedJaggedTensor.from_lengths_sync(["f"], torch.tensor([1]), torch.tensor([1]))
    unlike = KeyedJaggedTensor(
        ["f", "g"], torch.tensor([1, 1]), lengths=torch.ones(3).int(), stride_per_key_per_rank=[[1], [2]]
    )
    for samples, said in (
        (sample, "samples must be a list of KeyedJaggedTensors, are a KeyedJaggedTensor"),
        (iter([sample]), "are a list_iterator"),
        ([sample, torch.ones(2)], "one of them is a Tensor"),
        ([unlike], "variable batches are not modelled"),
        ([], "must have one sample at least"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            measured_lookups(tables, samples)  # type: ignore[arg-type]


def test_samples_of_a_model_are_its_question() -> None:
    tables = find_tables(Model("meta"), [sharder()])
    samples = [batch(0, rank).features for rank in range(2)]
    request = _asked(Model("meta"), lookups=measured_lookups(tables, samples)).request
    assert all(table["reuse_histogram"]["batch_size"] == 12 for table in request["tables"])
    lookups = {feature: sum(len(sample[feature].values()) for sample in samples) for feature in FEATURES}
    assert request["tables"][1]["pooling_factor"] == (lookups["f_dog_1"] + lookups["f_dog_2"]) / 12


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (EmbOptimType.EXACT_SGD, "sgd"),
        (EmbOptimType.EXACT_ROWWISE_ADAGRAD, "rowwise_adagrad"),
        (EmbOptimType.EXACT_ADAGRAD, "adagrad"),
        (EmbOptimType.ADAM, "adam"),
    ],
)
def test_the_sharders_optimizer_is_asked_for(kind: EmbOptimType, name: str) -> None:
    tables = find_tables(Model("meta"), [sharder(kind)])
    assert model_question(tables, topology(2, "cuda"), 6, "fake").request["optimizer"] == name


def test_the_optimizer_in_backward_precedes_the_sharders() -> None:
    module = Model("meta")
    apply_optimizer_in_backward(RowWiseAdagrad, module.first.parameters(), {"lr": 0.1})
    with pytest.raises(NotModelled, match="one optimizer, but cow has rowwise_adagrad"):
        _asked(module)
    apply_optimizer_in_backward(RowWiseAdagrad, module.second.parameters(), {"lr": 0.1})
    assert _asked(module).request["optimizer"] == "rowwise_adagrad"
    assert _asked(module, optimizer="adagrad").request["optimizer"] == "adagrad"


def test_an_optimizer_without_a_model_is_refused() -> None:
    module = collection(config("t", ["f"]), device="meta")
    apply_optimizer_in_backward(LAMB, module.parameters(), {"lr": 0.1})
    with pytest.raises(NotModelled, match=r"table 't' of module .* is trained by lamb: modelled are"):
        _asked(module)


def test_an_optimizers_name_in_its_place_is_refused() -> None:
    named: Any = "sgd"
    tables = find_tables(collection(config("t", ["f"]), device="meta"), [sharder(named)])
    with pytest.raises(NotModelled, match=r"table 't' of .* optimizer='sgd': give an EmbOptimType, for example Emb"):
        model_question(tables, topology(2), 6, "fake")


def test_two_optimizers_of_one_table_are_refused() -> None:
    module = collection(config("t", ["f"]), device="meta")
    for kind in (RowWiseAdagrad, LAMB):
        apply_optimizer_in_backward(kind, module.parameters(), {"lr": 0.1})
    with pytest.raises(
        NotModelled, match=r"table 't' of module .* has 2 optimizers in backward \(RowWiseAdagrad, LAMB\)"
    ):
        _asked(module)


def test_without_any_the_operator_trains_by_sgd() -> None:
    tables = find_tables(Model("meta"), get_default_sharders())
    assert model_question(tables, topology(2), 6, "fake").request["optimizer"] == "sgd"


def test_unpooled_tables_are_refused_where_a_sharder_would_take_them() -> None:
    unpooled = EmbeddingCollection(
        tables=[EmbeddingConfig(name="t", num_embeddings=10, embedding_dim=16, feature_names=["f"])],
        device=torch.device("meta"),
    )
    module = nn.ModuleDict({"pooled": Model("meta"), "unpooled": unpooled})
    assert len(find_tables(module, [sharder()])) == 4
    with pytest.raises(NotModelled, match=r"module 'unpooled' is a EmbeddingCollection: .* Leave out its sharder"):
        find_tables(module, [sharder(), EmbeddingCollectionSharder()])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data_type": DataType.INT8}, "has data_type INT8: modelled are fp32, fp16 and bf16"),
        ({"dim": 18}, "has 18 columns: modelled are multiples of 4"),
        ({"num_embeddings_post_pruning": 10}, "is a virtual or pruned table"),
    ],
)
def test_tables_without_a_model_are_refused(changes: Any, said: str) -> None:
    module = nn.ModuleDict({"m": collection(config("t", ["f"], **changes), device="meta")})
    with pytest.raises(NotModelled) as caught:
        find_tables(module, [sharder()])
    assert f"table 't' of module 'm' {said}" in str(caught.value)


def test_every_table_without_a_model_is_named_but_for_many() -> None:
    tables = [config(f"t{i}", [f"f{i}"], dim=18) for i in range(8)]
    with pytest.raises(NotModelled) as caught:
        find_tables(collection(*tables, device="meta"), [sharder()])
    assert "table 't0' of module" in str(caught.value)
    assert "table 't4' of module" in str(caught.value)
    assert str(caught.value).endswith("; and 3 more")


def test_a_collection_is_looked_through_as_often_however_many_tables_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, looks = sharder(), []
    shardable = asked.shardable_parameters

    def counted(module: Any) -> Any:
        looks.append(module)
        return shardable(module)

    monkeypatch.setattr(asked, "shardable_parameters", counted)
    module = collection(*(config(f"t{i}", [f"f{i}"]) for i in range(9)), device="meta")
    found = [table.parameter for table in find_tables(module, [asked])]
    assert [parameter.shape for parameter in found if parameter is not None] == [(50, 16)] * 9
    assert len(looks) == 2


def test_what_the_operator_lacks_on_a_cpu_is_refused() -> None:
    module = collection(config("t", ["f"], data_type=DataType.BF16), config("u", ["g"]), device="meta")
    with pytest.raises(NotModelled, match=r"table 't' of .* has data_type bf16: FBGEMM's operator has none on a CPU"):
        _asked(module)
    with pytest.raises(NotModelled, match="no adam on a CPU"):
        _asked(Model("meta"), optimizer="adam")
    tables = find_tables(module, [sharder(EmbOptimType.ADAM)])
    asked = model_question(tables, topology(2, "cuda"), 6, "fake").request
    assert (asked["tables"][0]["data_type"], asked["optimizer"]) == ("bf16", "adam")


def test_no_table_is_no_question() -> None:
    with pytest.raises(InvalidArgument, match="no table to ask about"):
        model_question(find_tables(Model("meta"), []), topology(2), 6, "fake")


def test_memory_that_is_all_reserved_is_told() -> None:
    tables = find_tables(Model("meta"), [sharder()])
    with pytest.raises(InvalidArgument, match=r"no memory of rank 0 is left for tables: .*ddr_cap"):
        model_question(tables, topology(2, ddr_cap=0), 6, "fake")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (ParameterConstraints(sharding_types=["row_wise"]), "table 'dog' of module 'first' to be sharded row_wise"),
        (ParameterConstraints(compute_kernels=["fused_uvm"]), "compute_kernels without 'fused'"),
        (ParameterConstraints(num_poolings=[1.0, 2.0]), "variable batches are not modelled"),
        (ParameterConstraints(device_group="cuda"), "a device_group other than 'cpu'"),
        (ParameterConstraints(use_virtual_table=True), "virtual tables are not modelled"),
        (ParameterConstraints(pooling_factors=[1.0, 2.0, 3.0]), "has 2 features but constraints with 3"),
    ],
)
def test_constraints_without_a_model_are_refused(rule: ParameterConstraints, said: str) -> None:
    with pytest.raises(NotModelled) as caught:
        _asked(Model("meta"), constraints={"dog": rule})
    assert said in str(caught.value)


def _own_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("shardwright_client")]


def test_outputs_and_exchanges_that_are_narrow_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def told(**options: Any) -> str:
        caplog.clear()
        constraints = options.pop("constraints", None)
        asked = EmbeddingBagCollectionSharder(**options)
        model_question(find_tables(Model("meta"), [asked]), topology(2), 6, "fake", constraints=constraints)
        return "".join(_own_warnings(caplog))

    def codecs(precision: CommType, *operations: CommOp) -> Any:
        config = QCommsConfig(backward_precision=precision)
        return get_qcomm_codecs_registry(config, list(operations) or None, torch.device("cpu"))

    everywhere = "qcomm_codecs_registry say otherwise of first/cat; dog; cow; second.inner/cat"
    assert everywhere in told(fused_params={"output_dtype": SparseType.FP16})
    assert everywhere in told(qcomm_codecs_registry=codecs(CommType.FP16))
    narrow = ParameterConstraints(output_dtype=DataType.BF16)
    constrained = told(constraints={"dog": narrow, "cow": ParameterConstraints()})
    assert constrained.endswith("qcomm_codecs_registry say otherwise of dog")
    wide = ParameterConstraints(output_dtype=DataType.FP32)
    assert not told(constraints={"dog": wide}, fused_params={"output_dtype": SparseType.FP32})
    assert not told(qcomm_codecs_registry=codecs(CommType.FP16, CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL))
    assert not told(qcomm_codecs_registry={CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL.name: QuantizedCommCodecs()})


@pytest.mark.parametrize(
    ("hardware", "device", "warned"),
    [
        ("h100", "cpu", True), ("a100-80", "cpu", True), ("cpu-fbgemm", "cuda", True), ("h100", "cuda", False),
        ("cpu-fbgemm", "cpu", False), ("xeon", "cpu", False), ("mi300", "cuda", False),
    ],
)  # fmt: skip
def test_hardware_of_another_kind_is_told_of(
    caplog: pytest.LogCaptureFixture, hardware: str, device: str, warned: bool
) -> None:
    model_question(find_tables(Model("meta"), [sharder()]), topology(2, device), 6, hardware)
    said = f"compute_device is {device}, but costs are predicted for hardware {hardware}"
    assert (said in caplog.text) is warned


def test_an_optimizer_that_is_not_the_models_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    _asked(Model("meta"), optimizer="sgd")
    assert not _own_warnings(caplog)
    assert _asked(Model("meta"), optimizer="adagrad").request["optimizer"] == "adagrad"
    assert "for optimizer adagrad, as given, but tables and sharders say sgd" in caplog.text
