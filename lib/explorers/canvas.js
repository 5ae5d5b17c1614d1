// A tree that answers clicks, drags and keys with commands to Python, which sends the drawing back.
const COMMANDS = [["undo", "u", "Undo"], ["redo", "r", "Redo"], ["add hint", "a", "Add the best node"],
  ["drop hint", "d", "Drop the cheapest node"], ["grow", "g", "Grow to the budget"]];
const FAR = 48;  // pixels that a node is pulled away to prune it

function render({ model, el }) {
  let selected = 0, pressed = null;
  const send = (command, node = selected) => model.send({ command, node });
  const make = (name, parent, more = {}) => parent.appendChild(Object.assign(document.createElement(name), more));
  const style = make("style", el);
  style.textContent = `.canvas{overflow:auto;max-height:520px;border:1px solid #ddd;border-radius:6px;padding:6px;
      user-select:none;-webkit-user-select:none}
    .canvas:focus{outline:3px solid #56b4e9} .canvas .node{cursor:pointer} .canvas .node:hover rect{opacity:.8}
    .canvas .selected rect{stroke:#000;stroke-width:2;stroke-dasharray:3 2} .canvas .selected text{font-weight:bold;text-decoration:underline} .designer button{margin:0 4px 6px 0;padding:3px 9px}`;
  el.classList.add("designer");
  const bar = make("div", el), buttons = {};
  for (const [command, key, label] of COMMANDS) {
    buttons[command] = make("button", bar, { textContent: `${label} (${key})`, onclick: () => send(command) });
  }
  make("button", bar, { textContent: "Copy (c)", className: "copy", onclick: copy });
  const canvas = make("div", el, { className: "canvas", tabIndex: 0 });
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Draft tree. Arrow keys select a node, Enter adds a child, Delete prunes it.");
  const words = make("div", el);
  words.setAttribute("aria-live", "polite");

  function copy() {
    navigator.clipboard?.writeText(model.get("code"));
    words.textContent = "Copied: the Python line and the choices.";
  }
  const nodes = () => [...canvas.querySelectorAll(".node")];
  const group = (node) => canvas.querySelector(`.node[data-node="${node}"]`);
  const parentOf = (node) => Number(group(node).dataset.parent);
  const childrenOf = (node) => nodes().filter((one) => Number(one.dataset.parent) === node).map((one) => Number(one.dataset.node));
  function select(node) {
    selected = node;
    nodes().forEach((one) => one.classList.toggle("selected", Number(one.dataset.node) === node));
    group(node).scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  function move(key) {
    if (key === "ArrowUp" && selected) return select(parentOf(selected));
    if (key === "ArrowDown") return childrenOf(selected).slice(0, 1).forEach(select);
    const row = selected ? childrenOf(parentOf(selected)) : [];
    const next = row[row.indexOf(selected) + (key === "ArrowLeft" ? -1 : 1)];
    if (next !== undefined) select(next);
  }
  canvas.onkeydown = (event) => {
    const command = COMMANDS.find(([, key]) => key === event.key)?.[0];
    if (event.key.startsWith("Arrow")) move(event.key);
    else if (event.key === "Enter" || event.key === "+") send("add");
    else if (event.key === "Delete" || event.key === "Backspace") send("prune");
    else if ((event.ctrlKey || event.metaKey) && event.key === "z") send("undo");
    else if ((event.ctrlKey || event.metaKey) && event.key === "y") send("redo");
    else if (event.ctrlKey || event.metaKey || event.altKey) return;
    else if (event.key === "c") copy();
    else if (command) send(command);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  canvas.onpointerdown = (event) => {
    const node = event.target.closest(".node");
    pressed = node && { node: Number(node.dataset.node), x: event.clientX, y: event.clientY };
  };
  canvas.onpointermove = (event) => {
    if (pressed?.node) group(pressed.node)?.setAttribute("transform", `translate(${event.clientX - pressed.x} ${event.clientY - pressed.y})`);
  };
  canvas.onpointerup = canvas.onpointerleave = (event) => {
    if (!pressed) return;
    const far = Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) > FAR;
    const { node } = pressed;
    pressed = null;
    group(node)?.removeAttribute("transform");
    select(node);
    if (event.type === "pointerup" || far) send(far ? "prune" : "add", node);
  };
  function show() {
    canvas.innerHTML = model.get("svg");
    select(Math.max(0, Math.min(model.get("selected"), nodes().length - 1)));
    words.textContent = model.get("words");
    buttons.undo.disabled = !model.get("undoable");
    buttons.redo.disabled = !model.get("redoable");
  }
  model.on("change:version", show);
  show();
}
export default { render };
