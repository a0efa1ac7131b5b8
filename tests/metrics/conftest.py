import warnings

import pytest


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # sockets and files that other tests left behind may happen to be collected here
        warnings.simplefilter("default", ResourceWarning)
        yield
