from dataclasses import replace

import pytest

from crypto import selftest
from crypto.errors import SelfTestFailed


def flip_last(text: str) -> str:
    return text[:-1] + format(int(text[-1], 16) ^ 1, "x")


def test_this_installation_passes() -> None:
    selftest.run()


@pytest.mark.parametrize("installed", ["2.9.2", "46.0.5", "", "unknown"])
def test_a_library_that_is_too_old_is_refused(installed: str) -> None:
    with pytest.raises(SelfTestFailed, match="47 or newer"):
        selftest.check_cryptography_version(installed)


@pytest.mark.parametrize("installed", ["47.0.0", "50.0.2", "100.1"])
def test_a_library_that_is_new_enough_is_accepted(installed: str) -> None:
    selftest.check_cryptography_version(installed)


@pytest.mark.parametrize(
    ("field", "position", "named"),
    [
        ("cobblestone", 1, "Cobblestone"),
        ("cobblestone", 2, "Cobblestone"),
        ("cobblestone", 3, "Cobblestone"),
        ("aes_gcm", 2, "AES-256-GCM"),
        ("aes_gcm", 3, "AES-256-GCM"),
        ("aes_gcm", 4, "AES-256-GCM"),
        ("hkdf_expand_sha256", 1, "HKDF"),
        ("hkdf_expand_sha256", 2, "HKDF"),
    ],
)
def test_an_answer_that_differs_is_named(field: str, position: int, named: str) -> None:
    answer = list(getattr(selftest.PUBLISHED, field))
    answer[position] = flip_last(answer[position])
    with pytest.raises(SelfTestFailed, match=named):
        selftest.check_known_answers(replace(selftest.PUBLISHED, **{field: tuple(answer)}))
