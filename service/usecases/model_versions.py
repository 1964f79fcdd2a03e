"""Which version of a model serves: promotion, rollback, what there is, and what may go."""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from service.domain.access import Action, AdminCall
from service.domain.errors import NothingToRollBackTo, ShardwrightError, UnknownModelVersion
from service.domain.version_ports import ModelCatalog, PromotionStore, PrunableCatalog
from service.domain.versions import ANALYTIC, ModelName, Promotion, Standing, Version

_COSTS = ("total", "forward", "forward_transfer", "backward")
"""Costs whose errors a version is told by; those by number of devices are left to its manifest."""

_JUDGED = "cost_by_best_heuristics"


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version, and what its manifest says in short.

    Attributes:
        version: which.
        created_at: when it was trained, ISO 8601; None where that is not said.
        device: what its measurements were made on; None where that is not said.
        metrics: on the held-out part, by kind of metric: ``mape`` of each cost, or of a policy
            ``cost_by_best_heuristics`` of each family of tasks.
        fault: why it cannot be read; None where it can, as far as that was looked at.
    """

    version: Version
    created_at: str | None
    device: str | None
    metrics: Mapping[str, Mapping[str, float]]
    fault: str | None


@dataclass(frozen=True, slots=True)
class Old:
    """A version that is not among the newest.

    Attributes:
        name: its name.
        kept_because: what it is needed for; None where it went.
    """

    name: str
    kept_because: str | None


def promote(
    catalog: ModelCatalog,
    promotions: PromotionStore,
    version: Version,
    by: str,
    reason: str,
    comparison: Mapping[str, Any] | None = None,
) -> Promotion:
    """Has a version serve from now on, once it was found sound; nothing is written where it does already.

    Args:
        catalog: has the version.
        promotions: keeps the decision.
        version: which.
        by: who decides.
        reason: why, for people.
        comparison: what the version was judged by.

    Raises:
        UnknownModelVersion: there is none.
        DamagedArtifact: it cannot be loaded.
        StorageUnavailable: the database cannot be reached; nothing changed.
    """

    def prepare() -> None:
        # Loading may take long, so nobody waits for it.
        _refuse_unknown(catalog, version)
        catalog.check(version)

    with promotions.changing(AdminCall(by, Action.PROMOTE, str(version)), prepare) as change:
        # It may have been pruned meanwhile, and cannot be any more.
        _refuse_unknown(catalog, version)
        standing = change.standing().get(version.of)
        if standing and standing[0].number == version.promoted_as:
            return standing[0]
        return change.add(version, by, reason, comparison)


def rollback(catalog: ModelCatalog, promotions: PromotionStore, model: ModelName, by: str, reason: str) -> Promotion:
    """Has the version serve that served before the one that serves; again, the one before that.

    Raises:
        NothingToRollBackTo: no version served before.
        UnknownModelVersion: there is no such model, or the version is not there any more.
        DamagedArtifact: it cannot be loaded.
        StorageUnavailable: the database cannot be reached; nothing changed.
    """
    # Before the record, which has what there is alone: a name from outside may be what no database can hold.
    _refuse_unknown_model(catalog, model)
    checked: list[Version] = []

    def prepare() -> None:
        version, _ = _served_before(catalog, promotions.standing(), model)
        catalog.check(version)
        checked.append(version)

    with promotions.changing(AdminCall(by, Action.ROLL_BACK, "/".join(model)), prepare) as change:
        version, serving = _served_before(catalog, change.standing(), model)
        if version not in checked:
            # Another change came between.
            catalog.check(version)
        return change.add(version, by, reason, undoes=serving.id)


def _served_before(catalog: ModelCatalog, standing: Standing, model: ModelName) -> tuple[Version, Promotion]:
    """The version that a rollback brings back, and the promotion that it undoes."""
    promotions = standing.get(model, ())
    if len(promotions) < 2:
        raise NothingToRollBackTo(
            f"no version of {'/'.join(model)} served before the one that serves: promote another by its number"
        )
    serving, before = promotions[:2]
    version = numbered(catalog, model, before.number)
    if version is None:
        raise UnknownModelVersion(f"there is no analytic version of {'/'.join(model)} any more: promote another one")
    _refuse_unknown(catalog, version)
    return version, serving


def write_down(
    catalog: ModelCatalog, promotions: PromotionStore, serving: Mapping[ModelName, Version], by: str
) -> None:
    """Makes decisions of what serves without one, so that it goes on serving beside versions that are newer.

    That is where nothing was promoted, or nothing of what was is there any more: a release may ship other versions.

    Raises:
        StorageUnavailable: the database cannot be reached; nothing changed.
    """

    def undecided(standing: Standing) -> list[Version]:
        def there(promotion: Promotion) -> bool:
            version = numbered(catalog, (promotion.hardware, promotion.model), promotion.number)
            return version is not None and catalog.has(version)

        return [serving[model] for model in sorted(serving) if not any(map(there, standing.get(model, ())))]

    if undecided(promotions.standing()):
        with promotions.changing() as change:
            for version in undecided(change.standing()):
                change.add(
                    version, by, "it served without a decision: the newest version, where no promoted one is there"
                )


def serving_version(catalog: ModelCatalog, standing: Standing, model: ModelName) -> Version | None:
    """The version that was promoted last or, without a promotion, the newest; None where there is none."""
    promotions = standing.get(model)
    return numbered(catalog, model, promotions[0].number) if promotions else catalog.newest(*model)


def numbered(catalog: ModelCatalog, model: ModelName, number: int | None) -> Version | None:
    """The version of a promotion; None where it was analytic and there is no analytic one any more."""
    return catalog.analytic(*model) if number is None else Version(*model, number)


def named(catalog: ModelCatalog, hardware: str, model: str, number: str) -> Version:
    """The version of a number as people write it, with ``analytic`` for the analytic one whatever its number.

    Raises:
        UnknownModelVersion: there is none.
    """
    _refuse_unknown_model(catalog, (hardware, model))
    if number == ANALYTIC.removesuffix("-"):
        version = catalog.analytic(hardware, model)
    elif re.fullmatch(rf"({ANALYTIC})?[1-9][0-9]{{0,8}}", number):
        version = Version.parse(f"{hardware}/{model}/{number}")
    else:
        version = None
    if version is None:
        raise _unknown(catalog, (hardware, model), number)
    _refuse_unknown(catalog, version)
    return version


def listed(catalog: ModelCatalog, model: ModelName, load: bool = False) -> list[ListedVersion]:
    """The versions of a model, as ``ModelCatalog.versions`` has them.

    Args:
        catalog: has them.
        model: which.
        load: whether to load each, which takes milliseconds, to find what of its files is damaged beside the manifest.

    Raises:
        UnknownModelVersion: it has none.
    """
    _refuse_unknown_model(catalog, model)
    return [_listed(catalog, version, load) for version in catalog.versions(*model)]


def prune(
    catalog: PrunableCatalog,
    promotions: PromotionStore,
    named_by_plans: AbstractSet[str],
    keep: int,
    dry_run: bool = False,
) -> list[Old]:
    """Deletes trained versions that are not among the newest of their model, and that nobody needs.

    Kept are those that serve, those that a rollback would bring back, and those that are named.

    Args:
        catalog: has the versions.
        promotions: says which serve; none can be promoted meanwhile.
        named_by_plans: names of versions to keep: what they are named by can be priced again by the same models.
        keep: how many of the newest of each model stay, 1 at least: so no number is given out twice.
        dry_run: whether to only look.

    Raises:
        StorageUnavailable: the database cannot be reached; nothing was deleted.
    """
    if keep < 1:
        raise ValueError("the newest version of a model is never pruned")
    with promotions.changing() as change:
        standing = change.standing()
        found = []
        for model in catalog.models():
            newest = [v.number for v in catalog.versions(*model) if not v.analytic][-keep:]
            needed = _needed(standing.get(model, ()))
            # What a prune that was ended midway left of a version has a number, and is none of the versions.
            for number in (n for n in catalog.numbers(*model) if newest and n < newest[0]):
                name = str(Version(*model, number))
                reason = needed.get(number) or ("named by a stored plan" if name in named_by_plans else None)
                found.append(Old(name, reason))
                if reason is None and not dry_run:
                    # Also asks whether nobody can promote still: a transaction that was idle for long is ended.
                    change.standing()
                    catalog.delete(*model, number)
        return found


def _needed(standing: Sequence[Promotion]) -> dict[int | None, str]:
    reasons = ("it serves", "a rollback would bring it back")
    return {p.number: why for p, why in reversed(list(zip(standing, reasons, strict=False)))}


def _refuse_unknown_model(catalog: ModelCatalog, model: ModelName) -> None:
    """Before a name that came from outside leads to any folder."""
    known = catalog.models()
    if model not in known:
        names = ["/".join(name) for name in known]
        raise UnknownModelVersion(f"there is no model {'/'.join(model)}; there are: {', '.join(names)}", known=names)


def _refuse_unknown(catalog: ModelCatalog, version: Version) -> None:
    if not catalog.has(version):
        raise _unknown(catalog, version.of, str(version).rpartition("/")[2])


def _unknown(catalog: ModelCatalog, model: ModelName, number: str) -> UnknownModelVersion:
    known = [str(version) for version in catalog.versions(*model)]
    said = f"there is no version {'/'.join(model)}/{number}; there are: {', '.join(known) or 'none'}"
    return UnknownModelVersion(said, known=known)


def _listed(catalog: ModelCatalog, version: Version, load: bool) -> ListedVersion:
    facts: Mapping[str, Any] = {}
    fault = None
    try:
        facts = {} if version.analytic else catalog.facts(version)
        if load:
            catalog.check(version)
    except ShardwrightError as error:
        fault = error.detail
    return ListedVersion(version, facts.get("created_at"), facts.get("device"), _metrics(facts), fault)


def _metrics(facts: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    judged, held_out = facts.get("metrics", {}), facts.get("held_out", {})
    found = {
        "mape": {name: judged[name]["mape"] for name in _COSTS if name in judged},
        _JUDGED: {family: told[_JUDGED]["policy"] for family, told in held_out.items() if _JUDGED in told},
    }
    return {name: values for name, values in found.items() if values}
