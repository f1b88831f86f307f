"""The digest of a metadata tag is a stored format: these bytes are what every later build must find."""

from uuid import UUID

import pytest

from crypto import Sealer
from crypto.keyring import SecretKey, SubjectKeys
from storage.schemas.tags import SEARCHABLE_KEY_BYTES_MAX, can_be_searchable, tag_of

TENANT = UUID(int=1)


def sealer(id_key=b"i" * 32):
    return Sealer(UUID(int=2), TENANT, "user-1", SubjectKeys({1: SecretKey(b"d" * 32)}, 1, SecretKey(id_key)))


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        ("gold", "0118955d222ef1e6bda5df5d7c869b0f4f"),
        ("", "018b36282ba9f7ba19d23c4c17f35b08db"),
        (None, "010275224c54c3462f9c9a2df87df9b505"),
        (True, "01ebfd67e66c8009525027bfd0f4c9b942"),
        (1, "01ebfd67e66c8009525027bfd0f4c9b942"),
        (1.0, "01ebfd67e66c8009525027bfd0f4c9b942"),
        (-1, "01985dca4889d7fefd46d34344914ef94f"),
        (0.5, "016150376282070a410172d9f9776ba6bf"),
        ("ä", "01a630fa984f4e1f056dd64f0e6dd9168c"),
    ],
)
def test_a_tag_is_the_digest_that_its_format_says(value, tag):
    assert tag_of(sealer(), "customer_tier", value) == bytes.fromhex(tag)


def test_a_share_changes_no_tag_and_another_subject_does():
    own = tag_of(sealer(), "k", "v")
    assert tag_of(sealer().with_share(b"s" * 32), "k", "v") == own
    assert tag_of(sealer(b"j" * 32), "k", "v") != own


@pytest.mark.parametrize(
    ("name", "can"),
    [
        ("k", True),
        ("ä" * (SEARCHABLE_KEY_BYTES_MAX // 2), True),
        ("ä" * (SEARCHABLE_KEY_BYTES_MAX // 2) + "x", False),
        ("", False),
        ("a\0", False),
        ("\ud800", False),
    ],
)
def test_what_can_be_declared(name, can):
    assert can_be_searchable(name) is can
