// The tree designer: a draft tree that a person changes, replayed on recorded text in the browser. It loads nothing.
//
// A page has it as <div class="designer" data-from="ID">, where ID is the element with its data (see `designer.py`) as
// JSON; JupyterLab has it through anywidget. A tree is a list of paths of ranks, the root's [] first, level by level,
// siblings by rank; nodes are indices into it.
const MOST_NODES = 64, MOST_RANK = 64, FIRST_NODES = 16, FAR = 48;  // FAR: pixels that a node is dragged to prune it
const ACROSS = 42, DOWN = 50, RADIUS = 16, PREFIX = 128;  // pixels of the drawing; committed tokens before the root
const GREEN = [0, 158, 115], BLUE = "#0072b2", RED = "#d55e00";
const STEPS = ["plain", "forced"];  // methods of costs: plain steps, and checks of so many nodes
const COSTS_COLUMNS = { nodes: [0, 4096, true], ms: [0.001, 1e6] };
const ACCEPTANCE_COLUMNS = { depth: [1, 64, true], rank: [0, MOST_RANK - 1, true], acceptance: [0, 1] };
const OFFERED = ["best@16", "chain@8", "kary:2@14", "kary:3@12", "independent:2@16", "independent:4@16", "comb:3@16",
  "star@8", "expansion:2,2,1@16"];

// ------------------------------------------------------------------------------------------------------------- trees
const total = (values) => values.reduce((sum, value) => sum + value, 0);
const compare = (a, b) => a.length - b.length || a.reduce((difference, rank, i) => difference || rank - b[i], 0);

function treeOf(paths) {
  const tree = { paths: [[]], parents: [-1], children: [[]] }, numbers = new Map([["", 0]]);
  for (const path of [...paths].sort(compare)) {
    const parent = numbers.get(path.slice(0, -1).join()), number = tree.paths.length;
    if (parent === undefined || numbers.has(path.join())) throw Error(`path ${path} is there twice, or has no parent`);
    numbers.set(path.join(), number);
    tree.paths.push(path), tree.parents.push(parent), tree.children.push([]);
    tree.children[parent].push(number);
  }
  return { ...tree, depth: Math.max(...tree.paths.map((path) => path.length)), nodes: tree.paths.length - 1 };
}

const freeRank = (tree, node) =>  // children are by rank
  tree.children[node].reduce((free, child) => free + (tree.paths[child].at(-1) === free), 0);
const added = (tree, node) => treeOf([...tree.paths.slice(1), [...tree.paths[node], freeRank(tree, node)]]);

// Without a node and all below it.
function pruned(tree, node) {
  if (!node) throw Error("the root is the last committed token, which cannot be pruned: select another node");
  const gone = tree.paths[node], isGone = (path) => gone.every((rank, i) => rank === path[i]);
  return treeOf(tree.paths.slice(1).filter((path) => !isGone(path)));
}

// The first `count` draft nodes of an endless tree: widths of the first levels, then of all others.
function levelOrder(count, widths, then = 1, favouritesOnly = false) {
  const paths = [];
  for (let level = [[]], depth = 0; paths.length < count; ++depth) {
    const width = widths[depth] ?? then, next = [];
    for (const path of level) {
      if (favouritesOnly && path.some((rank) => rank)) continue;
      for (let rank = 0; rank < width && paths.length < count; ++rank) {
        next.push([...path, rank]);
        paths.push(next.at(-1));
      }
    }
    level = next;
  }
  return treeOf(paths);
}

// The tree of a name as Python has it ("kary:2@14", "chain:8"); "best@16" is grown from the texts that choose.
function named(name, drafter) {
  const [, family, numbers, budget] = /^([a-z]+)(?::([\d,]+))?(?:@(\d+))?$/.exec(name.trim()) ?? [];
  const given = numbers?.split(",").map(Number) ?? [], count = Number(budget ?? given[0]);
  const simple = { chain: [[]], star: [[count]], best: [] };  // arguments of levelOrder
  const wide = { kary: [[], given[0]], comb: [[], given[0], true], independent: [[given[0]]], expansion: [given] };
  const made = budget && given.length ? wide[family] : simple[family];
  if (!made || !(count > 0 && count <= MOST_NODES) || !given.every((number) => number > 0)) {
    throw Error(`${name} names no tree of 1 to ${MOST_NODES} nodes: write one such as ${OFFERED.join(", ")}`);
  }
  return family === "best" ? bestTree(drafter, count) : levelOrder(count, ...made);
}

// "0,1,0.0" and back: the paths of all nodes.
const written = (tree) => tree.paths.slice(1).map((path) => path.join(".")).join();
function read(text) {
  if (!/^\d+([.,]\d+)*$/.test(text)) throw Error("its tree cannot be read");
  return treeOf(text.split(",").map((path) => path.split(".").map(Number)));
}

// --------------------------------------------------------------------------------------------------------- recordings
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A drafter with `rank(row, start, depth)`, the rank of the token so far ahead, 255 from the end of the text on, and
// `reach(path)`, the share of starts from which the target accepts the path, on the texts that choose.
async function drafterOf(name, recorded, texts) {
  const ranks = await unpacked(recorded.ranks), length = texts.width, { levels, starts, lines, drafting } = recorded;
  const inWindow = (row, start, depth) => ranks[(row * length + start) * levels + depth];
  const inText = (row, start, depth) => start + depth < length ? ranks[row * length + start + depth] : 255;
  const order = recorded.paths.map(([path]) => path.split(".").map(Number)), counts = new Map(recorded.paths);
  const reach = (path) => path.length ? (counts.get(path.join(".")) ?? 0) / starts : 1;
  return { name, levels, order, lines, drafting, reach, rank: recorded.windows ? inWindow : inText };
}

// A drafter by a table of acceptance by depth and rank, which has no `rank`, since nothing is replayed.
function modelOf(name, rows) {
  const chances = new Map(rows.map(({ depth, rank, acceptance }) => [`${depth},${rank}`, acceptance]));
  const levels = Math.max(...rows.map(({ depth }) => depth)), sums = new Array(levels + 1).fill(0);
  for (const { depth, acceptance } of rows) sums[depth] += acceptance;
  const wrong = sums.findIndex((sum) => sum > 1.001);
  if (wrong >= 0) throw Error(`acceptance at depth ${wrong} is ${sums[wrong].toFixed(2)} in all ranks: give at most 1`);
  const reach = (path) => path.reduce((chance, rank, i) => chance * (chances.get(`${i + 1},${rank}`) ?? 0), 1);
  return { name, levels, order: [], lines: [], drafting: {}, reach };
}

function bestTree(drafter, count) {
  if (drafter.order.length >= count) return treeOf(drafter.order.slice(0, count));
  let tree = treeOf([]);
  while (tree.nodes < count) tree = added(tree, bestToAdd(tree, drafter).node);
  return tree;
}

function bestToAdd(tree, drafter) {
  const gains = tree.paths.map((path, node) =>
    path.length < drafter.levels ? drafter.reach([...path, freeRank(tree, node)]) : -1);
  const node = gains.indexOf(Math.max(...gains));
  return { node, gain: gains[node] };
}
function cheapestToDrop(tree, drafter) {
  const shares = tree.paths.map((path, node) => tree.children[node].length ? Infinity : drafter.reach(path));
  const node = shares.lastIndexOf(Math.min(...shares));
  return { node, loss: shares[node] };
}

// The rounds of a tree one after another on each text, as Python's replay has them: by text the rounds and the accepted
// tokens, and by node the share of rounds that accept it.
function replay(tree, drafter, texts) {
  const size = tree.paths.length, next = new Int16Array(size * MOST_RANK).fill(-1);
  tree.parents.forEach((parent, node) => {
    const rank = tree.paths[node].at(-1);
    if (node && rank < MOST_RANK) next[parent * MOST_RANK + rank] = node;
  });
  const [rounds, accepted] = [0, 1].map(() => new Float64Array(texts.lengths.length)), ends = new Float64Array(size);
  for (let row = 0; row < texts.lengths.length; ++row) {
    const whole = texts.lengths[row], decided = Math.max(texts.ends[row] - tree.depth, 0);
    const limit = texts.ended[row] ? whole : Math.min(whole, decided);
    for (let start = 0; start < limit;) {
      let node = 0, depth = 0;
      for (; depth < tree.depth; ++depth) {
        const rank = drafter.rank(row, start, depth), child = rank < MOST_RANK ? next[node * MOST_RANK + rank] : -1;
        if (child < 0) break;
        node = child;
      }
      ++ends[node], ++rounds[row], accepted[row] += depth, start += depth + 1;
    }
  }
  const all = total(rounds), shares = [...ends];
  for (let node = size - 1; node > 0; --node) shares[tree.parents[node]] += shares[node];
  return { rounds, accepted, shares: shares.map((count) => count / Math.max(1, all)) };
}

// ---------------------------------------------------------------------------------------------------------- estimates
// Draws of units with replacement, the same for all trees, so that they are compared on equal terms.
function drawn(units, count = 1000) {
  let state = 1;
  const random = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  return Array.from({ length: count }, () => Uint16Array.from({ length: units }, () => random() * units));
}

// Sum of accepted over sum of per-row denominators, with an interval over units.
function ratio(top, bottom, texts) {
  const tops = new Float64Array(texts.count), bottoms = new Float64Array(texts.count);
  texts.units.forEach((unit, row) => { tops[unit] += top[row], bottoms[unit] += bottom[row]; });
  const value = total(tops) / total(bottoms);
  if (texts.count < 8) return { value };
  const values = texts.draws.map((draw) => {
    let above = 0, below = 0;
    for (const unit of draw) above += tops[unit], below += bottoms[unit];
    return above / below;
  }).sort((a, b) => a - b);
  const at = (chance) => values[Math.round(chance * (values.length - 1))];
  return { value, low: at(texts.tail), high: at(1 - texts.tail) };
}

// The curve through [amount, value] that never falls, closest in least squares (its min-max formula); beyond the last
// point it has the mean slope over the last half of the amounts.
function curveThrough(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0]), indices = [...sorted.keys()];
  const mean = (from, to) => total(sorted.slice(from, to + 1).map(([, value]) => value)) / (to - from + 1);
  const flat = sorted.map(([amount], i) => [amount, Math.max(...indices.slice(0, i + 1).map((from) =>
    Math.min(...indices.slice(i).map((to) => mean(from, to)))))]);
  const between = (amount) => {
    const after = flat.findIndex(([own]) => own >= amount);
    if (after <= 0) return flat.at(after)[1];
    const [[left, low], [right, high]] = [flat[after - 1], flat[after]];
    return low + (high - low) * (amount - left) / (right - left);
  };
  const last = flat.at(-1)[0], half = Math.max(flat[0][0], last / 2);
  const slope = (flat.at(-1)[1] - between(half)) / Math.max(last - half, 1e-12);
  return (amount) => between(Math.min(amount, last)) + slope * Math.max(0, amount - last);
}

// Of rows [name, batch, method, nodes, ms], by name and batch a plain step, the curve of checks and their most nodes.
function machinesOf(rows) {
  const machines = {};
  for (const [name, batch, , , plain] of rows.filter(([, , method]) => method === "plain")) {
    const points = rows.filter((row) => row[0] === name && row[1] === batch).map((row) => row.slice(3));
    const most = Math.max(...points.map(([nodes]) => nodes));
    if (most) (machines[name] ??= {})[batch] = { plain, check: curveThrough(points), most };
  }
  return machines;
}

function numberIn(text, [least, most, isWhole], name) {
  const number = Number(text);
  if (text && number >= least && number <= most && !(isWhole && number % 1)) return number;
  throw Error(`${name} "${text ?? ""}": give a ${isWhole ? "whole " : ""}number from ${least} to ${most}`);
}

const timeOf = (text) => numberIn(text, [0, 1e6], "drafting takes");

// Rows of a CSV text as objects, of costs those of steps alone. columns: the limits of numbers.
function table(text, columns) {
  const names = Object.keys(columns), split = (line) => [...line.matchAll(/(?<=^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g)]
    .map(([, quoted, word]) => (quoted ?? word).trim());
  const [head, ...lines] = text.trim().split(/\r?\n/).map(split), missing = names.find((name) => !head.includes(name));
  if (missing) throw Error(`row 1 has no column ${missing}: name ${names.join(", ")} there, with commas between`);
  if (!lines.length) throw Error("row 2 is missing: give rows below the names of columns");
  return lines.flatMap((words, index) => {
    const row = Object.fromEntries(head.map((name, i) => [name, words[i]]));
    if (row.method && !STEPS.includes(row.method)) return [];
    for (const name of names) row[name] = numberIn(row[name], columns[name], `row ${index + 2}: ${name} is`);
    return row;
  });
}

// ------------------------------------------------------------------------------------------------------------ drawing
// Each node's place from the left: leaves side by side, a parent midway between its first and last child.
function places(tree) {
  const across = [];
  let leaves = 0;
  const place = (node) => {
    const children = tree.children[node];
    children.forEach(place);
    across[node] = children.length ? (across[children[0]] + across[children.at(-1)]) / 2 : leaves++;
  };
  place(0);
  return across;
}

const shaded = (value) => {
  const strength = 0.08 + 0.92 * Math.sqrt(Math.min(1, Math.max(0, value)));
  return `rgb(${GREEN.map((part) => Math.round(255 + strength * (part - 255))).join()})`;
};
const percent = (value) => `${(100 * value).toFixed(1)}%`;
const shown = ({ value, low, high }, text = (number) => number.toFixed(2)) =>
  text(value) + (low === undefined ? "" : ` [${text(low)}, ${text(high)}]`);

function treeSvg(tree, shares, best, cheapest) {
  const across = places(tree), x = (node) => Math.round(ACROSS * (across[node] + 0.6));
  const y = (node) => Math.round(DOWN * (tree.paths[node].length + 0.45));
  const lines = tree.parents.map((parent, node) => node
    ? `<line x1="${x(parent)}" y1="${y(parent)}" x2="${x(node)}" y2="${y(node)}"/>` : "");
  const boxes = tree.paths.map((path, node) => {
    const label = node ? shares[node].toFixed(2).replace(/^0/, "") : "root", pale = node && shares[node] < 0.35;
    const colour = { [cheapest]: RED, [best]: BLUE }[node], ring = colour ? `stroke:${colour};stroke-width:3` : "";
    const told = `node ${node}, ranks ${path.join(", ") || "none"}: accepted in ${percent(shares[node])} of rounds`;
    return `<g class="node" data-node="${node}"><title>${told}</title>
<rect x="${x(node) - RADIUS}" y="${y(node) - RADIUS}" width="${2 * RADIUS}" height="${2 * RADIUS}" rx="${RADIUS}"
fill="${node ? shaded(shares[node]) : "#000"}" style="${ring}"/>
<text x="${x(node)}" y="${y(node) + 4}" fill="${pale ? "#000" : "#fff"}">${label}</text></g>`;
  });
  const width = ACROSS * (Math.max(...across) + 1.2), height = DOWN * (tree.depth + 0.9);
  return `<svg width="${width}" height="${height}" text-anchor="middle" font-family="monospace" font-size="11">
${lines.join("")}${boxes.join("")}</svg>`;
}

function maskSvg(tree) {
  const size = tree.paths.length, cell = Math.max(3, Math.min(16, Math.floor(420 / size))), side = cell - 1;
  let cells = "", positions = "";
  tree.paths.forEach((path, row) => {
    for (let key = row; key >= 0; key = tree.parents[key]) {
      cells += `M${cell * key} ${cell * row}h${side}v${side}h${-side}z`;
    }
    const text = `<text x="${cell * size + 6}" y="${cell * (row + 0.8)}">${PREFIX + path.length}</text>`;
    if (cell > 8 || row % 4 === 0) positions += text;
  });
  return `<svg width="${cell * size + 44}" viewBox="0 0 ${cell * size + 44} ${cell * size}" font-family="monospace"
role="img" aria-label="mask" font-size="${Math.min(10, cell + 2)}"><path d="${cells}" fill="#555"/>${positions}</svg>`;
}

// ------------------------------------------------------------------------------------------------------- the designer
const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const tableOf = (rows) => `<table>${rows.map((row) => `<tr><td>${row.join("</td><td>")}</td></tr>`).join("")}</table>`;

// A state is { tree, drafter, costs, batch, drafting }, where drafting has the milliseconds of a round and of each of
// its levels. A change makes a new one, which can be undone.
class Designer {
  constructor(el, parts, texts, drafters, machines) {
    Object.assign(this, { texts, drafters, machines, parts: {}, own: {}, history: [], position: -1, selected: 0 });
    el.classList.add("designer");
    el.innerHTML = parts;
    for (const part of el.querySelectorAll("[data-part]")) this.parts[part.dataset.part] = part;
    this.listen();
    this.listenToCanvas(this.parts.canvas);
  }
  get now() { return this.history[this.position]; }
  listen() {
    this.commands = {  // by key
      Enter: () => this.add(this.selected), Delete: () => this.prune(this.selected),
      u: () => this.go(this.position - 1), r: () => this.go(this.position + 1),
      a: () => this.add(this.hints.add.node), d: () => this.prune(this.hints.drop.node), c: () => this.copy() };
    this.parts.bar.onclick = ({ target: { dataset } }) => dataset.key && this.attempt(this.commands[dataset.key]);
    const changes = {
      name: (value) => ({ tree: named(value, this.now.drafter) }), costs: (costs) => ({ costs }),
      drafter: (value) => ({ drafter: this.drafters[value] }), batch: (batch) => ({ batch }),
      round: (value) => ({ drafting: [timeOf(value), this.now.drafting[1]] }),
      level: (value) => ({ drafting: [this.now.drafting[0], timeOf(value)] }),
      pasted: (text) => this.learn("", text) };
    for (const [name, change] of Object.entries(changes)) {
      this.parts[name].onchange = ({ target }) => this.attempt(() => this.take(change(target.value)));
    }
    this.parts.file.onchange = async ({ target }) => {
      const [file] = target.files, text = await file.text();
      target.value = "";  // so that the same file can be chosen again
      this.attempt(() => this.take(this.learn(file.name, text)));
    };
  }
  listenToCanvas(canvas) {
    canvas.onkeydown = (event) => {
      const isControl = event.ctrlKey || event.metaKey, others = { "+": "Enter", Backspace: "Delete" };
      const key = isControl ? { z: "u", y: "r", Z: "r" }[event.key] : others[event.key] ?? event.key;
      if (event.key.startsWith("Arrow")) this.move(event.key);
      else if (this.commands[key] && !event.altKey) this.attempt(this.commands[key]);
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    let pressed = null;
    canvas.onpointerdown = ({ target, button, clientX, clientY }) => {
      const node = button ? null : target.closest(".node");
      pressed = node && { node, number: Number(node.dataset.node), x: clientX, y: clientY };
    };
    canvas.onpointermove = ({ clientX, clientY }) => {
      if (!pressed?.number) return;
      pressed.node.setAttribute("transform", `translate(${clientX - pressed.x} ${clientY - pressed.y})`);
    };
    const end = ({ type, clientX, clientY }) => {
      if (!pressed) return;
      const { node, number, x, y } = pressed, isFar = Math.hypot(clientX - x, clientY - y) > FAR;
      pressed = null;
      node.removeAttribute("transform");
      if (isFar && type !== "pointercancel") this.attempt(() => this.prune(number));
      else if (type !== "pointerup") return;
      else if (number === this.selected) this.attempt(() => this.add(number));
      else this.select(number);
      canvas.focus({ preventScroll: true });
    };
    for (const kind of ["pointerup", "pointercancel", "pointerleave"]) canvas.addEventListener(kind, end);
  }

  // ---- changes
  attempt(change) {
    this.say("");
    try {
      change();
    } catch (reason) {
      this.say(reason.message);
      this.restore();
    }
  }
  take(change, selected = 0) {
    const state = { ...this.now, ...change }, { drafter, costs } = state, { name, levels } = drafter;
    const kept = state.tree.paths.slice(1).filter((path) => path.length <= levels);
    if (change.costs) state.batch = change.batch ?? Object.keys(this.machines[costs])[0];
    if (!change.drafting && !change.tree) state.drafting = drafter.drafting[costs]?.[state.batch] ?? state.drafting;
    if (!change.tree && kept.length < state.tree.nodes) {
      state.tree = treeOf(kept);
      this.say(`The tree was cut at ${levels} levels, as ${name} is known for no more: undo brings it back.`);
    }
    const { nodes, depth } = state.tree;
    if (nodes < 1 || nodes > MOST_NODES) throw Error(`the tree would have ${nodes} nodes: give 1 to ${MOST_NODES}`);
    if (depth > levels) throw Error(`the tree would have ${depth} levels: give ${levels} at most, as ${name} has`);
    this.history = [...this.history.slice(0, this.position + 1), state];
    this.selected = selected;
    this.go(this.position + 1);
  }
  say(words) { this.parts.message.textContent = words; }
  add(node) { this.take({ tree: added(this.now.tree, node) }, node); }
  prune(node) { this.take({ tree: pruned(this.now.tree, node) }, this.now.tree.parents[node]); }
  go(position) {
    if (!this.history[position]) return;
    this.position = position;
    this.selected = Math.min(this.selected, this.now.tree.nodes);
    this.show();
  }
  copy() {  // also selects, as a page without https cannot copy
    getSelection().selectAllChildren(this.parts.lines.querySelector("pre"));
    navigator.clipboard?.writeText(this.python).catch(() => {});
  }

  // The change to a person's own costs or acceptance, from CSV.
  learn(name, text) {
    if (/acceptance/.test(text.trim().split("\n")[0])) {
      const drafter = modelOf(name || "your drafter", table(text, ACCEPTANCE_COLUMNS));
      this.drafters[drafter.name] = drafter;
      this.own[drafter.name] = [name, text];
      return { drafter };
    }
    const machines = machinesOf(table(text, COSTS_COLUMNS).map(({ backend, batch, method, nodes, ms }) => [
      [name || "your costs", backend].filter(Boolean).join(", "), Number(batch || 1),
      method || STEPS[Number(nodes > 0)], nodes, ms]));
    const [costs] = Object.keys(machines);
    if (!costs) throw Error("the costs have no plain step (nodes 0), or no check (nodes from 1 on): add their rows");
    Object.assign(this.machines, machines);
    for (const machine of Object.keys(machines)) this.own[machine] = [name, text];
    return { costs };
  }

  // ---- what is shown
  worth(tree) {
    const { drafter, costs, batch, drafting: [round, level] } = this.now;
    const { plain, check } = this.machines[costs][batch];
    const step = check(tree.nodes) + round + level * tree.depth;
    const { rounds, accepted, shares } = drafter.rank ? replay(tree, drafter, this.texts)
      : { shares: tree.paths.map(drafter.reach) };
    const length = rounds ? ratio(accepted, rounds, this.texts) : { value: total(shares) - 1 };
    const each = (change) => Object.fromEntries(Object.entries(length).map(([key, tokens]) => [key, change(tokens)]));
    return { rounds, accepted, shares, length, rate: each((tokens) => tokens / tree.nodes),
      speed: each((tokens) => (1 + tokens) * plain / step) };
  }
  show() {
    const { tree, drafter, costs, batch, drafting } = this.now, worth = this.worth(tree);
    this.shares = worth.shares;
    this.hints = { add: bestToAdd(tree, drafter), drop: cheapestToDrop(tree, drafter) };
    this.parts.canvas.innerHTML = treeSvg(tree, worth.shares, this.hints.add.node, this.hints.drop.node);
    this.parts.mask.innerHTML = maskSvg(tree);
    this.showNumbers(worth);
    this.showLines();
    this.restore();
    this.select(this.selected);
    const own = [drafter.name, costs].filter((name) => this.own[name]).map((name) => this.own[name]);
    this.onshow?.(new URLSearchParams({ tree: written(tree), drafter: drafter.name, costs, batch, drafting,
      ...(own.length && { own: JSON.stringify(own) }) }));
  }
  showNumbers(worth) {
    const { tree, drafter, costs, batch, drafting: [round, level] } = this.now, { kinds, turns } = this.texts;
    const { plain, check, most } = this.machines[costs][batch], isTimed = drafter.drafting[costs]?.[batch];
    const chain = levelOrder(Math.min(tree.nodes, drafter.levels), []), best = bestTree(drafter, tree.nodes);
    const rows = [["this tree", tree, worth], ["best tree of its size", best, this.worth(best)],
      [`chain of ${chain.nodes}`, chain, this.worth(chain)]].map(([name, { nodes, depth }, { speed, length, rate }]) =>
      [name, shown(speed), shown(length), shown(rate, percent), nodes, depth]);
    const source = !drafter.rank ? "Accepted tokens follow from your table, each token independent of the others."
      : `Replayed on recorded text of ${this.texts.target}: ${this.texts.count} prompts, intervals of 95 %; best trees `
        + "and hints come from other prompts.";
    const cautions = (tree.nodes > most ? ` No check of more than ${most} nodes was measured there.` : "")
      + (isTimed ? "" : ` How long ${drafter.name} drafts there was not measured: type it above.`);
    this.parts.numbers.innerHTML = `${tableOf([["", "predicted speed over plain", "accepted per round",
      "acceptance rate", "nodes", "depth"], ...rows])}<p>${escaped(source)} Speed: tokens per round, times
${plain.toPrecision(3)} ms of a plain step, over ${check(tree.nodes).toPrecision(3)} ms of a check and
${(round + level * tree.depth).toPrecision(3)} ms of drafting.${escaped(cautions)}</p>`;
    const label = (row) => kinds[row] + (turns[row] > 1 ? ", later turns" : "");
    const byLabel = Object.groupBy(worth.rounds ? kinds.keys() : [], label);
    const mean = (rows) => total(rows.map((row) => worth.accepted[row])) / total(rows.map((row) => worth.rounds[row]));
    this.parts.kinds.innerHTML = tableOf(Object.entries(byLabel).map(([name, rows]) =>
      [escaped(name), mean(rows).toFixed(2)]).sort((a, b) => a[1] - b[1]));
  }
  showLines() {
    const { tree, drafter } = this.now, depth = Math.min(tree.nodes, drafter.levels);
    const choices = tree.paths.slice(1).map((path) => `(${path.join(", ")}${path.length === 1 ? "," : ""})`);
    this.python = `from lib.decoding import generate
from lib.drafters import make
from lib.trees import Tree

tree = Tree.from_choices([${choices.join(", ")}])
result = generate(pair.target, make("${drafter.rank ? drafter.name : "..."}", pair), input_ids, shape=tree)`;
    const blocks = [["Python: this tree in this project's own loop", this.python], ...drafter.lines.map(
      ([engine, lines]) => [`${engine}, which drafts a chain, here of ${depth}`, lines[depth - 1]])];
    this.parts.lines.innerHTML = blocks.map(([title, code]) =>
      `<p>${escaped(title)}</p><pre>${escaped(code)}</pre>`).join("");
  }

  // Controls show what is drawn, also after a choice was refused.
  restore() {
    const { drafter, costs, batch, drafting } = this.now, { parts } = this;
    const offer = (list, values, value) => {
      if (list.textContent !== values.join("")) list.replaceChildren(...values.map((one) => new Option(one, one)));
      list.value = value;
    };
    offer(parts.drafter, Object.keys(this.drafters), drafter.name);
    offer(parts.costs, Object.keys(this.machines), costs);
    offer(parts.batch, Object.keys(this.machines[costs]), batch);
    offer(parts.names, OFFERED.filter((name) => named(name, drafter).depth <= drafter.levels));
    [parts.round.value, parts.level.value] = drafting;
    parts.name.value = "";
  }
  select(number) {
    const { paths } = this.now.tree, { add, drop } = this.hints, { canvas, status } = this.parts;
    this.selected = number;
    for (const node of canvas.querySelectorAll(".node")) {
      node.classList.toggle("selected", Number(node.dataset.node) === number);
    }
    const selected = number ? `Node ${number} (ranks ${paths[number].join(", ")}) is accepted in `
      + `${percent(this.shares[number])} of rounds.` : "The root, the last committed token, is selected.";
    status.textContent = `${selected} Best to add: a child of node ${add.node} (blue), ${add.gain.toFixed(3)} tokens `
      + `per round more; cheapest to drop: node ${drop.node} (red), ${drop.loss.toFixed(3)} less.`;
    const { x, y } = canvas.querySelector(".selected rect"), near = (from, size, { baseVal: { value } }) =>
      Math.min(value, Math.max(from, value + 3 * RADIUS - size));
    canvas.scrollTo(near(canvas.scrollLeft, canvas.clientWidth, x), near(canvas.scrollTop, canvas.clientHeight, y));
  }
  move(key) {
    const { parents, children, paths } = this.now.tree, from = this.selected, to = {
      ArrowUp: parents[from], ArrowDown: children[from][0], ArrowLeft: from - 1, ArrowRight: from + 1 }[key];
    const isBeside = paths[to]?.length === paths[from].length;
    if (paths[to] && isBeside === (key === "ArrowLeft" || key === "ArrowRight")) this.select(to);
  }

  // From an address, or without one from the best tree of the first drafter that was timed on the first machine.
  begin(address) {
    const [[costs, batches]] = Object.entries(this.machines), [batch] = Object.keys(batches);
    const all = Object.values(this.drafters), timed = all.find(({ drafting }) => drafting[costs]?.[batch]) ?? all[0];
    const first = { tree: bestTree(timed, FIRST_NODES), drafter: timed, costs,
      drafting: timed.drafting[costs]?.[batch] ?? [0, 0] };
    this.say("");
    if (!address) return this.take(first);
    try {
      const { own = "[]", tree = "", drafting = "", ...given } = Object.fromEntries(new URLSearchParams(address));
      for (const [name, text] of JSON.parse(own)) this.learn(name, text);
      const drafter = this.drafters[given.drafter], { costs, batch } = given, [round, level] = drafting.split(",");
      if (!drafter || !this.machines[costs]?.[batch]) throw Error("it names a drafter or costs that are not here");
      this.take({ costs, batch, drafter, tree: read(tree), drafting: [round, level].map(timeOf) });
    } catch (reason) {
      this.take(first);
      this.say(`The address describes no design (${reason.message}); this is the start.`);
    }
  }
}

async function start(el, data, address = "") {
  const count = Math.max(...data.texts.units) + 1, texts = { ...data.texts, count, draws: drawn(count) }, drafters = {};
  for (const [name, recorded] of Object.entries(data.drafters)) drafters[name] = await drafterOf(name, recorded, texts);
  const designer = new Designer(el, data.parts, texts, drafters, machinesOf(data.costs));
  designer.begin(address);
  return designer;
}

for (const el of globalThis.document?.querySelectorAll(".designer[data-from]") ?? []) {
  const address = () => document.getElementById(location.hash.slice(1)) ? "" : location.hash.slice(1);  // no heading
  const data = JSON.parse(document.getElementById(el.dataset.from).textContent);
  start(el, data, address()).then((designer) => {
    const show = (state) => history.replaceState(null, "", `#${state}`);
    designer.onshow = (state) => setTimeout(show, 100, state);  // after the frame, which it would delay
    addEventListener("hashchange", () => address() && designer.begin(address()));
  });
}
export { drafterOf, read, replay, treeOf, written };
export default { render: async ({ model, el }) => { await start(el, model.get("data")); } };
