from dlctl.api import *  # noqa: F403 - all of __all__

__version__: str
