"""Retrains the models of a hardware on all that is stored, and has those serve that the gate finds better.

What is not better is not written: a version that is in the model store was found good, or a person asked for it. A
failure changes nothing but the row that says so.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from service.domain.errors import ShardwrightError, UnknownHardware
from service.domain.trainings import MODELS, Ended, Outcome
from service.domain.versions import Version
from service.usecases.model_versions import promote, serving_version, write_down
from service.usecases.retraining_works import Retraining, Work, work

_BY = "retraining"

_REMEMBERED = 20
"""Last outcomes of a model among which one is looked for that did not fail."""

_log = logging.getLogger(__name__)


def retrain(
    job: Retraining, models: Sequence[str] = MODELS, report: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """Retrains models of a hardware one after the other; one process at a time does.

    Args:
        job: with what.
        models: which, of ``MODELS``.
        report: told each outcome once it is stored.

    Raises:
        RetrainingUnderWay: another process retrains models of this hardware.
        UnknownHardware: there is neither a model nor a measurement of it.
        StorageUnavailable: the database cannot be reached, so that no outcome can be stored.
    """
    _refuse_unknown(job)
    found = []
    with job.trainings.alone(job.hardware) as make_sure:
        for model in (name for name in MODELS if name in models):
            _log.info("retraining", extra={"fields": {"hardware": job.hardware, "model": model}})
            outcome = _retrained(job, model, make_sure)
            job.trainings.add(outcome)
            fields = {"hardware": outcome.hardware, "model": model, "outcome": outcome.ended.value}
            _log.info("retrained", extra={"fields": {**fields, "reason": outcome.reason}})
            report(outcome)
            found.append(outcome)
    return found


def _retrained(job: Retraining, model: str, make_sure: Callable[[], None]) -> Outcome:
    """Retrains one model, whatever comes of it."""
    began = job.trainings.now()
    begun = Outcome(job.hardware, model, Ended.FAILED, "", began, began)
    try:
        serving = serving_version(job.models, job.promotions.standing(), (job.hardware, model))
        begun = replace(begun, serving=str(serving) if serving else None)
        outcome = _concluded(job, begun, work(job, model, serving), serving, make_sure)
    except ShardwrightError as error:
        outcome = replace(begun, reason=error.detail)
    except Exception as error:
        # Whatever the training met: what serves is as it was, and the row says what it met.
        _log.exception("a training failed")
        outcome = replace(begun, reason=f"{type(error).__name__}: {error}")
    return replace(outcome, finished_at=job.trainings.now())


def _concluded(
    job: Retraining, begun: Outcome, to_do: Work, serving: Version | None, make_sure: Callable[[], None]
) -> Outcome:
    """Trains, judges, and promotes what is better."""
    begun = replace(begun, basis=to_do.basis)
    if said := _nothing_new(job, begun.model, to_do):
        return replace(begun, ended=Ended.NOTHING_NEW, reason=said)
    job.models.refuse_unwritable()
    trained = to_do.train(begun.started_at)
    verdict = trained.verdict
    judged = replace(begun, ended=Ended.REFUSED, reason=verdict.reason, comparison=verdict.comparison)
    if not verdict.better:
        return judged
    make_sure()
    name = job.hardware, begun.model
    now_serving = serving_version(job.models, job.promotions.standing(), name)
    if now_serving != serving:
        # Without its basis, so that the next training is not taken for the same.
        return replace(judged, reason=f"{now_serving} serves since, which it was not judged beside", basis=None)
    if serving is not None:
        # So that it serves on until the new version is promoted, and can be rolled back to.
        write_down(job.models, job.promotions, {name: serving}, _BY)
    version = job.models.write(*name, trained.arrays, trained.facts)
    promote(job.models, job.promotions, version, _BY, verdict.reason, verdict.comparison)
    return replace(judged, ended=Ended.PROMOTED, trained=str(version))


def _nothing_new(job: Retraining, model: str, to_do: Work) -> str | None:
    """Why training would come to what is known already; None where it might not."""
    if to_do.as_serving:
        return "the serving version was trained on the same"
    last = job.trainings.of_model(job.hardware, model, _REMEMBERED)
    before = next((outcome for outcome in last if outcome.ended is not Ended.FAILED), None)
    same = before is not None and before.basis == to_do.basis
    return "what it would be trained on was trained on before, and judged" if same else None


def _refuse_unknown(job: Retraining) -> None:
    """So that no mistyped name gets outcomes, and metrics, of its own."""
    known, name = sorted({hardware for hardware, _ in job.models.models()}), job.hardware
    if name not in known and not job.measurements.compute(name) and not job.measurements.communication(name):
        raise UnknownHardware(
            f"there is neither a model nor a measurement of hardware {name!r}; there are models of: "
            f"{', '.join(known) or 'none'}",
            known=known,
        )
