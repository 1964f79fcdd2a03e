"""The shipped policies keep what their manifests say of tasks of tables that they were not trained on."""

import pytest

from service.domain.plan import LEARNED, Algorithm
from service.profiling.pools import generated_pool
from service.registry.store import ModelStore
from service.settings import Settings
from service.training.policy_evaluation import POLICY, SAMPLED, best_heuristic, evaluated
from service.training.task_families import FAMILIES
from service.usecases.train_policies import PolicyTasks, held_out_tasks

HARDWARE = "cpu-fbgemm"


@pytest.mark.parametrize("family", ["dreamshard-20", "mixed-tight"])
@pytest.mark.parametrize("algorithm", LEARNED)
def test_the_shipped_policies_place_unseen_tables_below_the_heuristics(algorithm: Algorithm, family: str) -> None:
    store = ModelStore(Settings().model_store)
    version = store.latest(HARDWARE, algorithm.value)
    assert version is not None
    manifest, _ = store.read(version)
    tasks = PolicyTasks(families=(FAMILIES[family],))
    assert (manifest["tasks"]["held_out"], manifest["tasks"]["samples"]) == (tasks.held_out, tasks.samples)
    models = store.cost_models(HARDWARE)
    assert manifest["priced_by"] == {"versions": models.versions, "digest": models.digest}
    held_out = held_out_tasks(tasks, generated_pool(), HARDWARE, models)[family]
    found = evaluated(held_out, store.policy(version), tasks.samples)
    for way in (POLICY, SAMPLED, "random"):
        told = manifest["held_out"][family][way]
        assert found[way].costs.mean() == pytest.approx(told["mean_cost_ms"], rel=1e-3)
        assert found[way].dead.sum() == told["dead_ends"]
    assert found[SAMPLED].costs.mean() < 0.97 * found[best_heuristic(found)].costs.mean()
