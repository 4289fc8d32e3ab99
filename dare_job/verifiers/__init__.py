"""Lossy verifiers from newer papers, as plug-ins: ``verify.rule: dare_job.verifiers:Mars(theta=0.9)``.

Each accepts some draft tokens that are not the argmax. What that costs is measured by the run itself
(``publish/loss``) and by ``dare-job curve``.
"""

from dare_job.verifiers.corrections import Corrections
from dare_job.verifiers.fly import Fly
from dare_job.verifiers.mars import Mars

__all__ = ["Corrections", "Fly", "Mars"]
