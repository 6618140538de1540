# What a contributor does, by name: `just --list`. Each recipe is a command that CONTRIBUTING.md and .ci
# name; without just, type the command.

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

# A virtual environment with the versions of constraints-dev.txt, the kernel in C, and all tools
setup:
    python3 -m venv .venv
    STREAMREC_BUILD_KERNEL=require pip install -c constraints-dev.txt -e '.[dev,deploy,docs,release]'

# All tests, on all cores
test *ARGS:
    python -m pytest -n auto --dist loadgroup {{ ARGS }}

# The tests nearest to what changed, or those of a room, for a minute at most
test-fast *ROOMS:
    python -m tests.fast {{ ROOMS }}

# Style
lint:
    ruff check .
    ruff format --check .

# Types
types *FILES:
    mypy {{ FILES }}

# The site, in build/site
docs:
    mkdocs build --strict

# The tables of the results: `just bench all` makes them anew, `just bench --only kernel --quick` looks at one
bench *ARGS:
    python -m bench {{ ARGS }}

# Streams, a feeder, a crash and a resume, in half a minute
demo:
    streamrec demo

# What CI does, on this machine: everything, in a fresh virtual environment
ci:
    .ci/run

# sdist and wheel, with the checks of a release
release-check:
    rm -rf dist
    python -m build
    twine check --strict dist/*
    check-wheel-contents dist/*.whl
    abi3audit --strict --report dist/*-abi3-*.whl
