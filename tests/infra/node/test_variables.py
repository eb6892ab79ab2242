"""Values of variables: hidden in texts, added to an environment, and sealed for a head."""

from pathlib import Path

import pytest

from cloudtune.errors import CloudtuneError
from cloudtune.infra.heads.sealed import seal, unseal
from cloudtune.infra.node.variables import Variables, add_to, with_wandb_mode

VALUES = {"KEY": "abcdef", "LONGER": "abcdef-ghi", "SHORT": "1", "OPEN": "offline"}


def test_the_name_stands_for_a_private_value() -> None:
    variables = Variables(VALUES, private=frozenset({"KEY", "LONGER", "SHORT", "UNSET"}))
    text = "1 run offline with abcdef-ghi, or abcdef"
    assert variables.hide(text, VALUES) == "1 run offline with [LONGER], or [KEY]"
    output = b"\xff abcdef \xfe"
    assert variables.hide_in_bytes(output, VALUES) == b"\xff [KEY] \xfe"
    assert "abcdef" not in repr(variables)


def test_a_pythonpath_goes_before_the_present_one() -> None:
    assert add_to({"A": "1"}, {"PYTHONPATH": "src", "B": "2"}) == {
        "A": "1",
        "B": "2",
        "PYTHONPATH": "src",
    }
    both = add_to({"PYTHONPATH": "/node", "A": "1"}, {"PYTHONPATH": "src", "A": "2"})
    assert both == {"PYTHONPATH": "src:/node", "A": "2"}


def test_only_the_key_opens_what_is_sealed() -> None:
    values = {"KEY": "naïve \0 \n", "EMPTY": ""}
    sealed, key = seal(values)
    assert unseal(sealed, key) == values
    assert b"KEY" not in sealed
    assert seal(values) != (sealed, key), "each key seals once"
    for wrong in (key[:-2] + "00", "", "no key", seal(values)[1]):
        if wrong != key:
            with pytest.raises(CloudtuneError, match="damaged"):
                unseal(sealed, wrong)
    with pytest.raises(CloudtuneError, match="damaged"):
        unseal(sealed[:-1], key)


def test_wandb_writes_files_where_it_has_no_key(tmp_path: Path) -> None:
    login = tmp_path / "netrc"
    here = {"NETRC": str(login)}
    assert with_wandb_mode(here)["WANDB_MODE"] == "offline"
    assert with_wandb_mode({**here, "WANDB_MODE": "disabled"})["WANDB_MODE"] == "disabled"
    assert "WANDB_MODE" not in with_wandb_mode({**here, "WANDB_API_KEY": "key"})
    login.write_text("machine api.wandb.ai login user password key")
    assert "WANDB_MODE" not in with_wandb_mode(here)
    elsewhere = {**here, "WANDB_BASE_URL": "https://wandb.company.com"}
    assert with_wandb_mode(elsewhere)["WANDB_MODE"] == "offline"
