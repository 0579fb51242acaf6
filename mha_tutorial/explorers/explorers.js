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
    const input = make("input", { type: "number", min, max, step, value, inputmode: "decimal" });
    const set = (x) => (input.value = value = x);
    const tell = (note) => +input.value !== value && onchange((value = +input.value), note); // not again when it is left
    input.addEventListener("input", () => input.checkValidity() && input.value !== "" && tell(""));
    input.addEventListener("change", () => {
      if (input.value === "" && !input.validity.badInput) return set(value);
      if (input.checkValidity()) return tell("");
      const asked = +input.value;
      input.value = Math.min(+input.max, Math.max(min, step * Math.round(asked / step)));
      const note = asked > +input.max ? `${text}: at most ${input.max}. ` : asked < min ? `${text}: at least ${min}. ` : "";
      onchange((value = +input.value), note);
    });
    return { box: labelled(text, input), control: input, set };
  };
  const range = (text, value, { min, max, step = 1, show = String }, onchange) => {
    const shown = make("output", { "aria-live": "off" }, show(value)); // the slider says it by itself
    const input = make("input", { type: "range", min, max, step, value, "aria-valuetext": show(value) }); // the value last, or it is rounded to other steps
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
          if (event.altKey || event.metaKey || (event.ctrlKey && !["Home", "End"].includes(event.key))) return;
          if (steps[event.key]) go(r + steps[event.key][0], c + steps[event.key][1]);
          else if (event.key === "Home") go(event.ctrlKey ? 0 : r, 0);
          else if (event.key === "End") go(event.ctrlKey ? rows.length - 1 : r, Infinity);
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
          ...(why ? why.cloneNode(true).childNodes : ["No usual mistake gives this number. Try again, or look at answer and reasons."]));
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
      const unsay = () => (told.replaceChildren(), told.classList.remove("ex-right"));
      const clear = () => (set(null), unsay());
      field.addEventListener("input", unsay); // a verdict is on the answer that was checked
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
    const left = make("p", { class: "ex-note", tabindex: "-1" });
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
      (done ? left : turn).focus(); // and one Enter more does not begin again
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
    const { queries, keys, weights, contributions, following } = states;
    const [layers, h, n, m] = [weights.length, weights[0].length, queries.length, keys.length];
    const names = states.layers ?? span(layers);
    const at = { layer: 0, head: 0, query: n - 1, key: null, what: "weights" };
    const percent = (x) => `${Math.round((x ?? 0) / 10)}`;
    const number = (x) => (at.what === "weights" ? percent(x) : digits(x ?? 0, Math.max(0, 2 - Math.floor(Math.log10(top[at.layer])))));
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
        make("div", { role: "gridcell", "aria-label": `layer ${names[layer]}, head ${head}`, "aria-selected": "false" }, picture),
      ),
    );
    const all = make("div", { class: "ex-all", role: "grid", "aria-label": "All heads: a row for each layer", style: `--columns: ${h}` },
      ...squares.map((row, layer) => make("div", { role: "row" }, make("span", { role: "rowheader" }, `${names[layer]}`), ...row)),
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

    // one head, large; words that are there more than once are told apart by their places
    const place = (texts, i) => (texts.filter((text) => token(text) === token(texts[i])).length > 1 ? ` (${i + 1})` : "");
    const tagged = (texts, i) => make("span", {}, token(texts[i]), make("span", { class: "ex-unseen" }, place(texts, i)));
    const title = make("caption", {});
    const cells = queries.map(() => keys.map(() => make("td", { role: "gridcell", class: "ex-shade" })));
    const rows = cells.map((row, i) => make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, tagged(queries, i)), ...row));
    const heads = keys.map((_, j) => make("th", { scope: "col", role: "columnheader" }, make("span", { class: "ex-up" }, tagged(keys, j))));
    const table = make("table", { role: "grid", "aria-label": "One head: a row for each query, a column for each key" }, title,
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, make("td", { role: "gridcell" }), ...heads)),
      make("tbody", { role: "rowgroup" }, ...rows),
    );
    const asking = radios("Query:", queries.map((_, i) => [i, tagged(queries, i)]), at.query, (i) => show({ query: i, key: null }), "ex-tokens");
    const same = queries.length === keys.length && queries.every((text, i) => text === keys[i]);
    const causal = same && n > 1 && weights.flat().every((head) => head.every((row, i) => row.length <= i + 1)); // rows end with what is seen
    const called = (texts, i) => `“${token(texts[i])}”${place(texts, i)}`;

    // what comes next, with all heads and without the one that is shown
    const places = following && span(following.all.length).map(() => [make("td"), make("td")]);
    const without = make("th", { scope: "col" });
    const likely = ([word, share]) => `“${token(following.words[word])}” ${Math.round(share / 10)} %`;
    const tell = () => {
      without.textContent = `without layer ${names[at.layer]}, head ${at.head}`;
      places.forEach(([all, less], i) => {
        all.textContent = likely(following.all[i]);
        less.textContent = likely(following.without[at.layer][at.head][i]);
      });
    };
    const list = following && make("table", {}, make("caption", {}, "What comes next"),
      make("thead", {}, make("tr", {}, make("td"), make("th", { scope: "col" }, "all heads"), without)),
      make("tbody", {}, ...places.map((cells, i) => make("tr", {}, make("th", { scope: "row" }, `${i + 1}`), ...cells))));
    const next = list ? [make("div", { class: "ex-scroll" }, list)] : [];

    const note = make("p", { class: "ex-note" });
    const scroll = make("div", { class: "ex-scroll" }, table);
    const bring = () => { // into view what the sentence speaks of
      const cell = cells[at.query][strongest()[0] ?? 0];
      scroll.scrollLeft += cell.getBoundingClientRect().right - scroll.getBoundingClientRect().right;
    };
    const strongest = () => {
      const order = span(m).sort((a, b) => share(at.layer, at.head, at.query, b) - share(at.layer, at.head, at.query, a));
      return order.filter((key) => share(at.layer, at.head, at.query, key) > 0).slice(0, 3);
    };
    const sentence = () => {
      const numbers = (at.what === "weights" ? weights : contributions)[at.layer][at.head][at.query];
      const [head, who] = [`Layer ${names[at.layer]}, head ${at.head}`, called(queries, at.query)];
      if (causal && at.key > at.query) return `${head}: ${called(keys, at.key)} comes after ${who}, and is hidden from it.`;
      const told = (key) => `${called(keys, key)} ${number(numbers[key])}${at.what === "weights" ? " %" : ""}`;
      const list = (at.key === null ? strongest() : [at.key]).map(told).join(", ") || "nothing";
      return at.what === "weights" ? `${head}: ${who} attends to ${list}.` : `${head} adds to ${who}, as lengths of vectors: ${list}.`;
    };
    const show = (change, quiet = false) => {
      const before = { ...at };
      Object.assign(at, change);
      squares[before.layer][before.head].setAttribute("aria-selected", "false");
      squares[at.layer][at.head].setAttribute("aria-selected", "true");
      layer.control.value = at.layer;
      head.control.value = at.head;
      asking.set(at.query);
      title.textContent = `Layer ${names[at.layer]}, head ${at.head}: ${at.what === "weights" ? "weights in percent" : "contribution"}`;
      const numbers = (at.what === "weights" ? weights : contributions)[at.layer][at.head];
      cells.forEach((row, i) => row.forEach((cell, j) => {
        cell.textContent = causal && j > i ? "" : number(numbers[i][j]);
        cell.style.setProperty("--w", share(at.layer, at.head, i, j).toFixed(3));
        cell.classList.toggle("ex-at", i === at.query && j === at.key);
      }));
      rows.forEach((row, i) => row.classList.toggle("ex-here", i === at.query));
      if (same) asking.items.forEach((item, j) => {
        item.classList.add("ex-shade");
        item.style.setProperty("--w", share(at.layer, at.head, at.query, j).toFixed(3));
      });
      note.textContent = at.what === "weights"
        ? "A row: the word that looks. A column: where it looks. White is 0, dark is 1."
        : "The length of what the head adds to the word of the row, from the word of the column. Shades compare the heads of one layer.";
      if (at.key === null) (goCell(at.query, strongest()[0] ?? 0, { focus: false, tell: false }), bring());
      if (following) tell();
      if (!quiet) say(sentence());
    };
    const goHead = rove(squares, (r, c) => show({ layer: r, head: c, key: null }));
    const goCell = rove(cells, (i, j) => show({ query: i, key: j }));
    const toHead = (l, c) => (goHead(l, c, { focus: false }), squares[l][c].scrollIntoView({ block: "nearest", inline: "nearest" }));
    const layer = choice("Layer", span(layers).map((i) => [i, `${names[i]}`]), 0, (i) => toHead(+i, at.head));
    const head = choice("Head", span(h).map((i) => [i, `${i}`]), 0, (i) => toHead(at.layer, +i));
    const options = [["weights", "weights"], ["contributions", "contribution"]];
    const what = radios("Show:", options, "weights", (value) => (show({ what: value, key: null }), paint()));
    what.box.classList.add("ex-controls");
    show({}, true);
    return {
      parts: [
        make("div", { class: "ex-controls" }, layer.box, head.box, ...(contributions ? [what.box] : [])),
        ...(m > 9 // a wide table has the width to itself
          ? [make("div", { class: "ex-two" }, all, ...next), asking.box, line, scroll, note]
          : [make("div", { class: "ex-two" }, all, make("div", {}, asking.box, line, scroll, note, ...next))]),
      ],
      first: sentence(),
      recolour: () => (paint(), bring()),
    };
  };

  // --- output projection ----------------------------------------------------------------------------------------

  compute.projection = (heads, W_o) => {
    const columns = W_o[0].map((_, j) => W_o.map((row) => row[j]));
    const width = heads[0].length;
    const concatenated = heads.flat();
    const written = heads.map((head, h) => columns.map((column) => sum(head.map((x, r) => x * column[h * width + r]))));
    return {
      output: columns.map((column) => sum(concatenated.map((x, r) => x * column[r]))),
      written,
      total: columns.map((_, j) => sum(written.map((row) => row[j]))),
    };
  };

  kinds.projection = (states, say, line) => {
    const [h, width, outputs] = [states.heads.length, states.heads[0].length, states.W_o[0].length];
    const at = structuredClone(states);
    const headings = (...names) => make("thead", {}, make("tr", {}, make("td"), ...names.map((name) => make("th", { scope: "col" }, name))));
    const row = (name, ...cells) => make("tr", {}, make("th", { scope: "row" }, name), ...cells);
    const outs = () => span(outputs).map(() => make("td"));
    const entry = (name, read, write) => {
      const input = make("input", { type: "number", step: "0.5", value: read(), "aria-label": name });
      input.addEventListener("input", () => input.value !== "" && (write(+input.value), show()));
      input.addEventListener("change", () => input.value === "" && (input.value = read()));
      return { input, reset: () => (input.value = read()) };
    };
    const entries = [];
    const cell = (...given) => (entries.push(entry(...given)), make("td", {}, entries.at(-1).input));
    const factors = span(h * width).map((r) => {
      const [i, k] = [Math.floor(r / width), r % width];
      const name = `head ${i + 1}, number ${k + 1}`;
      return row(name,
        cell(name, () => at.heads[i][k], (x) => (at.heads[i][k] = x)),
        ...span(outputs).map((j) => cell(`W_O, ${name}, output ${j + 1}`, () => at.W_o[r][j], (x) => (at.W_o[r][j] = x))));
    });
    const [product, terms, total] = [outs(), span(h).map(outs), outs()];
    const names = span(outputs).map((j) => `output ${j + 1}`);
    const one = make("table", {}, make("caption", {}, "Concatenated, and multiplied once"),
      headings("heads", ...names.map((name) => `W_O to ${name}`)), make("tbody", {}, ...factors, row("output", make("td"), ...product)));
    const two = make("table", {}, make("caption", {}, "One term for each head, added up"), headings(...names),
      make("tbody", {}, ...terms.map((cells, i) => row(`head ${i + 1} writes`, ...cells)), row("sum", ...total)));
    const put = (cells, numbers) => cells.forEach((cell, j) => (cell.textContent = plain(numbers[j])));
    const list = (numbers) => `[${numbers.map(plain).join(", ")}]`;
    const sentence = () => {
      const { output, written } = compute.projection(at.heads, at.W_o);
      return `Both ways give ${list(output)}: ${written.map((terms, i) => `head ${i + 1} writes ${list(terms)}`).join(", ")}.`;
    };
    const show = (quiet = false) => {
      const { output, written, total: added } = compute.projection(at.heads, at.W_o);
      put(product, output);
      terms.forEach((cells, i) => put(cells, written[i]));
      put(total, added);
      if (!quiet) say(sentence());
    };
    const change = (name, heads, W_o) => make("button", { type: "button", onclick: () => {
      const before = list(compute.projection(at.heads, at.W_o).output);
      Object.assign(at, structuredClone({ heads: heads(), W_o: W_o() }));
      entries.forEach(({ reset }) => reset());
      show(true);
      const same = before === list(compute.projection(at.heads, at.W_o).output);
      say(`The output is ${same ? "as before" : "another"}. ${sentence()}`);
    } }, name);
    const buttons = make("div", { class: "ex-controls" },
      change("Exchange the heads", () => at.heads.slice().reverse(), () => at.W_o),
      change("Exchange the blocks", () => at.heads, () => span(h).reverse().flatMap((i) => at.W_o.slice(i * width, (i + 1) * width))),
      change("Start again", () => states.heads, () => states.W_o));
    show(true);
    const box = (table) => make("div", { class: "ex-scroll" }, table);
    return { parts: [make("div", { class: "ex-two" }, box(one), box(two)), line, buttons], first: sentence() };
  };

  // --- query ----------------------------------------------------------------------------------------------------

  compute.query = (query, keys, values, temperature) => {
    const scores = keys.map((key) => sum(key.map((x, i) => x * query[i])));
    const top = Math.max(...scores);
    const powers = scores.map((score) => Math.exp((score - top) / temperature));
    const weights = powers.map((x) => x / sum(powers));
    return { scores, weights, answer: values[0].map((_, i) => sum(values.map((value, j) => weights[j] * value[i]))) };
  };

  // A plane to draw in, with y upwards, and room around what is in it.
  const plane = (points, label) => {
    const [xs, ys] = [0, 1].map((i) => points.map((point) => point[i]));
    const size = Math.max(Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys)) * 1.3;
    const middle = [xs, ys].map((part) => (Math.max(...part) + Math.min(...part)) / 2);
    const unit = size / 100;
    const box = draw("svg", { class: "ex-plane", role: "img", "aria-label": label,
      viewBox: `${middle[0] - size / 2} ${-middle[1] - size / 2} ${size} ${size}` });
    const line = (from, to, color, more = {}) =>
      draw("line", { x1: from[0], y1: -from[1], x2: to[0], y2: -to[1], stroke: color, "stroke-width": unit, ...more });
    const dot = (at, color, r = 2) => draw("circle", { cx: at[0], cy: -at[1], r: r * unit, fill: color });
    const text = (at, words) => {
      const left = at[0] > middle[0] + size / 4; // of its point, where there is more room
      return draw("text", { x: at[0] + (left ? -1 : 1) * 2.4 * unit, y: -at[1] - 3 * unit, "text-anchor": left ? "end" : "start",
        style: `font-size: ${6 * unit}px` }, words);
    };
    const place = (shape, at) => (shape.setAttribute("cx", at[0]), shape.setAttribute("cy", -at[1]));
    const where = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(box.getScreenCTM().inverse());
      return [at.x, -at.y];
    };
    return { box, line, dot, text, place, where, unit };
  };

  kinds.query = (states, say, line) => {
    const { keys, values } = states;
    const reach = 4;
    const at = { query: states.query.slice(), temperature: 1 };
    const ask = plane([[-reach, -reach], [reach, reach], ...keys], "The plane of queries and keys");
    const origin = [0, 0];
    const arrow = ask.line(origin, at.query, "var(--query)");
    const handle = ask.dot(at.query, "var(--query)", 3);
    const grip = ask.dot(at.query, "transparent", 8);
    grip.setAttribute("class", "ex-handle");
    grip.setAttribute("style", "touch-action: none");
    ask.box.append(ask.line([-9, 0], [9, 0], "var(--line)"), ask.line([0, -9], [0, 9], "var(--line)"),
      ...keys.flatMap((key, i) => [ask.line(origin, key, "var(--key)"), ask.dot(key, "var(--key)"), ask.text(key, `key ${i + 1}`)]),
      arrow, handle, grip);
    const get = plane(values, "The values, and the answer among them");
    const outline = draw("polygon", { points: values.map(([x, y]) => `${x},${-y}`).join(" "), fill: "none", stroke: "var(--edge)", "stroke-width": get.unit / 2 });
    const pulls = values.map((value) => get.line(value, value, "var(--value)", { "stroke-linecap": "round" }));
    const answer = get.dot([0, 0], "var(--output)", 3);
    const named = [ask, get].map(({ text }, i) => text([0, 0], ["query", "answer"][i]));
    const follow = (i, { box, unit }, [x, y]) => { // its name, on the side where there is room
      const { x: from, width } = box.viewBox.baseVal;
      const right = x < from + 0.7 * width;
      for (const [key, value] of Object.entries({ x: x + (right ? 4 : -4) * unit, y: -y - 4 * unit, "text-anchor": right ? "start" : "end" }))
        named[i].setAttribute(key, value);
    };
    get.box.append(outline, ...pulls, ...values.flatMap((value, i) => [get.dot(value, "var(--value)"), get.text(value, `value ${i + 1}`)]), answer, named[1]);

    ask.box.insertBefore(named[0], grip);

    const columns = ["key", "score", "weight", "value"];
    const cells = keys.map((key, i) => [make("td", {}, `(${key.map(plain).join(", ")})`), make("td"), make("td", { class: "ex-shade" }), make("td", {}, `(${values[i].map(plain).join(", ")})`)]);
    const found = make("td");
    const whole = make("td");
    const row = (name, ...inner) => make("tr", {}, make("th", { scope: "row" }, name), ...inner);
    const caption = make("caption");
    const table = make("table", {}, caption,
      make("thead", {}, make("tr", {}, make("td"), ...columns.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...cells.map((inner, i) => row(`entry ${i + 1}`, ...inner)), row("answer", make("td"), make("td"), whole, found)));
    const pair = (point, n = 1) => `(${point.map((x) => digits(x, n)).join(", ")})`;
    const sentence = () => {
      const { weights, answer: point } = compute.query(at.query, keys, values, at.temperature);
      return `Query ${pair(at.query)} at temperature ${digits(at.temperature, 2)}: weights ${weights.map((w) => digits(w, 2)).join(", ")}, answer ${pair(point, 2)}.`;
    };
    const show = (quiet = false) => {
      const { scores, weights, answer: point } = compute.query(at.query, keys, values, at.temperature);
      caption.textContent = `The query ${pair(at.query)} and its keys`;
      cells.forEach(([, score, weight], i) => {
        score.textContent = digits(scores[i], 2);
        weight.textContent = digits(weights[i], 3);
        weight.style.setProperty("--w", weights[i].toFixed(3));
        pulls[i].setAttribute("x2", point[0]);
        pulls[i].setAttribute("y2", -point[1]);
        pulls[i].setAttribute("stroke-width", 4 * get.unit * weights[i]);
      });
      whole.textContent = digits(sum(weights), 3);
      found.textContent = pair(point, 2);
      arrow.setAttribute("x2", at.query[0]);
      arrow.setAttribute("y2", -at.query[1]);
      [handle, grip].forEach((shape) => ask.place(shape, at.query));
      get.place(answer, point);
      follow(0, ask, at.query);
      follow(1, get, point);
      if (!quiet) say(sentence());
    };
    const move = (query) => {
      at.query = query.map((x) => Math.round(10 * Math.min(reach, Math.max(-reach, x))) / 10);
      sliders.forEach((slider, i) => slider.set(at.query[i]));
      show();
    };
    const sliders = [0, 1].map((i) => range(`Query, number ${i + 1}`, at.query[i], { min: -reach, max: reach, step: 0.1, show: (x) => digits(x, 1) },
      (x) => move(at.query.map((old, j) => (i === j ? x : old)))));
    const heat = range("Temperature", 0, { min: -1, max: 1, step: 0.05, show: (x) => digits(10 ** x, 2) }, (x) => ((at.temperature = 10 ** x), show()));
    ask.box.addEventListener("click", (event) => move(ask.where(event)));
    grip.addEventListener("pointerdown", (event) => (grip.setPointerCapture(event.pointerId), event.preventDefault()));
    grip.addEventListener("pointermove", (event) => grip.hasPointerCapture(event.pointerId) && move(ask.where(event)));
    const again = make("button", { type: "button", onclick: () => {
      at.temperature = 1;
      heat.set(0);
      move(states.query);
    } }, "Start again");
    show(true);
    return {
      parts: [make("div", { class: "ex-controls" }, ...sliders.map(({ box }) => box), heat.box, again), line,
        make("div", { class: "ex-planes" }, ask.box, get.box), make("div", { class: "ex-scroll" }, table),
        make("p", { class: "ex-note" }, "The query can also be dragged, or set by a click into its plane. Weights are the softmax of score divided by temperature.")],
      first: sentence(),
    };
  };

  // --- small tables, for several kinds --------------------------------------------------------------------------

  const tabled = (caption, columns, rows) =>
    make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, make("td"), ...columns.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.map(([name, cells]) => make("tr", {}, make("th", { scope: "row" }, name), ...cells))));
  const bar = () => make("span", { class: "ex-bar" });

  // --- shapes ---------------------------------------------------------------------------------------------------

  const product = (shape) => shape.reduce((a, b) => a * b, 1);
  compute.shapes = ({ b, n, d_model: width, h, h_kv: groups }) => {
    if (width % h) return { wrong: `${width} numbers per token cannot be cut into ${h} equal heads` };
    if (h % groups) return { wrong: `${h} heads cannot share ${groups} heads of keys and values equally` };
    const d = width / h;
    const three = (shape) => [h, groups, groups].map(shape);
    const steps = {
      tokens: [[b, n, width]],
      project: three((heads) => [b, n, heads * d]),
      split: three((heads) => [b, n, heads, d]),
      transpose: three((heads) => [b, heads, n, d]),
      scores: [[b, h, n, n]],
      scale: [[b, h, n, n]],
      softmax: [[b, h, n, n]],
      average: [[b, h, n, d]],
      "transpose back": [[b, n, h, d]],
      merge: [[b, n, h * d]],
      output: [[b, n, width]],
    };
    return { steps, cache: 2 * product(steps.transpose[1]) * 2 };
  };

  kinds.shapes = (states, say, line) => {
    const at = { ...states };
    const names = Object.keys(compute.shapes(at).steps);
    const cells = names.map(() => [make("td"), make("td"), make("td", { class: "ex-wide" }, bar())]);
    const kept = make("td");
    const rows = names.map((name, i) => [`${i + 1} ${name}`, cells[i]]);
    const table = tabled("The eleven steps", ["shape", "numbers", "to scale"], [...rows, ["cache of one layer", [make("td", {}, "keys and values, 16 bits"), kept, make("td")]]]);
    const thousands = (x) => x.toLocaleString("en");
    const show = (quiet = false, note = "") => {
      const { wrong, steps, cache } = compute.shapes(at);
      table.classList.toggle("ex-old", !!wrong);
      table.caption.textContent = wrong ? "The eleven steps, with the sizes before" : "The eleven steps";
      if (wrong) return say(`${note}${wrong}. The table shows the sizes before.`);
      const counts = names.map((name) => sum(steps[name].map(product)));
      names.forEach((name, i) => {
        const shapes = steps[name].map((shape) => shape.join(" × "));
        cells[i][0].textContent = [...new Set(shapes)].join(", ");
        cells[i][1].textContent = thousands(counts[i]);
        cells[i][2].firstChild.style.width = `${(100 * counts[i]) / Math.max(...counts)}%`;
      });
      kept.textContent = `${thousands(cache)} bytes`;
      if (!quiet) say(note + sentence());
    };
    const sentence = () => {
      const { steps, cache } = compute.shapes(at);
      const scores = product(steps.scores[0]) / product(steps.tokens[0]);
      return `Heads are ${at.d_model / at.h} wide. Scores are ${plain(+scores.toPrecision(3))} times as many numbers as tokens hold. A cache of one layer keeps ${thousands(cache)} bytes.`;
    };
    const sizes = [["b", "Texts b", 64], ["n", "Tokens n", 100000], ["d_model", "Width d_model", 16384], ["h", "Heads h", 256], ["h_kv", "Key-value heads h_kv", 256]];
    const inputs = sizes.map(([name, text, max]) => number(text, at[name], { min: 1, max }, (x, note) => ((at[name] = Math.round(x)), show(false, note))));
    show(true);
    return { parts: [make("div", { class: "ex-controls" }, ...inputs.map(({ box }) => box)), line, make("div", { class: "ex-scroll" }, table)], first: sentence() };
  };

  // --- scale ----------------------------------------------------------------------------------------------------

  compute.scale = (scores, divisor) => {
    const powers = scores.map((x) => Math.exp((x - Math.max(...scores)) / divisor));
    const weights = powers.map((x) => x / sum(powers));
    return { weights, bits: -sum(weights.map((w) => (w > 0 ? w * Math.log2(w) : 0))) };
  };

  kinds.scale = ({ widths, scores, divisors }, say, line) => {
    const at = { width: 3, query: 0, divisor: "nothing" };
    const m = scores[0][0].length;
    const cells = span(m).map(() => [make("td"), make("td"), make("td", { class: "ex-wide" }, bar())]);
    const table = tabled("The weights of one query", ["divided score", "weight", "the weight as a bar"], cells.map((row, j) => [`key ${j + 1}`, row]));
    const found = () => {
      const divisor = widths[at.width] ** divisors[at.divisor];
      return { divisor, ...compute.scale(scores[at.width][at.query], divisor) };
    };
    const sentence = () => {
      const { weights, bits } = found();
      return `Width ${widths[at.width]}, divided by ${at.divisor}: the largest weight is ${digits(Math.max(...weights), 2)}; as spread as over ${digits(2 ** bits, 1)} equal keys of ${m} (${digits(bits, 2)} bits).`;
    };
    const show = (quiet = false) => {
      const { divisor, weights } = found();
      cells.forEach(([score, weight, drawn], j) => {
        score.textContent = digits(scores[at.width][at.query][j] / divisor, 2);
        weight.textContent = digits(weights[j], 3);
        drawn.firstChild.style.width = `${100 * weights[j]}%`;
      });
      if (!quiet) say(sentence());
    };
    const set = (change) => (Object.assign(at, change), show());
    const width = range("Width d_k", at.width, { min: 0, max: widths.length - 1, show: (i) => `${widths[i]}` }, (x) => set({ width: x }));
    const divisor = radios("Divided by", Object.keys(divisors).map((name) => [name, name]), at.divisor, (x) => set({ divisor: x }));
    divisor.box.classList.add("ex-controls");
    const query = choice("Query", scores[0].map((_, i) => [i, `${i + 1}`]), at.query, (x) => set({ query: +x }));
    show(true);
    return { parts: [make("div", { class: "ex-controls" }, width.box, query.box, divisor.box), line, make("div", { class: "ex-scroll" }, table),
      make("p", { class: "ex-note" }, "Each width has queries and keys of its own, drawn at random.")], first: sentence() };
  };

  // --- flash ----------------------------------------------------------------------------------------------------

  kinds.flash = ({ scores, values, blocks }, say, line) => {
    const at = { size: 0, step: 0 };
    const m = scores.length;
    const names = ["largest", "shrink", "total", "weighted", "average"];
    const keys = scores.map((score, j) => [make("td", {}, digits(score, 3)), make("td", {}, plain(values[j]))]);
    const given = tabled("One query and its keys", keys.map((_, j) => `key ${j + 1}`), [["score", keys.map(([score]) => score)], ["value", keys.map(([, value]) => value)]]);
    const carried = make("div", { class: "ex-scroll" });
    const of = (t) => [t * blocks[at.size][0], Math.min(m, (t + 1) * blocks[at.size][0])];
    const which = (t) => (of(t)[1] - of(t)[0] > 1 ? `${of(t)[0] + 1} to ${of(t)[1]}` : `${of(t)[1]}`);
    const sentence = () => {
      const steps = blocks[at.size][1];
      if (!at.step) return `Nothing has been read. Blocks in all: ${steps.length}.`;
      const now = steps[at.step - 1];
      const before = steps[at.step - 2];
      const say3 = (x) => digits(x, 3);
      const rise = !before ? `the largest score is ${say3(now.largest)}`
        : now.largest > before.largest ? `the largest score rises from ${say3(before.largest)} to ${say3(now.largest)}, and both sums shrink to ${say3(now.shrink)} of what they were`
        : `the largest score stays ${say3(now.largest)}, and nothing shrinks`;
      const end = at.step === steps.length ? "all keys are read, and the average is" : "the average so far is";
      return `Block ${at.step}, ${which(at.step - 1).includes("to") ? "keys" : "key"} ${which(at.step - 1)}: ${rise}; ${end} ${say3(now.average)}.`;
    };
    const show = (quiet = false) => {
      const steps = blocks[at.size][1];
      keys.flat().forEach((cell, i) => {
        const j = Math.floor(i / 2);
        const now = at.step && j >= of(at.step - 1)[0] && j < of(at.step - 1)[1];
        cell.className = "ex-shade";
        cell.style.setProperty("--w", now ? 1 : 0);
      });
      carried.replaceChildren(tabled("After each block, what the query carries", ["keys", "largest", "shrink", "total", "weighted", "average so far"],
        steps.map((step, t) => [`block ${t + 1}`, [make("td", {}, which(t)), ...names.map((name) => make("td", {}, t < at.step ? digits(step[name], 3) : ""))]])));
      back.setAttribute("aria-disabled", at.step === 0); // and the focus stays on it
      next.setAttribute("aria-disabled", at.step === steps.length);
      if (!quiet) say(sentence());
    };
    const go = (step) => {
      at.step = Math.min(blocks[at.size][1].length, Math.max(0, step));
      place.set(at.step);
      show();
    };
    const button = (text, by) => make("button", { type: "button", onclick: () => go(at.step + by) }, text);
    const [back, next] = [button("Back", -1), button("Next block", 1)];
    const place = range("Blocks read", 0, { min: 0, max: blocks[0][1].length }, go);
    const size = choice("Keys in a block", blocks.map(([block], i) => [i, `${block}`]), 0, (i) => {
      at.size = +i;
      place.control.max = blocks[at.size][1].length;
      go(0);
    });
    show(true);
    return {
      parts: [make("div", { class: "ex-controls" }, size.box, place.box, back, next), line, make("div", { class: "ex-scroll" }, given), carried],
      first: sentence(),
    };
  };

  // --- mask builder ---------------------------------------------------------------------------------------------

  // The rules in force, each with what it hides and how that is said.
  const rulesOf = ({ n, m, align, causal, window: near, padding, side, first }) => {
    const shift = align === "bottom-right" ? m - n : 0;
    const text = (place) => (place < 0 || place >= m ? -1 : +(place >= first));
    return [
      causal && [(i, j) => j > i + shift, "it comes later"],
      near && [(i, j) => Math.abs(i + shift - j) >= near, "it is too far away"],
      padding && [(i, j) => (side === "right" ? j >= m - padding : j < padding), "it is padding"],
      first && [(i, j) => text(i + shift) < 0 || text(i + shift) !== text(j), "it is of another text"],
    ].filter(Boolean);
  };
  compute.visible = (state) => {
    const rules = rulesOf(state);
    return span(state.n).map((i) => span(state.m).map((j) => !rules.some(([hides]) => hides(i, j))));
  };
  compute.lines = (state) => {
    const { n, m, align, causal, window: near, padding, side, first } = state;
    const [left, square] = [side === "left", n === m];
    const aligned = square ? "" : `"${align}"`;
    const then = aligned && `, ${aligned}`;
    const here = [
      causal && `Causal(${aligned})`,
      near && `Window(${near}${then})`,
      padding && `Padding(${m - padding}${left ? ', side="left"' : ""})`,
      first && `Documents([${first}, ${m - first}]${then})`,
    ].filter(Boolean);
    const shift = align === "bottom-right" ? m - n : 0;
    const moved = shift ? ` ${shift > 0 ? "+" : "-"} ${Math.abs(shift)}` : "";
    const positions = `i, j = torch.arange(${n})[:, None]${moved}, torch.arange(${m})`;
    const terms = [causal && "(j <= i)", near && `((i - j).abs() < ${near})`].filter(Boolean);
    if (first) terms.push(`((i < ${first}) == (j < ${first}))`, ...(n > m ? ["(i >= 0)", `(i < ${m})`] : []));
    const real = left ? `(j >= ${padding})` : `(j < ${m - padding})`;
    const fused = () => {
      const call = "scaled_dot_product_attention(q, k, v";
      if (!terms.length && !padding) return `${call})`;
      if (terms.join() === "(j <= i)" && !padding && (square || align === "top-left")) return `${call}, is_causal=True)`;
      const together = [...terms, ...(padding ? [real] : [])].join(" & ");
      const whole = terms.length ? together : `${together}.expand(${n}, ${m})`;
      return `${positions}\nattn_mask = ${whole}  # True: may attend\n${call}, attn_mask=attn_mask)`;
    };
    const ones = (count, digit) => Array(count).fill(digit);
    const row = left ? [...ones(padding, 0), ...ones(m - padding, 1)] : [...ones(m - padding, 1), ...ones(padding, 0)];
    return {
      "this package": `visible = ${here.join(" & ") || "None  # every query sees every key"}`,
      scaled_dot_product_attention: fused(),
      "nn.MultiheadAttention": [
        ...(terms.length || padding ? [positions] : []),
        ...(terms.length ? [`attn_mask = ~(${terms.join(" & ")})  # True: ignore`] : []),
        ...(padding ? [`key_padding_mask = ~${real}[None]  # True: ignore`] : []),
        `attention(q, k, v${terms.length ? ", attn_mask=attn_mask" : ""}${padding ? ", key_padding_mask=key_padding_mask" : ""})`,
      ].join("\n"),
      "Hugging Face transformers": [
        `attention_mask = torch.tensor([[${row.join(", ")}]])  # 1: a real token`,
        !causal
          ? "# every token sees every other: an encoder, such as BERT"
          : square || align === "bottom-right"
            ? "# causal: a decoder is so by itself, and its queries are the last tokens"
            : "# causal from the top left, with other numbers of queries and keys: no model does that",
        near && `config.sliding_window = ${near}${causal ? "" : "  # backwards; in some encoders there is one on both sides"}`,
        first && (square
          ? `position_ids = torch.tensor([[${[...span(first), ...span(m - first)].join(", ")}]])  # begin again with each text`
          : "# packed texts are read as a whole, with as many queries as keys"),
      ].filter(Boolean).join("\n"),
    };
  };

  kinds.masks = (states, say, line) => {
    const MOST = 10;
    const at = { ...states };
    const scroll = make("div", { class: "ex-scroll" });
    const places = Object.keys(compute.lines(at)).map((name) => [name, make("pre")]);
    const lists = (seen) => seen.flatMap((sees, j) => (sees ? [j + 1] : []));
    const sees = (i) => {
      const keys = lists(compute.visible(at)[i]);
      return `Query ${i + 1} sees ${keys.length ? `${keys.length === 1 ? "key" : "keys"} ${keys.join(", ")}` : "no key"}.`;
    };
    const tell = (i, j) => {
      const why = rulesOf(at).filter(([hides]) => hides(i, j)).map(([, reason]) => reason);
      say(`Query ${i + 1} ${why.length ? `does not see key ${j + 1}: ${why.join(", and ")}` : `sees key ${j + 1}`}. ${sees(i)}`);
    };
    const sentence = () => {
      const visible = compute.visible(at);
      const blind = visible.flatMap((row, i) => (row.some(Boolean) ? [] : [i + 1]));
      const nothing = !blind.length ? "" : ` ${blind.length === 1 ? "Query" : "Queries"} ${blind.join(", ")} ${blind.length === 1 ? "sees" : "see"} no key.`;
      return `${sum(visible.flat().map(Number))} of ${at.n * at.m} pairs are visible.${nothing}`;
    };
    const show = (quiet = false) => {
      const cells = compute.visible(at).map((row) => row.map((yes) => make("td", { role: "gridcell", class: "ex-shade", style: `--w: ${+yes}` }, `${+yes}`)));
      rove(cells, tell);
      scroll.replaceChildren(make("table", { role: "grid", "aria-label": "What each query sees: a row for each query, 1 where it may attend" },
        make("caption", {}, "What each query sees: 1 where it may attend. Choose a cell to see why."),
        make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, make("td", { role: "gridcell" }), ...span(at.m).map((j) => make("th", { role: "columnheader", scope: "col" }, `key ${j + 1}`)))),
        make("tbody", { role: "rowgroup" }, ...cells.map((row, i) => make("tr", { role: "row" }, make("th", { role: "rowheader", scope: "row" }, `query ${i + 1}`), ...row)))));
      const lines = compute.lines(at);
      places.forEach(([name, box]) => (box.textContent = lines[name]));
      if (!quiet) say(sentence());
    };
    const set = (change, note = "") => {
      Object.assign(at, change);
      for (const [name, input] of [["padding", padded], ["first", first]]) {
        input.control.max = at.m;
        if (at[name] > at.m) input.set((at[name] = at.m));
      }
      show(true);
      say(note + sentence());
    };
    const sized = (text, name, min, max) => number(text, at[name], { min, max }, (x, note) => set({ [name]: Math.round(x) }, note));
    const [queries, keys] = [sized("Queries", "n", 1, MOST), sized("Keys", "m", 1, MOST)];
    const near = sized("Window, in tokens with itself (0: none)", "window", 0, MOST);
    const padded = sized("Padded keys", "padding", 0, at.m);
    const first = sized("Length of the first of two texts (0: one text)", "first", 0, at.m);
    const causal = make("input", { type: "checkbox", checked: at.causal, onchange: () => set({ causal: causal.checked }) });
    const align = choice("Aligned", [["top-left", "top left"], ["bottom-right", "bottom right"]], at.align, (x) => set({ align: x }));
    const side = choice("Padding on the", [["right", "right"], ["left", "left"]], at.side, (x) => set({ side: x }));
    show(true);
    return {
      parts: [
        make("div", { class: "ex-controls" }, queries.box, keys.box, align.box, make("label", {}, causal, "Causal"), near.box, padded.box, side.box, first.box),
        line,
        make("div", { class: "ex-two" }, scroll, make("div", {}, ...places.map(([name, box]) => make("div", { role: "group", "aria-label": name }, make("p", { class: "ex-note" }, name), box)))),
      ],
      first: sentence(),
    };
  };

  // --- waking ---------------------------------------------------------------------------------------------------

  // A box that scrolls is a stop of the Tab key, unless something in it is.
  const reach = (box) =>
    new ResizeObserver(() => {
      const needed = box.scrollWidth - box.clientWidth > 1 && !box.querySelector('input, [tabindex="0"]');
      for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "Table, scrolls sideways"]])
        needed ? box.setAttribute(name, value) : box.removeAttribute(name);
    }).observe(box);

  const wake = (box) => {
    const numbers = box.querySelector(':scope > script[type="application/json"]');
    const kind = kinds[box.dataset.kind];
    if (box.classList.contains("explorer-awake") || !numbers || !kind) return;
    box.classList.add("explorer-awake");
    const still = box.querySelector(":scope > .explorer-still");
    const line = make("p", { class: "ex-say", role: "status", "aria-live": "polite" });
    const { parts, first, recolour } = kind(
      JSON.parse(numbers.textContent), (text) => line.textContent !== text && (line.textContent = text), line, still);
    line.textContent = first;
    still.replaceChildren(...parts, ...(parts.includes(line) || line.parentNode ? [] : [line]));
    box.querySelectorAll(".ex-scroll").forEach(reach);
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
