# Each verb sets up what it needs on its own; `make help` lists them.
SETUP := python3 -m tools.setup
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check format lock lock-jars bench stress brokers brokers-stop wheel docs clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

demo: ## run the main job on this machine
	@$(SETUP) run
	@$(BIN)/python -m demo

test: ## run all tests and the repository's checks
	@$(SETUP) dev
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

check: ## format, lint, types, layers
	@$(SETUP) dev
	@$(BIN)/python -m pytest -q tests/test_repository.py

format: ## rewrite the code in the project's format
	@$(SETUP) dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: ## print the generated parts of the docs anew
	@$(SETUP) dev
	@$(BIN)/python -m tools.docs

bench: ## run the benchmarks and write bench/RESULTS.md (ONLY=name for one)
	@$(SETUP) dev
	@$(BIN)/python -m bench $(ONLY)

stress: ## run the long tests and the fuzzer
	@$(SETUP) dev
	@$(BIN)/python -m pytest -m stress --timeout 3600

brokers: ## start a real Kafka that stays up (NODES=3, PORT=9092)
	@$(SETUP) dev
	@$(BIN)/python -m brokers up --nodes $(or $(NODES),1) $(if $(PORT),--port $(PORT))

brokers-stop: ## end what `make brokers` started
	@$(SETUP) dev
	@$(BIN)/python -m brokers down

wheel: ## build the wheel and try it in an empty environment
	@$(SETUP) dev
	@$(BIN)/python -m tools.wheel

lock: ## resolve the dependencies anew and lock them with hashes
	@$(SETUP) dev
	@$(BIN)/python -m tools.lock

lock-jars: ## resolve the brokers' jars anew (needs Maven)
	@$(SETUP) dev
	@$(BIN)/python -m brokers lock

clean: ## remove what the verbs made in this checkout
	rm -rf .venv build dist demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	find src -name '*.so' -delete
