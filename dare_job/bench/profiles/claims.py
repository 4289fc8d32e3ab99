"""How true a writer's texts are: titles that the user's history has, and genres that the named films have."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from dare_job.bench.cli import command
from dare_job.bench.profiles import data, writer_texts
from dare_job.bench.profiles.data import Film
from dare_job.config.options import option
from dare_job.data.titles import named, title_variants
from dare_job.errors import DataError

_QUOTED = re.compile(r'"([^"]{2,70}?)[,.]?"')


@dataclass(frozen=True)
class Options:
    """Options of ``bench writer-claims``."""

    data: Path = option("Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m.",
                        envvar="DARE_DATA")
    knowledge: Path = option("Published texts of users: OUT/knowledge/entity=user/dt=D.")
    ids_from: int = option("Number to add to a user id of the profiles to get that of the texts: 1 for "
                           "MovieLens ids, 0 for bench two-date-input.", 1)


@dataclass(frozen=True)
class ClaimCounts:
    """Counts of one text: titles in quotation marks, those of its user's history, claims, and true claims."""

    quoted: int
    in_history: int
    claims: int
    true: int


def count_claims(text: str, films: Sequence[Film]) -> ClaimCounts:
    """Count the titles and claims of a text, and those that its user's films support.

    A claim is a film that a sentence names beside genres. It is true if the film has all of the sentence's
    genres; a title that the history lacks is no true claim.
    """
    by_name = {title_variants(film.title)[0]: film for film in films if title_variants(film.title)}
    titles = [film.title for film in films]
    quoted = in_history = claims = true = 0
    for sentence in writer_texts.sentences(text):
        genres = writer_texts.claims_of(_QUOTED.sub("", sentence))
        for title in _QUOTED.findall(sentence):
            film = next((by_name[name] for name in named(f'"{title}"', titles)), None)
            quoted, in_history = quoted + 1, in_history + (film is not None)
            if genres:
                claims += 1
                true += film is not None and genres <= set(writer_texts.claims(film))
    return ClaimCounts(quoted, in_history, claims, true)


@command(Options)
def main(options: Options) -> dict:
    """Count the titles and the claims of published texts that the users' histories support."""
    films = {str(int(profile.user) + options.ids_from): profile.films for profile in data.load(options.data)}
    table = pq.read_table(options.knowledge, columns=["entity_id", "knowledge"]).to_pylist()
    counted = [count_claims(row["knowledge"], films[row["entity_id"]]) for row in table
              if row["knowledge"] and row["entity_id"] in films]
    if not counted:
        raise DataError(f"--knowledge {options.knowledge} has no text of a user with a profile; --ids-from "
                        "must be 0 if the users' ids are those of the profiles")

    def total(name: str) -> int:
        return sum(getattr(each, name) for each in counted)

    return {"texts": len(counted), "name_3_titles": sum(each.in_history >= 3 for each in counted),
            "quoted_titles": total("quoted"), "true_titles": total("in_history"), "claims": total("claims"),
            "true_claims": total("true"),
            "texts_with_true_claims_alone": sum(each.claims == each.true for each in counted)}
