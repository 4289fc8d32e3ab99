"""Routing: which pool supplies drafts for an entity, and why. Pure functions, applied to whole tables."""

import hashlib
import re
from dataclasses import dataclass

from pools import PoolError

OVERRIDES = ("auto", "collaborative", "attribute", "global")
GLOBAL = "global"
_MAX_SLUG = 48


@dataclass(frozen=True)
class Route:
    """The pool of one entity.

    Attributes
    ----------
    pool
        Name of the pool, safe as a folder name.
    pool_kind
        Collaborative, attribute or global.
    reason
        Short explanation for the table of routes.
    """

    pool: str
    pool_kind: str
    reason: str


def route(entity_type: str, interactions: int, collaborative_group: str | None, attribute_group: str | None,
          min_interactions: int, override: str = "auto") -> Route:
    """Choose the collaborative pool for entities with enough interactions, else attribute, else global.

    Parameters
    ----------
    entity_type
        User or item, used in the reason only.
    interactions
        Number of interactions of the entity.
    collaborative_group
        Group of the entity's embedding; None: no embedding.
    attribute_group
        Group of the entity's attributes; None: no usable attribute.
    min_interactions
        Minimum number of interactions for a collaborative pool.
    override
        One of OVERRIDES. If the entity has no group of that kind, the other kind is used, then global.

    Raises
    ------
    PoolError
        The override is unknown.
    """
    if override not in OVERRIDES:
        raise PoolError(f"router override {override!r} for {entity_type}s is unknown: "
                        f"use one of {', '.join(OVERRIDES)}")
    groups = {"collaborative": collaborative_group, "attribute": attribute_group}
    if override == GLOBAL:
        return Route(GLOBAL, GLOBAL, f"{entity_type}s are set to global")
    if override != "auto":
        if groups[override] is not None:
            return _route_to(override, groups[override], f"{entity_type}s are set to {override}")
        other = "attribute" if override == "collaborative" else "collaborative"
        missing = f"{entity_type}s are set to {override}, but there is no {override} group"
        if groups[other] is not None:
            return _route_to(other, groups[other], missing)
        return Route(GLOBAL, GLOBAL, f"{missing} and no {other} group")
    has_history = interactions >= min_interactions
    if has_history and collaborative_group is not None:
        return _route_to("collaborative", collaborative_group, f"at least {min_interactions} interactions")
    why = "no collaborative group" if has_history else f"fewer than {min_interactions} interactions"
    if attribute_group is not None:
        return _route_to("attribute", attribute_group, why)
    return Route(GLOBAL, GLOBAL, f"{why} and no attribute group")


def pool_name(kind: str, group: str) -> str:
    """Folder name of a group's pool: the group name if it is safe, else a slug and a short hash.

    Distinct groups get distinct names, also on case-insensitive file systems.
    """
    if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", group) and len(group) <= _MAX_SLUG:
        return f"{kind}-{group}"
    slug = re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-")[:_MAX_SLUG].strip("-")
    digest = hashlib.sha256(group.encode()).hexdigest()[:8]
    return f"{kind}-{slug}-{digest}" if slug else f"{kind}-{digest}"


def _route_to(kind: str, group: str, reason: str) -> Route:
    return Route(pool_name(kind, group), kind, reason)
