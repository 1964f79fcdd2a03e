"""TorchRec trains on Shardwright's plans; needs torchrec, which ``shardwright-client[torchrec]`` names."""

from shardwright_client.torchrec.errors import NotModelled
from shardwright_client.torchrec.modules import ModuleTable, find_tables
from shardwright_client.torchrec.observing import PlanObserver
from shardwright_client.torchrec.placements import to_sharding_plan, to_shards
from shardwright_client.torchrec.planner import ShardwrightPlanner
from shardwright_client.torchrec.questions import Question, model_question
from shardwright_client.torchrec.samples import Lookups, measured_lookups
from shardwright_client.torchrec.serialized import plan_from_json, plan_to_json

__all__ = [
    "Lookups",
    "ModuleTable",
    "NotModelled",
    "PlanObserver",
    "Question",
    "ShardwrightPlanner",
    "find_tables",
    "measured_lookups",
    "model_question",
    "plan_from_json",
    "plan_to_json",
    "to_sharding_plan",
    "to_shards",
]
