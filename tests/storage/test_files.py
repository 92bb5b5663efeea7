"""Files are replaced as a whole or not at all."""

import pytest

from adamas._storage.files import replace_file, replace_text


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    replace_text(tmp_path / "file", "first")

    def interrupted(path):
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "file", interrupted)
    assert (tmp_path / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
