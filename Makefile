# make run    on a fresh machine: .venv, install, train
# make test   on a fresh machine: .venv, install, the whole test suite
# make test-versions  the core of the suite on the oldest and the newest TensorFlow and Keras
# make test-slurm, test-ssh, test-ray  a SLURM, OpenSSH servers, a Ray cluster on this machine
# make test-trackio  with Trackio, which needs an older Pillow than the others
# make test-peers  losses beside those of Lightning, in an environment of its own
# make test-kills  a hundred launching commands, each killed at a random moment; half an hour
# make test-docs  every command of README and docs/, and the gallery
# make test-notebook  notebooks, in kernels of Jupyter's
# make campaigns  every table of some packages, by one command each
# make golden  the numbers of trainings and what commands print, beside tests/golden
# make docs   the documentation as a site, in site/
# make check  style, types and imports, then the whole test suite
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
RUNS := .venv/.runs

.PHONY: install run test test-versions test-faults test-slurm test-ssh test-ray test-trackio test-peers test-kills test-docs test-notebook campaigns golden check docs bench clean

install: $(STAMP)

# What a run needs, without the gigabyte of the tests'.
$(RUNS): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(STAMP): $(RUNS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test]"
	@touch $@

run: $(RUNS)
	$(BIN)/python -m dtrain strategy=mirrored

test: install
	$(BIN)/python -m pytest

# The oldest pair that pyproject.toml allows; constraints.txt has the newest.
OLDEST := tensorflow==2.19.* keras==3.14.0
CORE := $(addprefix tests/, test_keras_internals.py test_random_draws.py test_gradients.py \
	test_remat.py test_steps.py test_strategies.py integration/test_resume.py)

test-versions: install
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -e ".[test]" $(OLDEST)
	.venv-oldest/bin/python -m pytest $(CORE)
	$(BIN)/python -m pytest $(CORE)

# Debian's packages, of which those that are there stay as they are.
debian = dpkg -s $(1) >/dev/null 2>&1 || \
	{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1); }

# As root, on Debian: a SLURM of the tests' own, which is gone afterwards.
SLURM := slurmctld slurmd slurm-client munge
test-slurm: install
	$(call debian,$(SLURM))
	$(BIN)/python -m pytest -n 0 -m slurm tests/integration/test_slurm.py

# What has a target of its own is not in it: documents, golden files, OpenSSH, notebooks.
test-faults: install
	$(BIN)/python -m pytest -m "faults and not slurm and not ray" $(addprefix --ignore=tests/, \
		test_docs.py test_gallery.py test_golden.py integration/test_ssh.py test_notebook.py)

# As root, on Debian: installs the server whose copies run in network namespaces.
test-ssh: install
	$(call debian,openssh-server nftables iproute2)
	$(BIN)/python -m pytest -n 0 -m faults tests/integration/test_ssh.py

test-ray: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[ray]"
	$(BIN)/python -m pytest -n 0 -m ray tests/test_ray.py

# In a folder of its own, beside the Pillow of all others.
test-trackio: install
	$(BIN)/python -m pip install --quiet --no-deps --target .trackio -c constraints.txt \
		trackio gradio-client orjson brotli python-multipart httpx httpcore sniffio websockets
	PYTHONPATH=.trackio TRACKIO_DIR=.trackio/runs $(BIN)/python -m pytest -n 0 -m trackio tests/test_sinks.py

# Lightning, in an environment of its own: it need not agree with what else is installed.
test-peers:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet -c constraints.txt -e ".[torch]" pytest pytest-xdist
	.venv-peers/bin/python -m pip install --quiet lightning
	.venv-peers/bin/python -m pytest -n 0 -m peers tests/test_peers.py

test-kills: install
	$(BIN)/python -m tests.campaigns.kills

test-docs: install
	$(BIN)/python -m pytest -m "faults or not faults" tests/test_docs.py tests/test_gallery.py

test-notebook: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[notebook]"
	$(BIN)/python -m pytest -n 0 -m faults tests/test_notebook.py

campaigns: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[campaigns]"
	$(BIN)/python -m tests.campaigns.carried
	$(BIN)/python -m tests.campaigns.tables
	$(BIN)/python -m tests.campaigns.tables --against

# What users see; a change of it is written by `python -m tests.golden --write NAME`.
golden: install
	$(BIN)/python -m tests.golden

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

# What is generated of the code, then the site. Of the site nothing is loaded from another host.
docs: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python -m tests.reference
	$(BIN)/zensical build --clean --strict
	$(BIN)/python -m pytest -n 0 --noconftest tests/test_site.py

bench: install
	$(BIN)/python experiments/benchmark.py
	$(BIN)/python experiments/steps.py
	$(BIN)/python experiments/parameter_servers.py
	$(BIN)/python experiments/overheads.py
	$(BIN)/python experiments/clusters.py
	$(BIN)/python experiments/communication.py
	$(BIN)/python experiments/resume.py
	$(BIN)/python experiments/outage.py
	$(BIN)/python experiments/sweeps.py

clean:
	rm -rf .venv .venv-oldest .venv-peers build dist site .cache *.egg-info
