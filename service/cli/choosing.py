"""The models that choose what an active campaign measures next."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import typer

from service.cli.common import fail
from service.domain.errors import TooFewMeasurements
from service.domain.ports import CostModels, MeasurementStore
from service.domain.versions import COMMUNICATION, COMPUTE, Version
from service.profiling.active import Chooser
from service.profiling.campaign import CampaignSettings
from service.registry.store import ModelStore
from service.training.compute_trainer import ComputeTraining
from service.usecases.train_models import fit_compute

LEAST_S = 240.0
"""Seconds that must be left to train anew: a training takes one or two minutes, and a round that uses it as long."""


class Choosers:
    """The newest models of some hardware; the compute model is trained anew as measurements come in.

    What is trained here is never served: it is gone with the command. Where the stored measurements are too few to
    train on, the models stay as they are.

    Args:
        models: keeps the version that the first rounds are chosen by.
        settings: of the campaign, for what is measured.
        campaign: its name.
        measurements: all that are stored, those of this campaign among them.
        retrain_every: measurements of the campaign that the compute model has not learnt from after which it is
            trained anew; 0 never does.
    """

    def __init__(
        self,
        models: ModelStore,
        settings: CampaignSettings,
        campaign: str,
        measurements: MeasurementStore,
        retrain_every: int,
    ) -> None:
        hardware, device = settings.hardware, settings.device
        for kind in (COMPUTE, COMMUNICATION):
            if not (models.latest if kind == COMPUTE else models.newest)(hardware, kind):
                fail(
                    f"shardwright: --active: no {kind} version of {hardware} was trained: run `shardwright profile "
                    f"--device {device} --hardware {hardware}` without --active, then `shardwright train {kind} "
                    f"--hardware {hardware}`"
                )
        self._hardware = hardware
        self._campaign = campaign
        self._measurements = measurements
        self._retrain_every = retrain_every
        newest = models.cost_models(hardware)
        version = newest.compute.version
        manifest, _ = models.read(Version.parse(version))
        self._current = Chooser(newest, f"{version}, {newest.digest[:12]}", _learnt(manifest))
        self._trained_at = self._current.learnt.get(campaign, 0)

    def __call__(self, measured: int, left_s: float) -> Chooser:
        """The models for the next round, with so many measurements of the campaign stored and so many seconds left."""
        if self._retrain_every and measured - self._trained_at >= self._retrain_every and left_s >= LEAST_S:
            self._trained_at = measured
            self._retrain()
        return self._current

    def _retrain(self) -> None:
        stored = self._measurements.compute(self._hardware)
        typer.echo(f"the compute model is trained anew, {len(stored)} combinations are stored", err=True)
        try:
            fitted = fit_compute(self._hardware, stored, ComputeTraining(), datetime.now(UTC))
        except TooFewMeasurements as error:
            typer.echo(f"shardwright: the models go on choosing as they are: {error.detail}", err=True)
            return
        fingerprint = fitted.facts["data"]["fingerprint"]
        models = CostModels(fitted.model, self._current.models.communication, fingerprint)
        name = f"trained anew on {fitted.rows['train']} combinations, {fingerprint[:12]}"
        self._current = Chooser(models, name, _learnt(fitted.facts))


def _learnt(manifest: Mapping[str, Any]) -> dict[str, int]:
    return {name: told["rows"] for name, told in manifest["campaigns"].items()}
