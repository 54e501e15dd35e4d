"""What all tests share: properties are judged by what they find, not by how long a case took."""

from hypothesis import settings

# The machine that runs the tests has other work; a slow case is no wrong case.
settings.register_profile("cosmodrome", deadline=None)
settings.load_profile("cosmodrome")
