import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("decode", "sampling")]
