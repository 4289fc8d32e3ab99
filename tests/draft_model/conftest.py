"""The tiny models of the tests of decoding are these tests', too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "decode"))
