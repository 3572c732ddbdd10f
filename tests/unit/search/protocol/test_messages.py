"""The protocol's message classes are those of its .proto."""

import subprocess
from pathlib import Path

import search.protocol
from search.protocol import messages as m

ROOT = Path(__file__).parents[4]


def test_what_is_stored_is_what_the_proto_compiles_to(tmp_path: Path) -> None:
    subprocess.run([ROOT / ".ci/make-protocol", tmp_path], check=True)
    for name in ("search.binpb", "messages.pyi"):
        stored = Path(search.protocol.__file__).with_name(name)
        assert (tmp_path / name).read_bytes() == stored.read_bytes(), (
            f"run .ci/make-protocol: {name}"
        )


def test_a_message_survives_its_way() -> None:
    task = m.Task(id="a" * 32, type="python", payload=b"{}", needs=m.Needs(labels=["big"]))
    request = m.SubmitRequest(model="one", tasks=[task])
    assert m.SubmitRequest.FromString(request.SerializeToString()) == request


def test_outcomes_have_names() -> None:
    assert m.Outcome.Name(m.SUCCEEDED) == "SUCCEEDED"
    assert m.Outcome.Value("HANDED_BACK") == m.HANDED_BACK
