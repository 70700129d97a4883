"""Templates are data that ships: complete, pinned, and free of any registry's name."""

import json
import re
from pathlib import Path

import pytest

from rollout.sandbox.template import load_template, template_names, toolchain_dir

NAMES = ["vite-react", "vite-react-bare"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert list(template_names()) == NAMES
    with pytest.raises(ValueError, match="no template 'react'; known templates: vite-react, vite-react-bare"):
        load_template("react")


@pytest.mark.parametrize("name", NAMES)
def test_a_template_is_a_buildable_project(name: str) -> None:
    template = load_template(name)
    assert {"package.json", "package-lock.json", "vite.config.ts", "index.html", "src/main.tsx"} <= set(template.files)
    assert b"Replace this with the page." in template.files["src/App.tsx"]
    assert {"package.json", "package-lock.json", "vite.config.ts", "tsconfig.json"} <= set(template.protected)
    assert set(template.protected) <= set(template.files)
    assert not {"index.html", "src/App.tsx", "src/main.tsx"} & set(template.protected)
    icon = re.search(rb'rel="icon"[^>]*href="/([^"]+)"', template.files["index.html"])
    assert icon is not None
    assert f"public/{icon.group(1).decode()}" in template.files


@pytest.mark.parametrize("name", NAMES)
def test_the_lock_pins_by_hash_and_names_no_registry(name: str) -> None:
    text = load_template(name).files["package-lock.json"].decode()
    assert '"resolved"' not in text
    assert "registry" not in text
    packages = json.loads(text)["packages"]
    assert packages["node_modules/vite"]["version"].startswith("8.3.")
    assert all(entry.get("integrity", "").startswith("sha512-") for path, entry in packages.items() if path)


def test_packages_live_below_the_chosen_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEBCODER_HOME", str(tmp_path))
    modules = load_template("vite-react-bare").node_modules
    assert modules.name == "node_modules"
    assert re.fullmatch(r"vite-react-bare-[0-9a-f]{12}", modules.parent.name)
    assert modules.parent.parent == tmp_path / "templates"
    monkeypatch.setenv("WEBCODER_HOME", "")
    assert toolchain_dir() == Path(__file__).resolve().parents[3] / ".toolchain"
