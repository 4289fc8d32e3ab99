"""What two snapshots were written with that is not the same: model, tokenizer, prompts, settings."""

from dataclasses import dataclass

from dare_job.tables import ENTITIES


@dataclass(frozen=True)
class Change:
    """``what`` was ``before`` and is ``after``; a setting's ``what`` is its key."""

    what: str
    before: object
    after: object
    setting: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {_short(self.before)} -> {_short(self.after)}"


def changes(before: dict, after: dict) -> list[Change]:
    """Of two manifests. Settings are compared by key where both hold them, else by their digest."""
    pairs = [("model", _model(before), _model(after)),
             ("tokenizer", before.get("tokenizer"), after.get("tokenizer"))]
    pairs += [(f"{entity} prompt", *(found.get("prompts", {}).get(entity) for found in (before, after)))
              for entity in ENTITIES]
    found = [Change(*pair) for pair in pairs if pair[1] != pair[2]]
    if "settings" in before and "settings" in after:
        then, now = flat(before["settings"]), flat(after["settings"])
        keys = [key for key in sorted(then | now) if then.get(key) != now.get(key)]
        return found + [Change(key, then.get(key), now.get(key), True) for key in keys]
    if before.get("config") != after.get("config"):
        found.append(Change("settings (which ones is not known: an older version of dare-job published)",
                            before.get("config"), after.get("config")))
    return found


def flat(settings: dict, above: str = "") -> dict:
    """Settings by their keys as ``--set`` takes them: {"decode.nodes": 8}."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{above}{name}.")
        else:
            found[above + name] = value
    return found


def _model(manifest: dict):
    """Name and hash: a folder's files may change under one name."""
    model = manifest.get("model", {})
    return model and f"{model.get('name')} ({str(model.get('hash'))[:12]})"


def _short(value) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:12]}..."
