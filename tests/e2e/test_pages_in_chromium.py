"""The service's pages as a person uses them in a real Chromium, with JavaScript and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.tokens import Scope
from tests.e2e.test_report_in_chromium import CONTRASTS, OVERFLOWS, chromium
from tests.integration.page_scene import PageScene

AXE = (Path(__file__).parents[1] / "assets" / "axe.min.js").read_text(encoding="utf-8")
#: What axe-core calls serious or critical, as "rule: element".
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(found => ['serious', 'critical'].includes(found.impact))
  .flatMap(found => found.nodes.map(node => found.id + ': ' + node.html.slice(0, 160)))"""


expect.set_options(timeout=30_000)  # a busy machine is no fault of a page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> PageScene:
    return PageScene(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def url(world: PageScene) -> Iterator[str]:
    with world.served() as url:
        yield url


def visitor(browser: Browser, url: str, token: str, **options: Any) -> BrowserContext:
    """Signed in, by the form."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Bisections")).to_be_visible()
    page.close()
    return context


def listening(context: BrowserContext) -> tuple[Page, list[str]]:
    """A page, and what is said on its console: a refused style or script would be."""
    page, said = context.new_page(), []  # type: Page, list[str]
    page.on("console", lambda message: said.append(f"{message.text} {message.location.get('url')}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    return page, said


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_page_can_be_read_by_everybody(
    browser: Browser, world: PageScene, url: str, width: int, scheme: Any
) -> None:
    """axe-core finds nothing serious, nothing is cut off, pale or refused, and hostile text stays text."""
    token = world.scene.tokens[Scope.ADMIN]
    # The policy that the pages forbid themselves everything by would refuse axe-core as well.
    for refuses in (False, True):
        options: Any = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        context = visitor(browser, url, token, bypass_csp=not refuses, **options)
        page, said = listening(context)
        for name, path in world.paths.items():
            page.goto(url + path)
            assert "owned" not in page.title(), name
            if refuses:
                continue
            for closed in page.locator("details").all():
                closed.evaluate("one => one.open = true")
            page.evaluate(AXE)
            assert page.evaluate(SERIOUS) == [], name
            assert page.evaluate(OVERFLOWS) == [], name
            assert page.evaluate(CONTRASTS) == [], name
        assert [words for words in said if "/nowhere" not in words] == []
        context.close()


def test_a_search_is_followed_to_its_report_without_looking_again(
    browser: Browser, world: PageScene, url: str
) -> None:
    context = visitor(browser, url, world.scene.token)
    page, said = listening(context)
    followed = world.followed()
    page.goto(f"{url}/bisections/{followed}")
    expect(page.locator("#said")).to_contain_text("0 trials done")
    kept = page.locator("h1").element_handle()
    world.measure(followed, 5)
    expect(page.locator("#said")).to_contain_text("5 trials done")
    expect(page.locator("figure svg:visible").first).to_be_visible()
    expect(page.get_by_role("link", name="5 and log")).to_be_visible()
    assert page.get_by_role("button", name="Cancel, and report what is known").is_visible()
    world.finish(followed)
    page.get_by_role("link", name="Read the report").click()
    assert page.locator("h1").inner_text().replace("\n", " ") == world.report().summary
    page.get_by_role("link", name="2 and log").click()
    assert page.locator("pre").inner_text().endswith("last")
    assert page.locator("script").count() == 0
    assert kept is not None
    assert said == []
    context.close()


def test_a_form_is_checked_while_one_types_and_makes_one_bisection(
    browser: Browser, world: PageScene, url: str
) -> None:
    context = visitor(browser, url, world.scene.token)
    page, said = listening(context)
    page.goto(f"{url}/new")
    page.get_by_label("Profile").select_option("qwen3-vl-30b-a3b-sft-8gpu")
    page.get_by_label("Good commit").press_sequentially("-v0.3.0")
    expect(page.locator("#good-error")).to_contain_text("starts with '-'")
    page.get_by_label("Good commit").fill("v0.3.0")
    page.get_by_label("Bad commit").press_sequentially("main")
    expect(page.locator("#good-error")).to_be_empty()
    expect(page.locator("#check")).to_contain_text("This can be asked")
    page.get_by_label("Overrides").fill("train.micro_batch_size")
    expect(page.locator("#overrides-error")).to_contain_text("KEY=VALUE")
    page.get_by_label("Overrides").fill("train.micro_batch_size=1")
    page.get_by_label("Kind").select_option("peak_memory")
    page.get_by_label("Peak, GiB").fill("70.5")
    expect(page.locator("#check")).to_contain_text("peak memory above 70.50 GiB")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url("**/bisections/*")
    made = world.scene.bisections.get(page.url.rsplit("/", 1)[1])
    assert made.request["overrides"] == {"train.micro_batch_size": 1}
    assert made.request["criterion"]["threshold"] == 70.5 * 2**30
    assert made.request["preview"] is True
    assert said == []
    context.close()


def test_everything_can_be_done_without_javascript(browser: Browser, world: PageScene, url: str) -> None:
    context = visitor(browser, url, world.scene.tokens[Scope.ADMIN], java_script_enabled=False)
    page, said = listening(context)
    page.goto(f"{url}/new?profile=qwen3-vl-30b-a3b-sft-8gpu")
    page.get_by_label("Good commit").fill("main")
    page.get_by_label("Bad commit").fill("main")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("is the same ref as good")
    expect(page.get_by_label("Good commit")).to_have_value("main")
    page.get_by_label("Good commit").fill("v0.2")
    page.get_by_role("button", name="Ask").click()
    page.wait_for_url("**/bisections/*")
    expect(page.get_by_role("link", name="Look again")).to_be_visible()

    planned, held = world.planned_and_held()
    page.goto(f"{url}/bisections/{planned}")
    page.get_by_role("button", name="Confirm: run the trials").click()
    expect(page.locator("#said")).to_contain_text("It is running")
    page.goto(f"{url}/bisections/{held}")
    page.get_by_label("Why the GPU hours are worth it").fill("The release waits for it.")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("The release waits for it.")).to_be_visible()
    page.get_by_role("button", name="Cancel, and report what is known").click()
    expect(page.get_by_text("to be cancelled")).to_be_visible()
    assert world.scene.bisections.get(held).status is Status.RUNNING

    page.goto(f"{url}/bisections/{world.ended}")
    page.get_by_text("Go on from this result").click()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("link", name=world.ended)).to_be_visible()

    page.goto(f"{url}/compare")
    page.get_by_label("Paste it").first.fill(CONFIG)
    page.get_by_label("or choose a file").nth(1).set_input_files(
        {
            "name": "bad.yaml",
            "mimeType": "text/yaml",
            "buffer": CONFIG.replace("batch_size: 1", "batch_size: 4").encode(),
        }
    )
    page.get_by_label("GPUs of the whole job").fill("8")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", name="more on its worst rank")).to_be_visible()
    expect(page.get_by_role("rowheader", name="micro_batch_size")).to_be_visible()
    # Chromium tells on its console of the answer 422 to the form that could not be used.
    assert [words for words in said if "422" not in words] == []
    context.close()


def test_the_keyboard_reaches_the_content_first(browser: Browser, world: PageScene, url: str) -> None:
    context = visitor(browser, url, world.scene.token)
    page = context.new_page()
    page.goto(url)
    page.keyboard.press("Tab")
    focused = page.get_by_role("link", name="Skip to the content")
    expect(focused).to_be_focused()
    assert focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Status")).to_be_focused()
    context.close()


CONFIG = """\
num_layers: 32
hidden_size: 4096
num_attention_heads: 32
seq_length: 4096
vocab_size: 32000
micro_batch_size: 1
global_batch_size: 64
bf16: true
swiglu: true
use_distributed_optimizer: true
"""
