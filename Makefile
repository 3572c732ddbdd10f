# demo: train the example on this machine.  test: all that a cheap test can see, ten minutes.  test-all: all the rest too.
# test-near: the tests of what you changed, and of what imports it.  test-long: proofs repeated too often for each commit.
# TORCH_SOURCE says where torch comes from: `--find-links DIR` or `--index-url URL` (see README.md).
# test-frameworks: trains with real TensorFlow, JAX, Keras, Lightning, Hugging Face and XGBoost, which it installs.
.PHONY: help chaos demo test test-all test-near test-frameworks test-long check weigh bench docs site day picture protocol cluster cluster-stop cluster-deps web-deps cloud-deps system-packages

demo: .venv/.demo ; @.ci/demo
help: ; @sed -n 's/^# //p' Makefile
test: system-packages .venv/.test ; @.ci/test first
test-all: system-packages .venv/.all ; @.ci/test all $(if $(SHARD),--shard $(SHARD))
test-near: system-packages .venv/.test ; @.ci/test near
test-long: system-packages .venv/.all ; @.ci/test long
test-frameworks: system-packages .venv/.test ; .ci/make-frameworks .venv/frameworks && .ci/test frameworks
chaos: system-packages .venv/.test ; CHAOS_S=$${CHAOS_S:-1800} .venv/bin/python -m pytest -s tests/cluster/test_chaos.py
check: .venv/.test ; @.ci/check
weigh: ; @.ci/weigh $(REV)
bench: .venv/.test ; .venv/bin/python -m benchmarks
docs: .venv/.test ; .venv/bin/python docs/make_commands.py && .venv/bin/python docs/make_job_directory.py && .venv/bin/python docs/make_manifest.py && .venv/bin/python docs/make_architecture.py
protocol: .venv/.test ; .ci/make-protocol
day: .venv/.test ; .venv/bin/python docs/make_day.py
site: .venv/.test ; @.ci/make-frameworks .venv/frameworks site && .venv/frameworks/site/bin/python docs/make_site.py
picture: .venv/.test ; .venv/bin/python docs/make_picture.py
cluster: .venv/.test ; @.venv/bin/python tests/cluster/by_hand.py start
cluster-stop: .venv/.test ; @.venv/bin/python tests/cluster/by_hand.py stop
cluster-deps: ; .ci/system-packages
web-deps: ; .ci/system-packages web
cloud-deps: .venv/.test ; npm install --no-audit --no-fund --prefix .venv/servers azurite@3.37.0
system-packages: ; @.ci/system-packages --if-harmless && .ci/system-packages --if-harmless web
.venv/.demo: pyproject.toml constraints.txt .ci/make_venv.py ; @.ci/make-venv .venv demo
.venv/.test: .venv/.demo ; @.ci/make-venv .venv test
.venv/.all: .venv/.test .ci/make-frameworks .ci/make-worker-node examples/worker-node/package-lock.json ; @.ci/make-venv .venv all
