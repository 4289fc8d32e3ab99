"""The sensor waits for what a date needs, and says what is missing."""

import sys
import threading
from datetime import timedelta

import pytest
import yaml
from airflow_home import DAGS

sys.path.append(str(DAGS))


def sensor(timeout_s: float):
    from dare_dags.operators import InputSensor

    return InputSensor(task_id="inputs", timezone="UTC", poke_interval=0.05,
                       timeout=timedelta(seconds=timeout_s))


def context(wait_for: list[str]) -> dict:
    params = yaml.safe_load((DAGS / "dare_dags" / "defaults.yaml").read_text())["params"]
    return {"dag_run": None, "params": {**params, "date": "2026-01-02", "wait_for": wait_for}}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_it_waits_until_the_last_path_of_the_date_is_there(tmp_path, scheme):
    users, items = tmp_path / "users" / "dt=2026-01-02", tmp_path / "items" / "dt=2026-01-02"
    asked = context([f"{scheme}{tmp_path}/{kind}/dt={{date}}/_SUCCESS" for kind in ("users", "items")])
    waits = sensor(60)
    for folder in (users, items):
        assert not waits.poke(asked)
        folder.mkdir(parents=True)
        assert not waits.poke(asked)
        (folder / "_SUCCESS").touch()
    assert waits.poke(asked)


def test_it_goes_on_once_the_input_has_come(tmp_path):
    late = threading.Timer(0.3, (tmp_path / "2026-01-02").touch)
    late.start()
    sensor(60).execute(context([f"{tmp_path}/{{date}}"]))
    assert (tmp_path / "2026-01-02").exists()


def test_it_names_what_is_missing_when_it_gives_up(tmp_path):
    from airflow.sdk.exceptions import AirflowSensorTimeout

    (tmp_path / "a-2026-01-02").touch()
    with pytest.raises(AirflowSensorTimeout, match=rf"after \S+ h: {tmp_path}/b-2026-01-02 missing$"):
        sensor(0.36).execute(context([f"{tmp_path}/a-{{date}}", f"{tmp_path}/b-{{date}}"]))
