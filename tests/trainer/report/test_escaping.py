"""Whatever a run says, the page holds it as data."""

import hashlib
import json
import re
from importlib.resources import files

from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.report.page import page, to_json

WICKED = "</script><script>alert(1)</script><!--<script>\u2028\u2029&lt;'\"\ud800{{SCRIPT}}{{DATA}}"


def document(text: str) -> dict[str, object]:
    return {"title": text, "runs": [], "charts": [], "configuration": [{"key": text, "values": [text]}]}


def test_no_text_ends_the_element_that_holds_it() -> None:
    html = page(document(WICKED))
    data = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert [json.loads(each) for each in data] == [document(WICKED)]
    assert html.count("<script") == page(document("")).count("<script")
    assert re.findall(r"<title>(.*?)</title>", html) == [
        "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;!--&lt;script&gt;\u2028\u2029&amp;lt;&#x27;&quot;\ud800{{SCRIPT}}{{DATA}}"
    ]


@given(st.text())
def test_json_keeps_every_text_and_holds_no_markup(text: str) -> None:
    written = to_json({"text": text})
    assert json.loads(written) == {"text": text}
    assert not set("<>&") & set(written)


def test_the_policy_names_what_the_page_holds_and_allows_no_request() -> None:
    html = page(document(""))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#x27;", "'").split(";"))
    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy[1] and len(rules["script-src"].split()) == 2


def test_the_library_is_the_one_that_was_published() -> None:
    """The digest of dist/echarts.min.js in the npm package echarts 6.1.0."""
    library = files("gradwire.trainer.report") / "assets" / "echarts" / "echarts.min.js"
    published = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
    assert hashlib.sha256(library.read_bytes()).hexdigest() == published
