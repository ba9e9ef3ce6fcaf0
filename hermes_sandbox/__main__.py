"""`python -m hermes_sandbox` is `hermes-sandbox`."""

from __future__ import annotations

from hermes_sandbox.cli import main

main(prog_name="hermes-sandbox")
