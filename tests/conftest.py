"""What all tests share. Its place puts this folder on the path for the modules beside it."""

from hypothesis import settings

# A busy machine is no reason to fail: the time limit of a whole test is enough.
settings.register_profile("paceline", deadline=None)
settings.load_profile("paceline")
