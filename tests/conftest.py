"""Fixtures that more than one package's tests share."""

pytest_plugins = ["tests.engine"]

from hypothesis import settings

# No deadlines: the machine may be busy. Derandomized: a run that was green stays green.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")
