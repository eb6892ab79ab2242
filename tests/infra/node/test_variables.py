"""Values of variables: hidden in texts, added to an environment, and sealed for a head."""

import pytest

from cloudtune.errors import CloudtuneError
from cloudtune.infra.heads.sealed import seal, unseal
from cloudtune.infra.node.variables import Variables, add_to

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
