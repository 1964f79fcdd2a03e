"""What is published about GPUs and a core of a processor, each figure with its source, and what had to be assumed.

Nothing here was measured by this project.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from service.cost_models.operators import CPU_OPERATOR, GPU_OPERATOR, Operator


class Link(StrEnum):
    """What connects the GPUs of a host."""

    NVLINK = "NVLink"
    PCIE = "PCIe"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it was published."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Processor:
    """What the operator runs on.

    Attributes:
        hardware: its name in requests.
        product: the variant that the figures belong to.
        memory_gb_s: peak bandwidth of the memory, GB/s.
        cache_mib: last-level cache, MiB (2^20 bytes).
        operator: what is assumed of the operator on it.
    """

    hardware: str
    product: str
    memory_gb_s: Figure
    cache_mib: Figure
    operator: Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSheet(Processor):
    """Figures of one GPU.

    Attributes:
        memory_gb: device memory in GB as it is printed. Taken as 10^9 bytes, which every card has: nvidia-smi shows
            somewhat more (85.5 of 10^9 on an H100 of 80 GB; modal-client, pull request 2797).
        link: what its collectives run over.
        link_gb_s: peak of one GPU's links together, GB/s in each direction; data sheets print the sum of both.
        exchange_share: share of that peak that an all-to-all between the GPUs of a host reaches.
        exchange_note: what a user must know of that share: the predicate of a sentence about the exchanges.
    """

    memory_gb: Figure
    link: Link
    link_gb_s: Figure
    exchange_share: Figure
    exchange_note: str = ""
    operator: Operator = GPU_OPERATOR


@dataclass(frozen=True, slots=True)
class Assumed:
    """What no data sheet says, taken to be the same everywhere.

    Attributes:
        exchange_latency_ms: all-to-all of a few bytes: 10.5 microseconds by nccl-tests on 8 H20 over NVLink (DeepEP,
            issue 303), and taken for PCIe too.
        domain: GPUs that share such links: those of an HGX board. Larger NVLink domains are not assumed.
        error_factor: nine of ten measured costs are taken to be within this factor of the price, either way. Of what
            is published (docs/decisions/0008) prices were off by 1.1 for an exchange, 1.0 to 2.1 for forward and 1.3
            to 1.8 for the ratio of backward to forward.
        error_shared: ``ErrorLaw.shared`` of these errors. The devices are of one kind: a figure that is wrong is wrong
            for all of them.
    """

    exchange_latency_ms: float = 0.0105
    domain: int = 8
    error_factor: float = 2.0
    error_shared: float = 0.9


_V100_SHEET = (
    "NVIDIA V100 Tensor Core GPU data sheet, https://images.nvidia.com/content/technologies/volta/pdf/"
    "volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_V100_PAPER = "NVIDIA Tesla V100 GPU Architecture, white paper WP-08608-001"
_A100_SHEET = (
    "NVIDIA A100 Tensor Core GPU data sheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A100_PAPER = (
    "NVIDIA A100 Tensor Core GPU Architecture, white paper, https://images.nvidia.com/aem-dam/en-zz/Solutions/"
    "data-center/nvidia-ampere-architecture-whitepaper.pdf"
)
_H100_SHEET = (
    "NVIDIA H100 Tensor Core GPU data sheet, column H100 SXM, https://resources.nvidia.com/en-us-tensor-core/"
    "nvidia-tensor-core-gpu-datasheet"
)
_H100_PAPER = (
    "NVIDIA H100 Tensor Core GPU Architecture, white paper, https://resources.nvidia.com/en-us-tensor-core/"
    "gtc22-whitepaper-hopper"
)
_H200_SHEET = "NVIDIA H200 Tensor Core GPU data sheet, column H200 SXM, https://www.nvidia.com/en-us/data-center/h200/"
_H200_L2 = f"the whole GH100 in: {_H100_PAPER}; CUDA reports it for an H200 (l2CacheSize)"
_B200_SHEET = (
    "NVIDIA DGX B200 data sheet, an eighth of the system, https://resources.nvidia.com/en-us-dgx-systems/"
    "dgx-b200-datasheet"
)
_B200_GUIDE = "NVIDIA Blackwell Tuning Guide, https://docs.nvidia.com/cuda/blackwell-tuning-guide/"
_L4_SHEET = "NVIDIA L4 Tensor Core GPU data sheet, https://www.nvidia.com/en-us/data-center/l4/"
_L4_PAPER = (
    "AD104 in: NVIDIA Ada GPU Architecture, white paper, https://images.nvidia.com/aem-dam/Solutions/geforce/ada/"
    "nvidia-ada-gpu-architecture.pdf"
)

_SWITCHED = Figure(
    0.8,
    "NCCL counts with 20.0 of 25 GB/s a link for V100 and A100, 20.6 of 25 for H100 and 40.1 of 50 for B200: "
    "https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h",
)
_CUBE_MESH = Figure(
    _SWITCHED.value * 7 / 16,
    "six links join the two halves of a DGX-1 (topology: https://github.com/NVIDIA/nccl/issues/671), and over these "
    "six links 16 messages pass in each direction while every GPU sends 7 over its own six; no routing does better",
)
_HOST_MEMORY = Figure(
    18 / 32, "18 GB/s on 4 RTX 4090, PCIe Gen4 x16, without peer-to-peer: https://github.com/NVIDIA/nccl/issues/1603"
)

_SHEETS = (
    DataSheet(
        hardware="v100",
        product="NVIDIA V100 SXM2",
        memory_gb=Figure(32, _V100_SHEET),
        memory_gb_s=Figure(900, _V100_SHEET),
        cache_mib=Figure(6, _V100_PAPER),
        link=Link.NVLINK,
        link_gb_s=Figure(150, f"300 GB/s both ways: {_V100_SHEET}"),
        exchange_share=_CUBE_MESH,
        exchange_note=(
            "are priced as between the 8 GPUs of a DGX-1, which has no switch and where a pair has two of a GPU's six "
            "links, one or none: two devices with one link have two fifths of that speed, those of a host with a "
            "switch (DGX-2) 2.3 times that speed"
        ),
    ),
    DataSheet(
        hardware="a100-40",
        product="NVIDIA A100 SXM4",
        memory_gb=Figure(40, _A100_PAPER),
        memory_gb_s=Figure(1555, _A100_PAPER),
        cache_mib=Figure(40, _A100_PAPER),
        link=Link.NVLINK,
        link_gb_s=Figure(300, f"600 GB/s both ways: {_A100_PAPER}"),
        exchange_share=_SWITCHED,
    ),
    DataSheet(
        hardware="a100-80",
        product="NVIDIA A100 SXM4",
        memory_gb=Figure(80, _A100_SHEET),
        memory_gb_s=Figure(2039, _A100_SHEET),
        cache_mib=Figure(40, _A100_PAPER),
        link=Link.NVLINK,
        link_gb_s=Figure(300, f"600 GB/s both ways: {_A100_SHEET}"),
        exchange_share=_SWITCHED,
    ),
    DataSheet(
        hardware="h100",
        product="NVIDIA H100 SXM5",
        memory_gb=Figure(80, _H100_SHEET),
        memory_gb_s=Figure(3350, _H100_SHEET),
        cache_mib=Figure(50, _H100_PAPER),
        link=Link.NVLINK,
        link_gb_s=Figure(450, f"900 GB/s both ways: {_H100_SHEET}"),
        exchange_share=_SWITCHED,
    ),
    DataSheet(
        hardware="h200",
        product="NVIDIA H200 SXM",
        memory_gb=Figure(141, _H200_SHEET),
        memory_gb_s=Figure(4800, _H200_SHEET),
        cache_mib=Figure(60, _H200_L2),
        link=Link.NVLINK,
        link_gb_s=Figure(450, f"900 GB/s both ways: {_H200_SHEET}"),
        exchange_share=_SWITCHED,
    ),
    DataSheet(
        hardware="b200",
        product="NVIDIA B200 SXM",
        memory_gb=Figure(180, f"1,440 GB: {_B200_SHEET}"),
        memory_gb_s=Figure(8000, f"64 TB/s: {_B200_SHEET}"),
        cache_mib=Figure(126, _B200_GUIDE),
        link=Link.NVLINK,
        link_gb_s=Figure(900, f"14.4 TB/s, both ways: {_B200_SHEET}"),
        exchange_share=_SWITCHED,
    ),
    DataSheet(
        hardware="l4",
        product="NVIDIA L4 PCIe",
        memory_gb=Figure(24, _L4_SHEET),
        memory_gb_s=Figure(300, _L4_SHEET),
        cache_mib=Figure(48, _L4_PAPER),
        link=Link.PCIE,
        link_gb_s=Figure(32, f"PCIe Gen4 x16, 64 GB/s both ways: {_L4_SHEET}"),
        exchange_share=_HOST_MEMORY,
        exchange_note=(
            "are priced as through the memory of the host, at 18 of 32 GB/s as on 4 RTX 4090 with the same links "
            "(NVIDIA/nccl, issue 1603): peer-to-peer had a ninth of that speed there"
        ),
    ),
)

DATA_SHEETS: Mapping[str, DataSheet] = {sheet.hardware: sheet for sheet in _SHEETS}
"""The GPUs that can be priced without a measurement, by their names in requests."""

_CPU_CORE = Processor(
    hardware="cpu-fbgemm",
    product="one thread of a server processor",
    memory_gb_s=Figure(
        25,
        "a core waits for some 40 cache lines of 64 bytes at once, 100 ns each; its socket has 576 GB/s: AMD EPYC 9005 "
        "data sheet, https://www.amd.com/en/products/processors/server/epyc/9005-series.html",
    ),
    cache_mib=Figure(32, "L3 of eight cores: https://www.amd.com/en/products/processors/server/epyc/9005-series.html"),
    operator=CPU_OPERATOR,
)

PROCESSORS: Mapping[str, Processor] = {**DATA_SHEETS, _CPU_CORE.hardware: _CPU_CORE}
"""What compute can be priced on without a measurement: the GPUs, and a processor's thread, whose exchanges no data
sheet tells of."""

ASSUMED = Assumed()
"""The assumptions that all analytic prices share."""
