#!/bin/sh
# Airflow on this machine with the DAGs, a local Spark and the synthetic data set: `conf/airflow.sh OUT`, after
# conf/setup.sh with the extra airflow. Run by `make airflow`. For evaluation, not for production.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
mkdir -p "$1/airflow"
out=$(cd "$1" && pwd)
home=$out/airflow
port=${AIRFLOW_PORT:-8080}

say() { printf 'airflow: %s\n' "$*" >&2; }

[ -d "$out/sample" ] || "$root/.venv/bin/dare-job" data sample --save "$out/sample" >&2

cat >"$home/dare.yaml" <<EOF
# Written by conf/airflow.sh: the synthetic data set, a local Spark, runs by hand and backfill only.
end_date: 2026-01-05
retry_delay_s: 10
params:
  config: ["$root/conf/demo.yaml"]
  input: "$out/sample"
  out: "$out/airflow-run"
  tuned: "$out/tuned"
spark:
  conf:
    spark.driver.memory: 1g
    spark.ui.enabled: "false"
    spark.driver.extraJavaOptions: >-
      -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
      -Dlog4j.configurationFile=file:$root/dare_job/spark/log4j2.properties
tune:
  schedule: null
  params:
    out: "$out/airflow-run"
    tuned: "$out/tuned"
    latency: "$root/conf/latency/cpu-embedded.json"
    options: ["--held-out", "100"]
EOF

cat >"$home/env.sh" <<EOF
# Written by conf/airflow.sh. Source it in a terminal, so that \`airflow\` uses this Airflow.
export PATH="$root/.venv/bin:\$PATH" OMP_NUM_THREADS=1
export AIRFLOW_HOME="$home"
export AIRFLOW__CORE__DAGS_FOLDER="$root/airflow/dags" AIRFLOW__CORE__LOAD_EXAMPLES=False
export AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION=False AIRFLOW__CORE__PARALLELISM=3
export AIRFLOW__API__HOST=127.0.0.1 AIRFLOW__API__PORT=$port AIRFLOW__API__WORKERS=1
export AIRFLOW__API__BASE_URL=http://localhost:$port
export DARE_DAGS_SETTINGS="$home/dare.yaml"
export AIRFLOW_CONN_SPARK_DEFAULT='{"conn_type": "spark", "host": "local[2,4]", "extra": {"spark-binary": "spark-submit"}}'
EOF
# shellcheck disable=SC1091
. "$home/env.sh"

say "making the database and the pool gpu"
{ airflow db migrate && airflow pools set gpu 1 "jobs that have the GPUs"; } >"$home/set-up.log" 2>&1 ||
  { tail -n 20 "$home/set-up.log" >&2; say "failed: its messages are above and in $home/set-up.log"; exit 1; }
say "http://localhost:$port in a minute; user admin, password in $home/simple_auth_manager_passwords.json.generated"
say "in another terminal: . $home/env.sh"
say "  airflow dags trigger dare_job_nightly --conf '{\"date\": \"2026-01-02\"}'"
say "Ctrl-C ends it; $home can be removed"
exec airflow standalone
