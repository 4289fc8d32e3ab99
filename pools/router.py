"""Which pool drafts for an entity, and why. Pure functions; callers run them over whole tables."""

import hashlib
import re
from dataclasses import dataclass

from pools.errors import PoolError

OVERRIDES = ("auto", "collaborative", "attribute", "global")
GLOBAL = "global"
_LONGEST_SLUG = 48


@dataclass(frozen=True)
class Route:
    """pool       name of the pool, safe as a folder's
    pool_kind  collaborative | attribute | global
    reason     one phrase for the table of routes
    """

    pool: str
    pool_kind: str
    reason: str


def route(
    entity_type: str,
    interactions: int,
    collaborative_group: str | None,
    attribute_group: str | None,
    min_interactions: int,
    override: str = "auto",
) -> Route:
    """Collaborative for entities with history, else attribute, else global.

    entity_type          user | item, for the reason only
    interactions         how many the entity has
    collaborative_group  None: no vector;  attribute_group  None: no usable attribute
    min_interactions     fewer than these say too little for a collaborative group
    override             one of OVERRIDES; where the kind it names has no group for the entity, the other
                         kind serves, then global, and the reason says so

    Raises PoolError for an unknown override.
    """
    if override not in OVERRIDES:
        raise PoolError(f"router override {override!r} for {entity_type}s is unknown: "
                        f"use {', '.join(OVERRIDES)}")
    groups = {"collaborative": collaborative_group, "attribute": attribute_group}
    if override == GLOBAL:
        return Route(GLOBAL, GLOBAL, f"{entity_type}s are set to global")
    if override != "auto":
        if groups[override] is not None:
            return _to(override, groups[override], f"{entity_type}s are set to {override}")
        other = "attribute" if override == "collaborative" else "collaborative"
        missing = f"{entity_type}s are set to {override}, but there is no {override} group"
        if groups[other] is not None:
            return _to(other, groups[other], missing)
        return Route(GLOBAL, GLOBAL, f"{missing} and no {other} group")
    enough = interactions >= min_interactions
    if enough and collaborative_group is not None:
        return _to("collaborative", collaborative_group, f"at least {min_interactions} interactions")
    why = "no collaborative group" if enough else f"fewer than {min_interactions} interactions"
    if attribute_group is not None:
        return _to("attribute", attribute_group, why)
    return Route(GLOBAL, GLOBAL, f"{why} and no attribute group")


def pool_name(kind: str, group: str) -> str:
    """Folder name of a group's pool: the group itself where that is safe, else a slug and a short hash.

    Distinct groups have distinct names, also on file systems that ignore case.
    """
    if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", group) and len(group) <= _LONGEST_SLUG:
        return f"{kind}-{group}"
    slug = re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-")[:_LONGEST_SLUG].strip("-")
    digest = hashlib.sha256(group.encode()).hexdigest()[:8]
    return f"{kind}-{slug}-{digest}" if slug else f"{kind}-{digest}"


def _to(kind: str, group: str, reason: str) -> Route:
    return Route(pool_name(kind, group), kind, reason)
