// Wakes the explorers of a page: puts controls in the place of each still picture. base.py says how it gets there.
//
// What an explorer shows was computed by the package and lies beside it as JSON; what is computed here, since it
// answers to a reader, stands in `compute`, and the tests compare it with the package. Native controls and one table
// carry each explorer, so that keyboard, touch and screen reader need nothing of their own. One line says what has
// changed, politely.
(() => {
  "use strict";
  if (window.mhaExplorers) return window.mhaExplorers.start(); // a notebook brings the script with every cell

  // --- making elements ------------------------------------------------------------------------------------------

  const fill = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };
  const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const draw = (name, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

  const labelled = (text, control, ...after) => make("label", {}, text, control, ...after);
  const choice = (text, options, chosen, onchange) => {
    const items = options.map(([value, name]) => make("option", { value, selected: value === chosen }, name));
    const select = make("select", { onchange: () => onchange(select.value) }, ...items);
    return { box: labelled(text, select), control: select };
  };
  const number = (text, value, { min, max, step = 1 }, onchange) => {
    const input = make("input", { type: "number", value, min, max, step, inputmode: "decimal" });
    input.addEventListener("input", () => input.checkValidity() && input.value !== "" && onchange(+input.value));
    input.addEventListener("change", () => {
      if (input.value === "" || !input.checkValidity()) input.value = Math.min(max, Math.max(min, +input.value || min));
      onchange(+input.value);
    });
    return { box: labelled(text, input), control: input };
  };
  const range = (text, value, { min, max, step = 1, show = String }, onchange) => {
    const shown = make("output", {}, show(value));
    const input = make("input", { type: "range", value, min, max, step, "aria-valuetext": show(value) });
    const tell = () => {
      shown.textContent = show(+input.value);
      input.setAttribute("aria-valuetext", show(+input.value));
    };
    input.addEventListener("input", () => (tell(), onchange(+input.value)));
    return { box: labelled(text, input, shown), control: input, set: (x) => ((input.value = x), tell()) };
  };
  let groups = 0; // radio buttons of one group share a name, counted over the page
  const radios = (legend, options, chosen, onchange, style = "ex-controls") => {
    const name = `explorer-group-${++groups}`;
    const items = options.map(([value, text]) => {
      const input = make("input", { type: "radio", name, value, checked: value === chosen });
      input.addEventListener("change", () => input.checked && onchange(value));
      return make("label", {}, input, make("span", {}, text));
    });
    const box = make("fieldset", {}, make("legend", {}, legend), make("div", { class: style }, ...items));
    const inputs = items.map((item) => item.firstChild);
    return { box, items, set: (value) => inputs.forEach((input) => (input.checked = input.value === String(value))) };
  };

  // A grid is one stop of the Tab key; arrows, Home and End move in it, and to move or to click is to choose.
  const rove = (rows, choose) => {
    let here = null;
    const go = (r, c, { focus = true, tell = true } = {}) => {
      r = Math.min(rows.length - 1, Math.max(0, r));
      c = Math.min(rows[r].length - 1, Math.max(0, c));
      if (here) here.tabIndex = -1;
      here = rows[r][c];
      here.tabIndex = 0;
      if (focus) here.focus();
      if (tell) choose(r, c);
    };
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    rows.forEach((row, r) =>
      row.forEach((cell, c) => {
        cell.tabIndex = -1;
        cell.addEventListener("click", () => go(r, c));
        cell.addEventListener("keydown", (event) => {
          if (event.ctrlKey || event.altKey || event.metaKey) return;
          if (steps[event.key]) go(r + steps[event.key][0], c + steps[event.key][1]);
          else if (event.key === "Home") go(r, 0);
          else if (event.key === "End") go(r, row.length - 1);
          else if (event.key === "Enter" || event.key === " ") go(r, c);
          else return;
          event.preventDefault();
        });
      }),
    );
    go(0, 0, { focus: false, tell: false });
    return go;
  };

  // --- numbers and texts ----------------------------------------------------------------------------------------

  const span = (n) => Array.from({ length: n }, (_, i) => i);
  const sum = (xs) => xs.reduce((a, b) => a + b, 0);
  const digits = (x, n) => (Math.abs(x) < 0.5 * 10 ** -n ? 0 : x).toFixed(n); // no negative zero
  const plain = (x) => String(+x.toFixed(6));
  const token = (text) => text.replace(/^ +| +$/g, "") || "␣";

  const compute = {};
  const kinds = {};

  // --- questions and cards --------------------------------------------------------------------------------------
  //
  // The texts are those of the still picture: its elements are moved, not made again.

  const memory = (name) => ({ // what a reader has done, in this browser; not kept where storage is switched off
    read: () => {
      try {
        return JSON.parse(localStorage.getItem(name)) ?? {};
      } catch {
        return {};
      }
    },
    write: (value) => {
      try {
        localStorage.setItem(name, JSON.stringify(value));
      } catch {} // then it lasts as long as the page
    },
  });
  const answers = memory("mha-questions"); // by chapter and question: the answer, and whether it was right
  const changed = () => document.dispatchEvent(new Event("mha-questions"));
  const count = (kept, names) => names.filter((name) => kept?.[name]?.right).length;

  compute.verdict = (question, given) => { // which answer was given: 0 is the right number, −1 none that was foreseen
    if (!question.numbers) return { at: given, right: given === question.right };
    const at = question.numbers.findIndex((x) => Math.abs(x - given) <= question.tolerance * 1.0001);
    return { at, right: at === 0 };
  };

  kinds.quiz = (states, say, line, still) => {
    line.classList.add("ex-unseen"); // what it says stands below each question, too
    const { chapter, questions } = states;
    const given = answers.read()[chapter] ?? {};
    const list = still.querySelector(".ex-questions");
    const score = make("span", {});
    const tally = () => {
      score.textContent = `${count(given, questions.map(({ name }) => name))} of ${questions.length} answered right`;
      return score.textContent;
    };
    const keep = () => {
      answers.write({ ...answers.read(), [chapter]: given });
      changed();
    };
    const ask = (item, question, i) => {
      const text = item.querySelector(".ex-ask");
      const code = item.querySelector(":scope > pre");
      const reasons = item.querySelector(".ex-reasons");
      const whys = [...reasons.querySelectorAll("li")];
      const told = make("p", { class: "ex-told" });
      const legend = make("legend", { class: "ex-ask" }, ...text.childNodes);
      const field = make("fieldset", {}, legend, ...(code ? [code] : []));
      let read, set;
      if (question.numbers) {
        const input = make("input", { type: "number", step: "any", inputmode: "decimal" });
        const form = item.querySelector(".ex-form").textContent;
        field.append(make("label", { class: "ex-form" }, form, input));
        input.addEventListener("keydown", (event) => event.key === "Enter" && (event.preventDefault(), check()));
        read = () => (input.value === "" ? null : +input.value);
        set = (value) => (input.value = value ?? "");
      } else {
        const group = `explorer-group-${++groups}`;
        const items = [...item.querySelectorAll(".ex-answers > li")];
        const inputs = items.map((_, k) => make("input", { type: "radio", name: group, value: k }));
        inputs.forEach((input, k) => {
          items[k].replaceChildren(make("label", {}, input, make("span", {}, ...items[k].childNodes)));
        });
        field.append(item.querySelector(".ex-answers"));
        read = () => (inputs.some((x) => x.checked) ? inputs.findIndex((x) => x.checked) : null);
        set = (value) => inputs.forEach((x, k) => (x.checked = k === value));
      }
      const tell = (answer) => {
        const { at, right } = compute.verdict(question, answer);
        const why = whys[at]?.querySelector("span");
        const verdict = right ? "Right." : "Not right.";
        told.replaceChildren(make("strong", {}, `${right ? "✓" : "✗"} ${verdict}`), " ",
          ...(why ? why.cloneNode(true).childNodes : ["No usual mistake gives this number. Try again, or look below."]));
        told.classList.toggle("ex-right", right);
        return right;
      };
      const check = () => {
        const answer = read();
        if (answer === null) return say(`Question ${i + 1}: give an answer first.`);
        given[question.name] = { answer, right: tell(answer) };
        keep();
        say(`Question ${i + 1}. ${told.textContent.slice(2)} ${tally()}.`);
      };
      const clear = () => (set(null), told.replaceChildren(), told.classList.remove("ex-right"));
      const button = make("button", { type: "button", onclick: check, "aria-label": `Check question ${i + 1}` }, "Check");
      item.replaceChildren(field, make("div", { class: "ex-check" }, button, reasons), told);
      const before = given[question.name];
      if (before && typeof before.answer === "number") (set(before.answer), tell(before.answer));
      return clear;
    };
    const clears = [...list.children].map((item, i) => ask(item, questions[i], i));
    const forget = make("button", { type: "button", onclick: () => {
      Object.keys(given).forEach((name) => delete given[name]);
      clears.forEach((clear) => clear());
      keep();
      say(`Answers cleared. ${tally()}.`);
    } }, "Clear these answers");
    document.addEventListener("mha-cleared", () => {
      Object.keys(given).forEach((name) => delete given[name]);
      clears.forEach((clear) => clear());
      tally();
    });
    tally();
    return { parts: [list, make("p", { class: "ex-tally" }, score, forget)], first: "" };
  };

  kinds.progress = ({ chapters }, say, line, still) => {
    const table = still.querySelector("table");
    const rows = Object.entries(chapters);
    table.tHead.rows[0].append(make("th", { scope: "col" }, "answered right"));
    const cells = rows.map((_, i) => table.tBodies[0].rows[i].appendChild(make("td", {})));
    const total = sum(rows.map(([, names]) => names.length));
    const show = () => {
      const kept = answers.read();
      const right = rows.map(([chapter, names]) => count(kept[chapter], names));
      right.forEach((x, i) => (cells[i].textContent = x));
      return `${sum(right)} of ${total} questions answered right.`;
    };
    document.addEventListener("mha-questions", () => say(show()));
    const forget = make("button", { type: "button", onclick: () => {
      answers.write({});
      document.dispatchEvent(new Event("mha-cleared"));
      say(`Answers cleared. ${show()}`);
    } }, "Clear all answers");
    const first = show();
    return { parts: [make("div", { class: "ex-scroll" }, line, table), make("p", {}, forget)], first };
  };

  kinds.cards = ({ deck, cards }, say, line, still) => {
    line.classList.add("ex-unseen");
    const store = memory("mha-cards");
    const known = new Set([store.read()[deck] ?? []].flat().filter((name) => cards.includes(name)));
    const list = still.querySelector(".ex-cards");
    const sides = [...list.children].map((item) => [item.querySelector("summary"), item.querySelector("p")]);
    let queue = [];
    const front = make("p", { class: "ex-front" });
    const back = make("p", { class: "ex-back" });
    const left = make("p", { class: "ex-note" });
    const keep = () => store.write({ ...store.read(), [deck]: [...known] });
    const copy = (element) => element.cloneNode(true).childNodes;
    const button = (text, onclick) => make("button", { type: "button", onclick }, text);
    const turn = button("Show the other side", () => {
      back.replaceChildren(...copy(sides[queue[0]][1]));
      [turn.hidden, yes.hidden, no.hidden] = [true, false, false];
      yes.focus();
      say(back.textContent);
    });
    const yes = button("I knew it", () => {
      known.add(cards[queue.shift()]);
      keep();
      next();
    });
    const no = button("Not yet", () => {
      queue.push(queue.shift());
      next();
    });
    const again = button("Begin again", () => {
      known.clear();
      keep();
      deal();
      next();
    });
    const next = (quiet = false) => {
      const done = !queue.length;
      front.replaceChildren(...(done ? ["You knew all of them."] : copy(sides[queue[0]][0])));
      back.replaceChildren();
      left.textContent = `${known.size} of ${cards.length} known`;
      [turn.hidden, yes.hidden, no.hidden] = [done, true, true];
      if (quiet) return;
      (done ? again : turn).focus();
      say(`${front.textContent} ${left.textContent}.`);
    };
    const deal = () => (queue = span(cards.length).filter((i) => !known.has(cards[i])));
    deal();
    next(true);
    const card = make("div", { class: "ex-card" }, front, back);
    const all = make("details", {}, make("summary", {}, "All cards"), list);
    return { parts: [card, make("p", { class: "ex-controls ex-deal" }, turn, yes, no, again), left, all], first: "" };
  };

  // --- heads ----------------------------------------------------------------------------------------------------

  kinds.heads = (states, say, line) => {
    const { queries, keys, weights, contributions } = states;
    const [layers, h, n, m] = [weights.length, weights[0].length, queries.length, keys.length];
    const at = { layer: 0, head: 0, query: n - 1, key: null, what: "weights" };
    const percent = (x) => `${Math.round((x ?? 0) / 10)}`;
    const number = (x) => (at.what === "weights" ? percent(x) : `${x ?? 0}`);
    const top = weights.map((layer, l) => // what is shaded most: all of the weight, or the most that a head of the layer adds
      contributions ? Math.max(1e-9, ...contributions[l].flat(2)) : 1,
    );
    const share = (layer, head, query, key) =>
      at.what === "weights"
        ? (weights[layer][head][query][key] ?? 0) / 1000
        : (contributions[layer][head][query][key] ?? 0) / top[layer];

    // all heads, small
    const pictures = span(layers).map(() => span(h).map(() => make("canvas", { width: m, height: n, "aria-hidden": "true" })));
    const squares = pictures.map((row, layer) =>
      row.map((picture, head) =>
        make("div", { role: "gridcell", "aria-label": `layer ${layer}, head ${head}`, "aria-selected": "false" }, picture),
      ),
    );
    const all = make("div", { class: "ex-all", role: "grid", "aria-label": "All heads: a row for each layer", style: `--columns: ${h}` },
      ...squares.map((row, layer) => make("div", { role: "row" }, make("span", { role: "rowheader" }, `${layer}`), ...row)),
    );
    const paint = () => {
      const shade = getComputedStyle(all).getPropertyValue("--shade").trim().split(" ").map(Number);
      pictures.forEach((row, layer) => row.forEach((picture, head) => {
        const image = new ImageData(m, n);
        span(n * m).forEach((i) => {
          image.data.set([...shade, 255 * Math.sqrt(share(layer, head, Math.floor(i / m), i % m))], 4 * i);
        });
        picture.getContext("2d").putImageData(image, 0, 0);
      }));
    };

    // one head, large
    const title = make("caption", {});
    const cells = queries.map(() => keys.map(() => make("td", { role: "gridcell", class: "ex-shade" })));
    const rows = cells.map((row, i) => make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, token(queries[i])), ...row));
    const heads = keys.map((key) => make("th", { scope: "col", role: "columnheader" }, make("span", { class: "ex-up" }, token(key))));
    const table = make("table", { role: "grid", "aria-label": "One head: a row for each query, a column for each key" }, title,
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, make("td", { role: "gridcell" }), ...heads)),
      make("tbody", { role: "rowgroup" }, ...rows),
    );
    const asking = radios("Query:", queries.map((text, i) => [i, token(text)]), at.query, (i) => show({ query: i, key: null }), "ex-tokens");
    const same = queries.length === keys.length && queries.every((text, i) => text === keys[i]);

    const strongest = () => {
      const order = span(m).sort((a, b) => share(at.layer, at.head, at.query, b) - share(at.layer, at.head, at.query, a));
      return order.filter((key) => share(at.layer, at.head, at.query, key) > 0).slice(0, 3);
    };
    const sentence = () => {
      const numbers = (at.what === "weights" ? weights : contributions)[at.layer][at.head][at.query];
      const told = (key) => `“${token(keys[key])}” ${number(numbers[key])}${at.what === "weights" ? " %" : ""}`;
      const who = `Layer ${at.layer}, head ${at.head}: “${token(queries[at.query])}”`;
      const does = at.what === "weights" ? "attends to" : "is given, by length,";
      return `${who} ${does} ${(at.key === null ? strongest() : [at.key]).map(told).join(", ") || "nothing"}.`;
    };
    const show = (change, quiet = false) => {
      const before = { ...at };
      Object.assign(at, change);
      squares[before.layer][before.head].setAttribute("aria-selected", "false");
      squares[at.layer][at.head].setAttribute("aria-selected", "true");
      layer.control.value = at.layer;
      head.control.value = at.head;
      asking.set(at.query);
      title.textContent = `Layer ${at.layer}, head ${at.head}: ${at.what === "weights" ? "weights in percent" : "contribution"}`;
      const numbers = (at.what === "weights" ? weights : contributions)[at.layer][at.head];
      cells.forEach((row, i) => row.forEach((cell, j) => {
        cell.textContent = number(numbers[i][j]);
        cell.style.setProperty("--w", share(at.layer, at.head, i, j).toFixed(3));
        cell.classList.toggle("ex-at", i === at.query && j === at.key);
      }));
      rows.forEach((row, i) => row.classList.toggle("ex-here", i === at.query));
      if (same) asking.items.forEach((item, j) => {
        item.classList.add("ex-shade");
        item.style.setProperty("--w", share(at.layer, at.head, at.query, j).toFixed(3));
      });
      if (!quiet) say(sentence());
    };
    const goHead = rove(squares, (r, c) => show({ layer: r, head: c, key: null }));
    const goCell = rove(cells, (i, j) => show({ query: i, key: j }));
    const toHead = (l, c) => (goHead(l, c, { focus: false }), squares[l][c].scrollIntoView({ block: "nearest", inline: "nearest" }));
    const layer = choice("Layer", span(layers).map((i) => [i, `${i}`]), 0, (i) => toHead(+i, at.head));
    const head = choice("Head", span(h).map((i) => [i, `${i}`]), 0, (i) => toHead(at.layer, +i));
    const options = [["weights", "weights"], ["contributions", "contribution"]];
    const what = radios("Show:", options, "weights", (value) => (show({ what: value, key: null }), paint()));
    what.box.classList.add("ex-controls");
    const note = contributions
      ? "Shades of a contribution compare the heads of one layer." : "Shades: white is 0, dark is 1.";
    goCell(at.query, 0, { focus: false, tell: false });
    show({}, true);
    return {
      parts: [
        make("div", { class: "ex-controls" }, layer.box, head.box, ...(contributions ? [what.box] : [])),
        make("div", { class: "ex-two" }, all,
          make("div", {}, asking.box, line, make("div", { class: "ex-scroll" }, table), make("p", { class: "ex-note" }, note))),
      ],
      first: sentence(),
      recolour: paint,
    };
  };

  // --- waking ---------------------------------------------------------------------------------------------------

  const wake = (box) => {
    const numbers = box.querySelector(':scope > script[type="application/json"]');
    const kind = kinds[box.dataset.kind];
    if (box.classList.contains("explorer-awake") || !numbers || !kind) return;
    box.classList.add("explorer-awake");
    const still = box.querySelector(":scope > .explorer-still");
    const line = make("p", { class: "ex-say", role: "status", "aria-live": "polite" });
    const { parts, first, recolour } = kind(
      JSON.parse(numbers.textContent), (text) => (line.textContent = text), line, still);
    line.textContent = first;
    still.replaceChildren(...parts, ...(line.parentNode ? [] : [line]));
    if (!recolour) return;
    recolour();
    new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    new MutationObserver(recolour).observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  };
  const start = () => document.querySelectorAll(".explorer").forEach(wake);
  window.mhaExplorers = { start, compute };
  start();
})();
