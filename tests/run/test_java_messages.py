"""Warnings that Java prints at its start reach neither a terminal nor a log; other lines do."""

import os
import subprocess
import sys


def test_only_the_known_warnings_are_hidden(tmp_path):
    lines = ["WARNING: Using incubator modules: jdk.incubator.vector", "spark ERROR Driver: no disk",
             "26/01/02 WARN NativeCodeLoader: Unable to load native-hadoop library"]
    script = (
        "import subprocess, sys, time; from dare_job.spark.session import hidden_java_warnings\n"
        "with hidden_java_warnings():\n"
        "    subprocess.run(['printf', '%s\\\\n', *sys.argv[1:]], stdout=2)\n"
        "    time.sleep(0.2)\n"
        "print('after', file=sys.stderr)\n")
    screen, end = os.openpty()
    done = subprocess.run([sys.executable, "-c", script, *lines], stderr=end, timeout=60)
    os.close(end)
    shown = os.read(screen, 10_000).decode().splitlines()
    logged = subprocess.run([sys.executable, "-c", script, *lines], stderr=subprocess.PIPE, text=True,
                            timeout=60)
    assert done.returncode == logged.returncode == 0
    assert shown == logged.stderr.splitlines() == [lines[1], "after"]
