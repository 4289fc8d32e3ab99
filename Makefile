# make demo   set everything up in .venv and run the whole job on an embedded sample
# make test   set everything up and run the tests; make test-slow: those that take minutes;
#             make test-release: long sweeps, before a release
# make real   set everything up and write two nights with a small pretrained LLM
# make install EXTRAS=encode,gguf   add optional parts to .venv (pyproject.toml lists them)
# make airflow   set everything up and bring up Airflow with the DAGs, a local Spark and the sample
# Options: DEVICE=cpu|gpu (default: gpu where nvidia-smi finds one), PYTHON=..., OUT=folder of the demo

DEVICE ?= auto
OUT ?= out
export PYTHON
DARE := .venv/bin/dare-job
PYTEST := .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo real install test test-slow test-release airflow lint clean

demo:
	@sh conf/setup.sh $(DEVICE)
	@rm -rf $(OUT)/sample $(OUT)/demo
	@$(DARE) data sample --save $(OUT)/sample
	@$(DARE) run --config conf/demo.yaml --date 2026-01-02 --input $(OUT)/sample --out $(OUT)/demo

real:
	@sh conf/setup.sh $(DEVICE) gguf
	@sh conf/real.sh $(OUT)

install:
	@sh conf/setup.sh $(DEVICE) $(EXTRAS)
	@echo "installed; activate the environment with: . .venv/bin/activate"

test:
	@sh conf/setup.sh $(DEVICE) airflow,test
	@.venv/bin/ruff check .
	@$(PYTEST)

test-slow:
	@sh conf/setup.sh $(DEVICE) airflow,test
	@$(PYTEST) -m "slow and not release"

test-release:
	@sh conf/setup.sh $(DEVICE) airflow,test
	@$(PYTEST) -m release

airflow:
	@sh conf/setup.sh $(DEVICE) airflow
	@sh conf/airflow.sh $(OUT)

lint:
	@.venv/bin/ruff check .

clean:
	rm -rf $(OUT) .pytest_cache .ruff_cache .hypothesis
