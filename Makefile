# make demo   set everything up in .venv and run the whole job on an embedded sample
# make test   set everything up and run the tests; make test-slow those that take minutes
# Options: DEVICE=cpu|gpu (default: gpu where nvidia-smi finds one), PYTHON=..., OUT=folder of the demo

DEVICE ?= auto
OUT ?= out
export PYTHON
DARE := .venv/bin/dare-job

.PHONY: demo test test-slow lint clean

demo:
	@sh conf/setup.sh $(DEVICE)
	@rm -rf $(OUT)/sample $(OUT)/demo
	@$(DARE) sample --out $(OUT)/sample
	@$(DARE) run --config conf/demo.yaml --date 2026-01-02 --input $(OUT)/sample --out $(OUT)/demo

test:
	@sh conf/setup.sh $(DEVICE) test
	@.venv/bin/ruff check .
	@.venv/bin/python -m pytest

test-slow:
	@sh conf/setup.sh $(DEVICE) test
	@.venv/bin/python -m pytest -m slow

lint:
	@.venv/bin/ruff check .

clean:
	rm -rf $(OUT) .pytest_cache .ruff_cache .hypothesis
