# demo: train the example on this machine.  test: everything the tests need, and all tests.
# test-long: what repeats a proof too often for each commit; run it before a release.
# TORCH_SOURCE says where torch comes from: `--find-links DIR` or `--index-url URL` (see README.md).
# test-frameworks: trains with real TensorFlow, JAX, Keras, Lightning, Hugging Face and XGBoost, which it installs.
.PHONY: chaos demo test test-frameworks test-long check bench docs day picture protocol cluster cluster-stop cluster-deps web-deps cloud-deps system-packages

demo: .venv/.ready ; .venv/bin/dlctl submit examples/digits/manifest.yml --follow && .venv/bin/dlctl fetch results
test: system-packages .venv/.ready ; @.ci/test
chaos: system-packages .venv/.ready ; .venv/bin/python tests/cluster/chaos.py
test-frameworks: system-packages .venv/.ready ; .ci/make-frameworks .venv/frameworks && .ci/test -m frameworks -n 1
test-long: system-packages .venv/.ready ; @.ci/test -m long
check: .venv/.ready ; @.ci/check
bench: .venv/.ready ; .venv/bin/python -m benchmarks
docs: .venv/.ready ; .venv/bin/python docs/make_commands.py && .venv/bin/python docs/make_architecture.py
protocol: .venv/.ready ; .ci/make-protocol
day: .venv/.ready ; .venv/bin/python docs/make_day.py
picture: .venv/.ready ; .venv/bin/python docs/make_picture.py
cluster: .venv/.ready ; @.venv/bin/python tests/cluster/by_hand.py start
cluster-stop: .venv/.ready ; @.venv/bin/python tests/cluster/by_hand.py stop
cluster-deps: ; .ci/system-packages
web-deps: ; .ci/system-packages web
cloud-deps: .venv/.ready ; npm install --no-audit --no-fund --prefix .venv/servers azurite@3.37.0
system-packages: ; @.ci/system-packages --if-harmless && .ci/system-packages --if-harmless web
.venv/.ready: pyproject.toml constraints.txt ; .ci/make-venv .venv
