"""Files of keys: what is taken, whom a key stands for, and what happens when the file changes."""

import asyncio
import logging
import os
from pathlib import Path

import pytest
from session_stores import until

from paceline.api_keys import MIN_KEY_LENGTH, ApiKeys, OwnKey, bearer
from paceline.errors import InvalidConfig, Unauthenticated

KEY, OTHER, THIRD = ("sk-abcdefghijklmnop", "Zm9v/YmFy+cXV1eA==", "another_key#with-16")


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys"
    path.write_text(text)
    return path


def keys(tmp_path: Path, text: str) -> ApiKeys:
    return ApiKeys(str(file_of(tmp_path, text)))


def test_a_key_stands_for_its_name_and_one_without_a_name_for_itself(tmp_path: Path) -> None:
    found = keys(tmp_path, f"# ours\n\n  team-a: {KEY}\nteam-a:{OTHER}\n{THIRD}\r\n")
    assert found.tenant(bearer(KEY)) == found.tenant(bearer(OTHER)) == "team-a"
    third = found.tenant(bearer(THIRD))
    assert third.startswith("key-")
    assert THIRD not in third
    assert keys(tmp_path, THIRD).tenant(bearer(THIRD)) == third, "the same in every process"


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (None, "no API key was sent"),
        ("", "no API key was sent"),
        (KEY, "Bearer"),
        (f"Basic {KEY}", "Bearer"),
        (f"Bearer {KEY}x", "not known"),
        (f"Bearer {KEY[:-1]}", "not known"),
        ("Bearer ", "not known"),
        ("Bearer \udcff ä", "not known"),
    ],
)
def test_what_is_not_a_key_of_the_file_is_refused_and_not_repeated(
    tmp_path: Path, shown: str | None, message: str
) -> None:
    with pytest.raises(Unauthenticated, match=message) as refused:
        keys(tmp_path, KEY).tenant(shown)
    assert KEY[:-1] not in refused.value.message


def test_a_file_that_windows_has_written_is_read_as_any_other(tmp_path: Path) -> None:
    """With a mark at its beginning, and carriage returns."""
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbf# ours\r\nme: " + KEY.encode() + b"\r\n")
    assert ApiKeys(str(path)).tenant(bearer(KEY)) == "me"
    path.write_bytes(b"\xef\xbb\xbf" + KEY.encode() + b"\r\n")
    assert OwnKey(str(path)).authorization == bearer(KEY)


def test_the_scheme_may_be_written_in_any_case(tmp_path: Path) -> None:
    assert keys(tmp_path, f"me: {KEY}").tenant(f"bearer  {KEY} ") == "me"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no key"),
        ("# only a comment\n", "has no key"),
        ("secret-but-short", None),
        ("secret-too-short"[: MIN_KEY_LENGTH - 1], "has 15 characters; expected at least 16"),
        (f"{KEY}\nwith a blank {OTHER}", "line 2"),
        (f"bad/name: {KEY}", "line 1"),
        (f"a: {KEY}\nb: {KEY}", "line 2 .* repeats"),
        ("schlüssel-mit-umlauten", "line 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_telling_a_key(
    tmp_path: Path, text: str, message: str | None
) -> None:
    if message is None:
        keys(tmp_path, text)
        return
    with pytest.raises(InvalidConfig, match=message) as refused:
        keys(tmp_path, text)
    assert str(tmp_path) in refused.value.message
    assert not any(word in refused.value.message for word in (KEY, OTHER, "secret", "umlaut"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"/nowhere cannot be read: No such file"):
        ApiKeys(str(tmp_path / "nowhere"))


def test_the_key_to_show_must_be_the_only_one(tmp_path: Path) -> None:
    assert OwnKey(str(file_of(tmp_path, f"me: {KEY}\n"))).authorization == f"Bearer {KEY}"
    with pytest.raises(InvalidConfig, match="has 2 keys; expected exactly one"):
        OwnKey(str(file_of(tmp_path, f"{KEY}\n{OTHER}\n")))


async def test_new_keys_replace_old_ones_and_a_broken_file_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = file_of(tmp_path, KEY)
    found = ApiKeys(str(path))
    for broken in ("", "two words that are long enough", f"{KEY}\n{KEY}"):
        path.write_text(broken)
        await found.file.look()
        await found.file.look()
        assert found.tenant(bearer(KEY))
    path.unlink()
    await found.file.look()
    assert found.tenant(bearer(KEY))
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 4, "each is told once"
    path.write_text(OTHER)
    await found.file.look()
    assert found.tenant(bearer(OTHER))
    with pytest.raises(Unauthenticated):
        found.tenant(bearer(KEY))
    assert KEY not in caplog.text
    assert OTHER not in caplog.text


async def test_a_secret_that_is_swapped_by_a_symbolic_link_is_noticed(tmp_path: Path) -> None:
    """As Kubernetes mounts them: `keys` → `..data/keys`, `..data` → a folder with a date."""
    for name, key in (("first", KEY), ("second", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(key)
        os.utime(tmp_path / name / "keys", (1, 1))
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "keys").symlink_to("..data/keys")
    found = ApiKeys(str(tmp_path / "keys"))
    (tmp_path / "..new").symlink_to("second")
    (tmp_path / "..new").rename(tmp_path / "..data")
    await found.file.look()
    assert found.tenant(bearer(OTHER))


async def test_files_are_followed_while_they_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.followed_files.POLL_S", 0.01)
    path = file_of(tmp_path, KEY)
    found = ApiKeys(str(path))
    changed = asyncio.Event()
    found.file.on_change(lambda _: changed.set())
    following = asyncio.create_task(found.file.follow())
    path.write_text(OTHER)
    await asyncio.wait_for(changed.wait(), 10)
    assert found.tenant(bearer(OTHER))
    following.cancel()


async def test_a_change_that_nobody_was_prepared_for_does_not_end_the_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("paceline.followed_files.POLL_S", 0.01)
    path = file_of(tmp_path, KEY)
    found = ApiKeys(str(path))
    changed = asyncio.Event()

    def take_over(_: object) -> None:
        if not caplog.records:
            raise ZeroDivisionError("nobody thought of that")
        changed.set()

    found.file.on_change(take_over)
    following = asyncio.create_task(found.file.follow())
    path.write_text(OTHER)
    await until(lambda: "nobody thought of that" in caplog.text)
    path.write_text(THIRD)
    await asyncio.wait_for(changed.wait(), 10)
    following.cancel()
