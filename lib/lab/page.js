// Frames of a page, one at a time by a slider; parts with the same key move from frame to frame. A node under the
// pointer tells its title, and its row of the mask stays dark.
for (const box of document.querySelectorAll(".frames")) {
  const frames = [...box.children], told = document.createElement("p");
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: frames.length - 1 });
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let shown = null;
  const parts = () => [...(shown?.querySelectorAll("[data-key]") ?? [])];
  function show() {
    const before = new Map(parts().map((part) => [part.dataset.key, part.getBoundingClientRect()]));
    shown = frames[slider.value];
    for (const frame of frames) frame.hidden = frame !== shown;
    slider.setAttribute("aria-valuetext", shown.dataset.name);
    told.textContent = box.dataset.hint;
    if (shown.querySelector("[data-row]")) for (const node of shown.querySelectorAll("[data-node]")) node.tabIndex = 0;
    for (const part of still || !before.size ? [] : parts()) {
      const now = part.getBoundingClientRect(), old = before.get(part.dataset.key);
      const from = old ? { transform: `translate(${old.x - now.x}px, ${old.y - now.y}px)` } : { opacity: 0 };
      part.animate([from, old ? { transform: "none" } : { opacity: 1 }], 350);
    }
  }
  function tell({ target }) {
    const node = target.closest("[data-node]");
    for (const row of shown.querySelectorAll("[data-row]")) {
      row.style.opacity = !node || row.dataset.row === node.dataset.node ? 1 : 0.2;
    }
    told.textContent = node ? node.querySelector("title").textContent : box.dataset.hint;
  }
  slider.value = box.dataset.first;
  slider.setAttribute("aria-label", box.dataset.label);
  slider.oninput = show;
  for (const kind of ["pointerover", "focusin"]) box.addEventListener(kind, tell);
  box.before(slider);
  box.after(told);
  box.style.maxHeight = "none";
  show();
}
