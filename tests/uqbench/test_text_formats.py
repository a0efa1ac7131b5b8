from uqbench.text_formats import plain_text


def test_a_notebook_gets_the_text_instead_of_a_display(monkeypatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert plain_text("a board", 40) == "a board\n"
