"""The classes of the page "Add your method", as a module that commands can import."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-your-method.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def save(folder: Path, name: str = "my_methods") -> Path:
    """Write both classes to a module in a folder."""
    path = folder / f"{name}.py"
    path.write_text("\n\n".join(BLOCKS), encoding="utf-8")
    return path
