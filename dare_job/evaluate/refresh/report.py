"""The tables of ``dare-job lab refresh``."""

from rich.console import Console
from rich.table import Table


def show(result: dict, console: Console) -> None:
    """Print the comparison of policies, one table per CTR model, and how well priorities rank."""
    if "nights" in result:
        _show_rankings(f"{result['nights']['held_out_rows']} texts written again, on nights that nothing was "
                       "learned from", result["nights"]["rankings"], console)
        return
    for model, gap in result["counts"].items():
        low, high = gap["gap_ci95"]
        counts = "the experiment counts" if gap["above_0"] else "NOT above 0: this experiment says nothing"
        console.print(f"{model}: full refresh over frozen texts {gap['gap']:+.4f} AUC (95 % {low:+.4f} to "
                      f"{high:+.4f}); {counts}")
        console.print(_policies(result, model))
    console.print("Ranking of changed texts on nights that nothing was learned from: Spearman correlation "
                  "with the movement, and share of all movement in the first 30 %")
    table = Table("priority", "texts", "caught", "CTR scores", "caught")
    for name, ranking in result["learned"]["rankings"].items():
        table.add_row(name, *_rank(ranking["text"]), *_rank(ranking["scores"]))
    console.print(table)
    if "real" in result:
        real = result["real"]
        _show_rankings(f"Real histories: {real['changes']} changes of texts, {real['users_with_changes']} of "
                       f"{real['users']} users", real["rankings"], console)


def _show_rankings(title: str, rankings: dict, console: Console) -> None:
    console.print(title)
    table = Table("priority", "texts", "caught")
    for name, ranking in rankings.items():
        table.add_row(name, *_rank(ranking))
    console.print(table)


def _policies(result: dict, model: str) -> Table:
    table = Table("budget", "policy", "rows per night", "tokens", "text distance", "AUC", "below full",
                  "95 % interval", "share of the gap", "value over it")
    for row in result["rows"]:
        measures = row["models"][model]
        loss, low, high = measures["below_full"]
        ours = measures["ours_over"].get("value")
        table.add_row(
            "" if row["share"] is None else f"{100 * row['share']:.0f} % of {result['unit']}", row["policy"],
            f"{row['rows_per_night']:.0f}", f"{row['tokens_per_night']:.0f}", f"{row['distance_shown']:.4f}",
            f"{measures['auc'][0]:.4f}", f"{loss:.4f}", f"{low:.4f} to {high:.4f}",
            "" if measures["share_of_gap"][0] is None else f"{100 * measures['share_of_gap'][0]:.0f} %",
            f"{ours[0]:+.4f} ({ours[1]:+.4f} to {ours[2]:+.4f})" if ours else "")
    return table


def _rank(ranking: dict[str, float]) -> tuple[str, str]:
    return f"{ranking['spearman']:.3f}", f"{100 * ranking['caught']:.0f} %"
