"""A function for ``bench sweep``'s processes, in a module that is imported fast."""

import os
import time


def behave(name: str) -> dict:
    if name == "hangs":
        time.sleep(60)
    if name == "dies":
        os._exit(3)
    if name == "raises":
        raise AssertionError("of the model's code")
    return {"name": name, "outcome": "tree"}
