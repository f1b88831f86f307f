import base64
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from stateroom import FileTokenStore, MemoryTokenStore, TokenPlace
from stateroom.tokens import is_newer


def token(sequence, life=b"a", rest=b"mac"):
    raw = struct.pack(">B16sQ", 1, life * 16, sequence) + rest
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


PLACE = TokenPlace("tenant", "user-1", "t1", "")


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    return FileTokenStore(tmp_path / "tokens") if request.param == "file" else MemoryTokenStore()


def test_the_newest_token_of_a_life_stays(store):
    assert store.get(PLACE) is None
    for given, kept in ((3, 3), (2, 3), (5, 5), (4, 5)):
        store.put(PLACE, token(given))
        assert store.get(PLACE) == token(kept)
    store.put(PLACE, token(1, life=b"b"))
    assert store.get(PLACE) == token(1, life=b"b")


def test_places_are_apart_and_forgetting_takes_all_namespaces_of_one_thread(store):
    places = [
        TokenPlace(tenant, subject, thread, namespace)
        for tenant in ("x", "y")
        for subject in ("", "user/1")
        for thread in ("t", "../t")
        for namespace in ("", "sub", "a|b")
    ]
    for number, place in enumerate(places):
        store.put(place, token(number))
    assert [store.get(place) for place in places] == [token(number) for number in range(len(places))]
    store.forget(places[0])
    assert [place for place in places if store.get(place) is None] == places[:3]
    store.forget(places[0])


def test_a_token_of_a_later_format_replaces(store):
    store.put(PLACE, token(3))
    store.put(PLACE, "!")
    assert store.get(PLACE) == "!"


def test_what_is_stored_is_there_for_the_next_process_and_for_its_owner_only(tmp_path):
    FileTokenStore(tmp_path / "tokens").put(PLACE, token(1))
    assert FileTokenStore(tmp_path / "tokens").get(PLACE) == token(1)
    files = [each for each in (tmp_path / "tokens").rglob("*") if each.is_file()]
    assert [each.stat().st_mode & 0o077 for each in files] == [0]
    assert not any("t1" in each.name or "user" in str(each.relative_to(tmp_path)) for each in files)


def test_a_put_that_fails_leaves_the_token_before_it(tmp_path):
    store = FileTokenStore(tmp_path / "tokens")
    store.put(PLACE, token(1))
    with pytest.raises(UnicodeEncodeError):
        store.put(PLACE, "é")
    assert store.get(PLACE) == token(1)
    assert len([each for each in (tmp_path / "tokens").rglob("*") if each.is_file()]) == 1


def test_many_threads_leave_the_newest(store):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(PLACE, token(number)), range(200)))
    assert store.get(PLACE) == token(199)


def test_newer_is_by_sequence_within_a_life():
    assert is_newer(token(2), token(2, rest=b"other"))
    assert not is_newer(token(1), token(2))
    assert is_newer(token(1, life=b"c"), token(2))
