"""The machine on which specs are planned, for the rules about plans."""

from tests.launcher.plans.conftest import machine, spec_of

__all__ = ["machine", "spec_of"]
