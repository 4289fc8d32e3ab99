"""The commands on pools and what is learned with them: ``dare-job pools``."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result, show_values
from dare_job.config import options as option_types
from dare_job.config.options import option


@dataclass(frozen=True)
class ExportOptions:
    """Options of ``dare-job pools export``."""

    folder: Path = option("Folder of a pool, or of several, such as OUT/_work/dt=D/pools/entity=user.",
                          argument=True)
    form: Literal["sglang", "arctic", "vllm"] = option(
        "sglang: texts, for its option --speculative-ngram-external-corpus-path. arctic: token ids, for the "
        "suffix cache of ArcticInference. vllm: the same, since its method suffix uses that cache.",
        flag="--format", metavar="FORMAT")
    save: Path = option("Folder to write to; each pool becomes one file.", metavar="FOLDER")
    model: str | None = option("Model whose tokenizer made the pools, for sglang: "
                               f"{option_types.MODEL}.", None)
    trust_remote_code: bool = option_types.trust_remote_code()


@takes(ExportOptions)
def export(args: ExportOptions, as_json: bool) -> None:
    """Write pools for other inference engines, so that they draft from the same groups of texts.

    Each pool becomes a file of JSON lines, one for each text. SGLang reads such a file itself. The suffix
    cache of ArcticInference, which vLLM uses as well, is in memory: docs/how-to/export-pools.md fills it.
    """
    from dare_job.api.export import export as export_pools

    print_result(as_json, lambda: export_pools(args.folder, args.form, args.save, args.model,
                                               args.trust_remote_code), show_values)


@dataclass(frozen=True)
class CorrectionsOptions:
    """Options of ``dare-job pools corrections``."""

    out: str = option("Output folder with at least two published dates.")
    save: Path = option("File of the memory (.npz), which the verifier reads on every host.", metavar="FILE")
    dt: date | None = option("Newest date to learn from. Default: the newest.", None, flag="--date",
                             metavar="YYYY-MM-DD", parse=option_types.day)
    nights: int = option("Number of dates whose new texts are compared with those of the date before.", 7,
                         min=1)
    rows: int = option("Texts of each date and entity type that are compared, at random.", 20_000, min=1)
    same: int = option("Number of tokens after a correction that have to be those of the draft.", 5, min=1)


@takes(CorrectionsOptions)
def corrections(args: CorrectionsOptions, as_json: bool) -> None:
    """Learn which corrections of previous texts recur and change nothing else, for the verifier Corrections.

    Reads the texts of the last dates that were written strictly, or are what strict verification writes.
    """
    from dare_job.evaluate.corrections import run
    from dare_job.observe import log

    log.to_stderr()
    options.writable("--save", args.save)
    print_result(as_json, lambda: run(**vars(args)), show_values)
