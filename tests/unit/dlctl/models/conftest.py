import pytest
from stored_models import ModelSite, write_folder


@pytest.fixture
def site(tmp_path):
    return ModelSite(tmp_path / "ro ot's")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "folder", model_pt=b"weights" * 1000)
