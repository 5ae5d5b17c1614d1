"""What a hand does in a browser moves the frames of a page."""

from lib.tests.explorers.browser import needs_browser, result_of, write_report
from lib.trees import picture
from lib.trees.tree import Tree


@needs_browser
def test_a_pages_slider_shows_one_round_at_a_time_and_nodes_tell_their_numbers(tmp_path):
    """Its policy lets the script run, and no other."""
    drawn = picture.round_svg([-1, 0, 0, 1], ["a", "<b>", "c", "d"], ["root", "accepted", "rejected", "bonus"],
                              {"drafter": [1, 0.5, 0.25, float("nan")]}) + picture.mask_svg(Tree([-1, 0, 0]))
    parts = {"round 1": drawn, "round 2": drawn, "grown": picture.accepted_svg({"0": 0.5, "1": 0.1}, "kary:2")}
    html = picture.frames(parts, label="round", hint="point") + "<script>document.title = 'foreign'</script>"
    write_report(html, tmp_path)
    first, second, pointed, rows, focused, title = result_of("""
        const shown = () => all(".frame").map((one) => page.getComputedStyle(one).display !== "none");
        const slider = all("input[type=range]")[0], words = () => all(".frames + p")[0].textContent;
        const first = [shown(), words()];
        slider.value = 1; slider.dispatchEvent(new page.Event("input"));
        const second = shown();
        act(all(".frame:not([hidden]) .node[data-node='1'] rect")[0], "pointerover");
        const pointed = words(), rows = all(".frame:not([hidden]) [data-row]").map((one) => one.style.opacity);
        all(".frame:not([hidden]) .node")[0].dispatchEvent(new page.FocusEvent("focusin", { bubbles: true }));
        return [first, second, pointed, rows, words(), page.document.title];""", "report.html", tmp_path)
    assert first == [[True, False, False], "point"] and second == [False, True, False]
    assert pointed == "node 1, <b>: accepted, 50% by the drafter" and rows == ["0.2", "1", "0.2"]
    assert focused == "node 0, a: root" and title != "foreign"
