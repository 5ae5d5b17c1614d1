// The tree designer: a draft tree under your hands, replayed on recorded text in the browser. It loads nothing.
//
// A page has it as <div class="designer" data-from="ID">, where ID is the element with its data as JSON; JupyterLab has
// it through anywidget. `designer.py` writes the data and says what is in it. A tree is a list of paths of ranks, the
// root's [] first, level by level and siblings by rank; nodes are indices into it.
const MOST_NODES = 64, MOST_RANK = 64, FAR = 48;  // FAR: pixels that a node is pulled away to prune it
const ACROSS = 42, DOWN = 50, RADIUS = 16, PREFIX = 128;  // of the drawing; committed tokens before the root
const GREEN = [0, 158, 115], BLUE = "#0072b2", RED = "#d55e00";
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
  tree.depth = Math.max(...tree.paths.map((path) => path.length));
  tree.nodes = tree.paths.length - 1;
  return tree;
}

const freeRank = (tree, node) => {  // children are by rank
  const free = tree.children[node].findIndex((child, rank) => tree.paths[child].at(-1) !== rank);
  return free < 0 ? tree.children[node].length : free;
};
const added = (tree, node) => treeOf([...tree.paths.slice(1), [...tree.paths[node], freeRank(tree, node)]]);

// Without a node and all below it; later siblings take its rank.
function pruned(tree, node) {
  if (!node) throw Error("the root is the last committed token, which cannot be pruned: select another node");
  const gone = tree.paths[node], last = gone.length - 1;
  const begins = (path) => gone.slice(0, last).every((rank, i) => rank === path[i]);
  const kept = tree.paths.slice(1).filter((path) => !(begins(path) && path[last] === gone[last]));
  return treeOf(kept.map((path) => begins(path) && path[last] > gone[last] ? path.with(last, path[last] - 1) : path));
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
  if (!made || !(count > 0) || !given.every((number) => number > 0)) {
    throw Error(`${name} names no tree here: write one such as ${OFFERED.join(", ")}`);
  }
  if (count > MOST_NODES) throw Error(`${name} has ${count} nodes: give 1 to ${MOST_NODES}`);
  return family === "best" ? bestTree(drafter, count) : levelOrder(count, ...made);
}

// "0(0,1(2)),1" and back: ranks, with those below in brackets.
function written(tree, node = 0) {
  return tree.children[node].map((child) => {
    const below = written(tree, child);
    return tree.paths[child].at(-1) + (below && `(${below})`);
  }).join();
}
function read(text) {
  if (!/^[\d(),]+$/.test(text)) throw Error("the tree cannot be read");
  const paths = [], path = [];
  for (const [word] of text.matchAll(/\d+|[()]/g)) {
    if (word === "(") path.push(paths.at(-1)?.at(-1));
    else if (word === ")") path.pop();
    else paths.push([...path, Number(word)]);
    if (path.includes(undefined)) throw Error("the tree cannot be read");
  }
  return treeOf(paths);
}

// --------------------------------------------------------------------------------------------------------- recordings
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Drafters with `rank(row, start, depth)`: the rank of the token so far ahead, 255 from the end of the text on.
async function drafterOf(name, one, texts) {
  const ranks = await unpacked(one.ranks), length = texts.width, levels = one.levels;
  const { starts, lines, drafting } = one, order = one.paths.map(([path]) => path.split(".").map(Number));
  const inWindow = (row, start, depth) => ranks[(row * length + start) * levels + depth];
  const inText = (row, start, depth) => start + depth < length ? ranks[row * length + start + depth] : 255;
  const rank = one.windows ? inWindow : inText, counts = new Map(one.paths);
  return { name, levels, order, starts, lines, drafting, counts, rank };
}

// A drafter by a table of acceptance by depth and rank, for which nothing is replayed.
function modelOf(name, rows) {
  const at = new Map(rows.map(([depth, rank, acceptance]) => [`${depth},${rank}`, acceptance]));
  const levels = Math.max(...rows.map(([depth]) => depth));
  const reach = (path) => path.reduce((chance, rank, i) => chance * (at.get(`${i + 1},${rank}`) ?? 0), 1);
  return { name, levels, lines: [], drafting: 0, reach };
}

// Of a path the share of the starts that have it, on the texts that choose.
const share = (drafter, path) =>
  drafter.reach?.(path) ?? (path.length ? (drafter.counts.get(path.join(".")) ?? 0) / drafter.starts : 1);

function bestTree(drafter, count) {
  if (!drafter.reach && drafter.order.length >= count) return treeOf(drafter.order.slice(0, count));
  let tree = treeOf([]);
  while (tree.nodes < count) tree = added(tree, bestToAdd(tree, drafter).node);
  return tree;
}

function bestToAdd(tree, drafter) {
  const gains = tree.paths.map((path, node) => path.length < drafter.levels
    ? share(drafter, [...path, freeRank(tree, node)]) : -1);
  const node = gains.indexOf(Math.max(...gains));
  return { node, gain: gains[node] };
}
function cheapestToDrop(tree, drafter) {
  const shares = tree.paths.map((path, node) => tree.children[node].length ? Infinity : share(drafter, path));
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
  const rounds = new Float64Array(texts.rows), accepted = new Float64Array(texts.rows), ends = new Float64Array(size);
  for (let row = 0; row < texts.rows; ++row) {
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

// The curve through [amount, value] that never falls, closest in least squares; beyond the last point it has the mean
// slope over the last half of the amounts.
function curveThrough(points) {
  const blocks = [];
  for (const [amount, value] of [...points].sort((a, b) => a[0] - b[0])) {
    blocks.push({ amounts: [amount], sum: value, count: 1 });
    const mean = (index) => blocks.at(index).sum / blocks.at(index).count;
    while (blocks.length > 1 && mean(-2) > mean(-1)) {
      const last = blocks.pop(), before = blocks.at(-1);
      before.amounts.push(...last.amounts), before.sum += last.sum, before.count += last.count;
    }
  }
  const flat = blocks.flatMap(({ amounts, sum, count }) => amounts.map((amount) => [amount, sum / count]));
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

// By name and batch size, of rows [name, batch, method, nodes, ms], a plain step and the curve of checks.
function machinesOf(rows) {
  const machines = {};
  for (const [name, batch] of rows.filter(([, , method]) => method === "plain")) {
    const own = rows.filter((row) => row[0] === name && row[1] === batch), points = own.map((row) => row.slice(3));
    const plain = own.find((row) => row[2] === "plain")[4], check = curveThrough(points);
    if (own.length > 1) (machines[name] ??= {})[batch] = { plain, check };
  }
  return machines;
}

// Rows of a CSV text with these columns of numbers. Error with row, value and remedy.
function table(text, columns) {
  const split = (line) => line.split(",").map((word) => word.trim().replace(/^"|"$/g, ""));
  const [head, ...lines] = text.trim().split(/\r?\n/).map(split);
  const missing = columns.find((column) => !head.includes(column));
  if (missing) throw Error(`the first row has no column ${missing}: it needs ${columns.join(", ")}`);
  return lines.map((words, index) => columns.map((column) => {
    const word = words[head.indexOf(column)], number = Number(word);
    if (word && number >= 0 && number < Infinity) return number;
    throw Error(`row ${index + 2}: ${column} is "${word ?? ""}": give a number from 0 on`);
  }));
}

// ------------------------------------------------------------------------------------------------------------ drawing
// Each node's place in its level, a parent midway between its first and last child (Reingold and Tilford 1981).
function places(tree) {
  const across = new Float64Array(tree.paths.length), below = tree.paths.map((_, node) => [node]);
  const depth = (node) => tree.paths[node].length;
  for (let node = tree.paths.length - 1; node >= 0; --node) {
    const free = [];  // by depth the first place right of the subtrees so far
    for (const child of tree.children[node]) {
      const shift = Math.max(0, ...below[child].map((own) => (free[depth(own)] ?? -Infinity) - across[own]));
      for (const own of below[child]) {
        across[own] += shift;
        free[depth(own)] = Math.max(free[depth(own)] ?? 0, across[own] + 1);
      }
      below[node].push(...below[child]);
    }
    const [first, last] = [tree.children[node][0], tree.children[node].at(-1)];
    if (first) across[node] = (across[first] + across[last]) / 2;
  }
  return across.map((place) => place - Math.min(...across));
}

const shaded = (value) => {
  const strength = 0.08 + 0.92 * Math.sqrt(Math.min(1, Math.max(0, value)));
  return `rgb(${GREEN.map((part) => Math.round(255 + strength * (part - 255))).join()})`;
};
const percent = (value) => `${(100 * value).toFixed(1)}%`;
const shown = ({ value, low, high }, text = (number) => number.toFixed(2)) =>
  text(value) + (low === undefined ? "" : ` [${text(low)}, ${text(high)}]`);

function treeSvg(tree, shares, selected, best, cheapest) {
  const across = places(tree), x = (node) => Math.round(ACROSS * (across[node] + 0.6));
  const y = (node) => Math.round(DOWN * (tree.paths[node].length + 0.45));
  const lines = tree.parents.map((parent, node) => node
    ? `<line x1="${x(parent)}" y1="${y(parent)}" x2="${x(node)}" y2="${y(node)}"/>` : "");
  const boxes = tree.paths.map((path, node) => {
    const label = node ? shares[node].toFixed(2).replace(/^0/, "") : "root", pale = node && shares[node] < 0.35;
    const colour = { [cheapest]: RED, [best]: BLUE }[node], ring = colour ? `stroke:${colour};stroke-width:3` : "";
    const told = `node ${node}, ranks ${path.join(", ") || "none"}: accepted in ${percent(shares[node])} of rounds`;
    return `<g class="node${node === selected ? " selected" : ""}" data-node="${node}"><title>${told}</title>
<rect x="${x(node) - RADIUS}" y="${y(node) - RADIUS}" width="${2 * RADIUS}" height="${2 * RADIUS}" rx="${RADIUS}"
fill="${node ? shaded(shares[node]) : "#000"}" style="${ring}"/>
<text x="${x(node)}" y="${y(node) + 4}" fill="${pale ? "#000" : "#fff"}">${label}</text></g>`;
  });
  const width = ACROSS * (Math.max(...across) + 1.2), height = DOWN * (tree.depth + 0.9);
  return `<svg width="${width}" height="${height}" text-anchor="middle" font-family="monospace" font-size="11">
${lines.join("")}${boxes.join("")}</svg>`;
}

function maskSvg(tree) {
  const size = tree.paths.length, cell = Math.max(3, Math.min(16, Math.floor(420 / size)));
  const rows = tree.paths.map((path, row) => {
    const position = `<text x="${cell * size + 6}" y="${cell * (row + 0.8)}">${PREFIX + path.length}</text>`;
    let cells = "", side = cell - 1;
    for (let key = row; key >= 0; key = tree.parents[key]) {
      cells += `M${cell * key} ${cell * row}h${side}v${side}h${-side}z`;
    }
    return `<path d="${cells}" fill="#555"/>${cell > 8 || row % 4 === 0 ? position : ""}`;
  });
  return `<svg width="${cell * size + 44}" height="${cell * size}" font-family="monospace" role="img"
font-size="${Math.min(10, cell + 2)}" aria-label="the mask">${rows.join("")}</svg>`;
}

// ------------------------------------------------------------------------------------------------------- the designer
const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const make = (tag, parent, more = {}) => parent.appendChild(Object.assign(document.createElement(tag), more));
const labelled = (words, tag, parent, more) => make(tag, make("label", parent, { textContent: `${words} ` }), more);

// A state is { tree, drafter, costs, batch, drafting }; changes make a new one, which can be undone.
class Designer {
  constructor(el, texts, drafters, machines) {
    Object.assign(this, { el, texts, drafters, machines, history: [], position: -1, selected: 0, onshow: () => {} });
    el.replaceChildren();
    el.classList.add("designer");
    this.makeControls();
    this.makeCanvas();
    for (const part of ["numbers", "picture"]) this[part] = make("div", el);
    this.lines = make("pre", el);
    this.makeOwn();
  }
  get now() { return this.history[this.position]; }
  makeControls() {
    const bars = [0, 1, 2].map(() => make("div", this.el, { className: "bar" }));
    this.control = {
      drafter: labelled("drafter", "select", bars[0]), name: labelled("start from", "input", bars[0], { size: 18 }),
      costs: labelled("costs of", "select", bars[1]), batch: labelled("batch", "select", bars[1]),
      drafting: labelled("ms of drafting a level", "input", bars[1], { type: "number", min: 0, step: 0.1 }) };
    const names = make("datalist", this.el, { id: "names-of-trees" });
    this.control.name.setAttribute("list", names.id);
    for (const name of OFFERED) make("option", names, { value: name });
    this.commands = {
      "Add a child (Enter)": () => this.add(this.selected), "Prune (Delete)": () => this.prune(this.selected),
      "Undo (u)": () => this.go(this.position - 1), "Redo (r)": () => this.go(this.position + 1),
      "Add the best node (a)": () => this.add(bestToAdd(this.now.tree, this.now.drafter).node),
      "Drop the cheapest (d)": () => this.prune(cheapestToDrop(this.now.tree, this.now.drafter).node),
      "Copy (c)": () => navigator.clipboard?.writeText(this.lines.textContent) };
    for (const [textContent, command] of Object.entries(this.commands)) {
      make("button", bars[2], { textContent, onclick: () => this.attempt(command) });
    }
    this.error = make("div", this.el, { className: "error", role: "alert" });
    const changes = {
      name: (value) => ({ tree: named(value, this.now.drafter) }),
      drafter: (value) => ({ drafter: this.drafters[value], drafting: this.drafters[value].drafting }),
      costs: (costs) => ({ costs, batch: Object.keys(this.machines[costs])[0] }), batch: (batch) => ({ batch }),
      drafting: (value) => {
        if (!(Number(value) >= 0)) throw Error(`drafting takes "${value}" ms: give a number from 0 on`);
        return { drafting: Number(value) };
      } };
    for (const [name, change] of Object.entries(changes)) {
      this.control[name].onchange = ({ target }) => this.attempt(() => this.take(change(target.value)));
    }
  }
  makeOwn() {
    const own = make("details", this.el);
    make("summary", own, { textContent: "Your own costs or acceptance" });
    make("p", own, { textContent: "CSV with the columns nodes, ms (nodes 0: a plain step), or depth, rank, acceptance: "
      + "choose a file, or paste it." });
    const file = make("input", own, { type: "file", accept: ".csv,text/csv" });
    const pasted = make("textarea", own, { rows: 4, placeholder: "nodes,ms" });
    const give = (text, name) => this.attempt(() => this.given(text, name));
    file.onchange = () => file.files[0].text().then((text) => give(text, file.files[0].name));
    pasted.onchange = () => give(pasted.value, "pasted");
  }

  // Costs or acceptance of a person's own, from CSV.
  given(text, name) {
    if (/^\s*"?(depth|rank|acceptance)/.test(text)) {
      const rows = table(text, ["depth", "rank", "acceptance"]);
      const wrong = rows.findIndex(([depth, , acceptance]) => acceptance > 1 || depth < 1);
      if (wrong >= 0) throw Error(`row ${wrong + 2} is ${rows[wrong]}: depth counts from 1, acceptance is at most 1`);
      const drafter = modelOf(name, rows);
      this.take({ drafter, drafting: 0 });
      this.drafters[name] = drafter;
    } else {
      const rows = table(text, ["nodes", "ms"]).map(([nodes, ms]) => [name, 1, nodes ? "forced" : "plain", nodes, ms]);
      const made = machinesOf(rows);
      if (!made[name]) throw Error("there is no plain step (nodes 0), or no check: add their rows");
      Object.assign(this.machines, made);
      this.take({ costs: name, batch: "1" });
    }
    this.restore();
  }
  attempt(change) {
    this.error.textContent = "";
    try {
      change();
    } catch (reason) {
      this.error.textContent = reason.message;
      this.restore();
    }
  }
  take(change, selected = 0) {
    const state = { ...this.now, ...change }, { tree, drafter } = state;
    const { nodes, depth } = tree, { name, levels } = drafter;
    if (nodes < 1 || nodes > MOST_NODES) throw Error(`the tree would have ${nodes} nodes: give 1 to ${MOST_NODES}`);
    if (depth > levels) throw Error(`prune: the tree would have ${depth} levels, ${name} was recorded for ${levels}`);
    this.history = [...this.history.slice(0, this.position + 1), state];
    this.selected = selected;
    this.go(this.position + 1);
  }
  add(node) { this.take({ tree: added(this.now.tree, node) }, node); }
  prune(node) { this.take({ tree: pruned(this.now.tree, node) }, this.now.tree.parents[node]); }
  go(position) {
    if (!this.history[position]) return;
    this.position = position;
    this.selected = Math.min(this.selected, this.now.tree.nodes);
    this.show();
  }
  worth(tree) {
    const { drafter, costs, batch, drafting } = this.now, { plain, check } = this.machines[costs][batch];
    const step = check(tree.nodes) + drafting * tree.depth, sums = {};
    const speed = (length) => Object.fromEntries(
      Object.entries(length).map(([bound, tokens]) => [bound, (1 + tokens) * plain / step]));
    if (drafter.reach) {
      const shares = tree.paths.map(drafter.reach), length = { value: total(shares) - 1 };
      return { shares, length, rate: { value: length.value / tree.nodes }, kinds: [], speed: speed(length) };
    }
    const { rounds, accepted, shares } = replay(tree, drafter, this.texts);
    const length = ratio(accepted, rounds, this.texts);
    const rate = ratio(accepted, rounds.map((count) => count * tree.nodes), this.texts);
    this.texts.kinds.forEach((kind, row) => {
      const [top, bottom] = sums[kind] ?? [0, 0];
      sums[kind] = [top + accepted[row], bottom + rounds[row]];
    });
    const kinds = Object.entries(sums).map(([kind, [top, bottom]]) => [kind, top / bottom]);
    return { shares, length, rate, kinds: kinds.sort((a, b) => a[1] - b[1]), speed: speed(length) };
  }
  show() {
    const { tree, drafter, costs, batch, drafting } = this.now, worth = this.worth(tree);
    const add = bestToAdd(tree, drafter), drop = cheapestToDrop(tree, drafter);
    this.canvas.innerHTML = treeSvg(tree, worth.shares, this.selected, add.node, drop.node);
    this.words.textContent = `${tree.nodes} nodes: ${worth.length.value.toFixed(3)} accepted tokens per round, rate `
      + `${percent(worth.rate.value)}. Best to add: a child of node ${add.node} (+${add.gain.toFixed(3)} per round, `
      + `blue); cheapest to drop: node ${drop.node} (-${drop.loss.toFixed(3)}, red).`;
    const chain = levelOrder(Math.min(tree.nodes, drafter.levels), []), best = bestTree(drafter, tree.nodes);
    const beside = { "this tree": [tree, worth], "best of its size": [best, this.worth(best)],
      chain: [chain, this.worth(chain)] };
    const rows = Object.entries(beside).map(([name, [one, its]]) => `<tr><td>${[name, one.nodes, one.depth,
      shown(its.length), shown(its.rate, percent), shown(its.speed)].join("</td><td>")}</td></tr>`);
    const about = drafter.reach ? "By your table of acceptance, each token independent of the others."
      : `${this.texts.count} prompts that judge, intervals of 95 %; best trees and hints are of others.`;
    this.numbers.innerHTML = `<table><tr><th></th><th>nodes</th><th>depth</th><th>accepted per round</th><th>rate</th>
<th>predicted speed over plain</th></tr>${rows.join("")}</table><p>${about} Speed: tokens per round times a plain step
(${this.machines[costs][batch].plain.toPrecision(3)} ms), over a check and ${drafting} ms per level.</p>`;
    const kinds = worth.kinds.map(([kind, value]) => `<tr><td>${escaped(kind)}</td><td>${value.toFixed(2)}</td></tr>`);
    this.picture.innerHTML = `<details open><summary>Mask, and position ids after ${PREFIX} tokens</summary>
${maskSvg(tree)}</details>${kinds.length ? `<details><summary>Accepted tokens per round by kind of text</summary>
<table>${kinds.join("")}</table></details>` : ""}`;
    const choices = tree.paths.slice(1).map((path) => `(${path.join(", ")}${path.length === 1 ? "," : ""})`);
    this.lines.textContent = [`tree = Tree.from_choices([${choices.join(", ")}])`,
      `choices = ${JSON.stringify(tree.paths.slice(1))}`,
      ...drafter.lines.map(([engine, line]) => `${engine}, a chain: ${line.replaceAll("{tokens}", chain.nodes)}`),
    ].join("\n");
    this.restore();
    this.onshow(new URLSearchParams({ tree: written(tree), drafter: drafter.name, costs, batch, drafting }));
  }

  // Controls show what is drawn, also after a choice was refused.
  restore() {
    const { drafter, costs, batch, drafting } = this.now;
    const offer = (select, values, value) => {
      select.replaceChildren(...Object.keys(values).map((one) => new Option(one, one, false, one === value)));
    };
    offer(this.control.drafter, this.drafters, drafter.name);
    offer(this.control.costs, this.machines, costs);
    offer(this.control.batch, this.machines[costs], batch);
    this.control.drafting.value = drafting;
  }
  makeCanvas() {
    this.canvas = make("div", this.el, { className: "canvas", tabIndex: 0, role: "application",
      ariaLabel: "Draft tree. Arrow keys select a node, Enter adds a child, Delete prunes it." });
    this.words = make("div", this.el, { ariaLive: "polite" });
    const keys = { Enter: 0, "+": 0, Delete: 1, Backspace: 1, u: 2, r: 3, a: 4, d: 5, c: 6 };
    let pressed = null;
    this.canvas.onkeydown = (event) => {
      const held = event.ctrlKey || event.metaKey, number = held ? { z: 2, y: 3 }[event.key] : keys[event.key];
      if (event.key.startsWith("Arrow")) this.move(event.key);
      else if (number !== undefined && !event.altKey) this.attempt(Object.values(this.commands)[number]);
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    this.canvas.onpointerdown = ({ target, clientX, clientY }) => {
      const node = target.closest(".node");
      pressed = node && { node, number: Number(node.dataset.node), x: clientX, y: clientY };
    };
    this.canvas.onpointermove = ({ clientX, clientY }) => {
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
      this.canvas.focus();
    };
    for (const kind of ["pointerup", "pointercancel", "pointerleave"]) this.canvas.addEventListener(kind, end);
  }
  select(number) {
    this.selected = number;
    for (const one of this.canvas.querySelectorAll(".node")) {
      one.classList.toggle("selected", Number(one.dataset.node) === number);
      if (Number(one.dataset.node) === number) one.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }
  move(key) {
    const { parents, children } = this.now.tree, row = this.selected ? children[parents[this.selected]] : [];
    const at = row.indexOf(this.selected), up = parents[this.selected], [down] = children[this.selected];
    const next = { ArrowUp: up, ArrowDown: down, ArrowLeft: row[at - 1], ArrowRight: row[at + 1] }[key];
    if (next >= 0) this.select(next);
  }
  begin(address) {
    const [drafter] = Object.values(this.drafters), [[costs, batches]] = Object.entries(this.machines);
    const [batch] = Object.keys(batches), { drafting } = drafter;
    const first = { tree: bestTree(drafter, 16), drafter, costs, batch, drafting };
    if (!address) return this.take(first);
    try {
      const { costs, batch, tree, ...given } = Object.fromEntries(new URLSearchParams(address));
      const drafter = this.drafters[given.drafter], drafting = Number(given.drafting);
      if (!drafter || !this.machines[costs]?.[batch] || !(drafting >= 0)) throw Error("it names what is not here");
      this.take({ costs, batch, drafter, drafting, tree: read(tree ?? "") });
    } catch (reason) {
      this.take(first);
      this.error.textContent = `The address describes no design (${reason.message}); this is the start.`;
    }
  }
}

async function start(el, data, address = "") {
  const texts = { ...data.texts, rows: data.texts.lengths.length, count: Math.max(...data.texts.units) + 1 };
  const drafters = {};
  texts.draws = drawn(texts.count);
  for (const [name, one] of Object.entries(data.drafters)) drafters[name] = await drafterOf(name, one, texts);
  const designer = new Designer(el, texts, drafters, machinesOf(data.costs));
  designer.begin(address);
  return designer;
}

for (const el of globalThis.document?.querySelectorAll(".designer[data-from]") ?? []) {
  const data = JSON.parse(document.getElementById(el.dataset.from).textContent);
  start(el, data, location.hash.slice(1)).then((designer) => {
    designer.onshow = (state) => history.replaceState(null, "", `#${state}`);
  });
}
export { drafterOf, read, replay, treeOf, written };
export default { render: ({ model, el }) => start(el, model.get("data")) };
