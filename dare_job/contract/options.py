"""The options of the contract's tests. pytest loads them wherever dare-job is installed."""

OPTIONS = {"drafter": "drafter", "verifier": "verifier", "draft_budget": "draft budget"}  # kinds of plug-in


def pytest_addoption(parser) -> None:
    group = parser.getgroup("dare-job", "dare-job: pytest --pyargs dare_job.contract")
    for name, kind in OPTIONS.items():
        group.addoption(f"--{name.replace('_', '-')}", action="append", default=[],
                        metavar="PACKAGE.MODULE:CLASS", help=f"{kind} to test; repeatable")
