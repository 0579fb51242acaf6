// Shows what a reference leads to before it is followed: an equation, or a term of the glossary. It appears beside the
// link that the mouse rests on or the keyboard has reached, stays while the mouse is on it, and Escape closes it. A
// touch follows the link, as ever; where pages cannot be fetched (opened as files), nothing appears.
(() => {
  "use strict";
  const LINKS = "a.reference.internal:is([href*='#equation-'], [href*='#term-'])";
  const REST = 300; // milliseconds before it appears, and before it goes

  const box = document.createElement("div");
  box.id = "preview";
  box.setAttribute("role", "tooltip");
  box.hidden = true;
  document.body.append(box);

  const pages = new Map();
  const read = (address) => {
    if (!pages.has(address)) {
      const page = fetch(address).then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status)));
      pages.set(address, page.then((text) => new DOMParser().parseFromString(text, "text/html")));
    }
    return pages.get(address);
  };

  const stored = () => {
    try {
      return localStorage.getItem("sphinx-design-tab-id-convention");
    } catch {
      return null; // storage may be forbidden
    }
  };

  // The definition of a term, or an equation; of two sides of one, that which the reader has chosen.
  const find = (page, id) => {
    const target = page.getElementById(id);
    if (target?.matches("dt")) return target.closest("dl").querySelector(`#${CSS.escape(id)} ~ dd`);
    if (target?.matches("div.math")) return target;
    const tabs = target?.closest(".sd-tab-set") ?? target?.parentElement.nextElementSibling;
    if (!tabs?.matches(".sd-tab-set")) return null;
    const chosen = document.querySelector("[data-sync-group=convention]:is(input:checked + label)")?.dataset.syncId;
    const label = tabs.querySelector(`[data-sync-id="${chosen ?? stored() ?? "row"}"]`) ?? tabs.querySelector("label");
    return label.nextElementSibling.querySelector("div.math");
  };

  let shown = null; // the link whose preview there is
  let timer = null;
  const hide = () => {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    box.hidden = true;
  };
  const place = (link) => {
    const at = link.getClientRects()[0];
    const width = box.offsetWidth;
    const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - width - 8));
    const below = at.bottom + box.offsetHeight + 8 < innerHeight || at.top < box.offsetHeight + 8;
    box.style.left = `${left + scrollX}px`;
    box.style.top = `${(below ? at.bottom + 4 : at.top - box.offsetHeight - 4) + scrollY}px`;
  };
  const show = async (link) => {
    const address = new URL(link.href);
    const id = decodeURIComponent(address.hash.slice(1));
    address.hash = "";
    const here = address.pathname === location.pathname;
    const found = await (here ? Promise.resolve(document) : read(address.href)).then((page) => find(page, id)).catch(() => null);
    if (!found || !(link.matches(":hover") || document.activeElement === link)) return;
    hide();
    box.replaceChildren(document.importNode(found, true));
    box.querySelectorAll(".headerlink").forEach((sign) => sign.remove());
    box.querySelectorAll("a").forEach((inner) => inner.replaceWith(...inner.childNodes)); // it is read, not entered
    box.querySelectorAll("[id], [tabindex]").forEach((part) => (part.removeAttribute("id"), part.removeAttribute("tabindex")));
    box.hidden = false;
    if (!here) await window.MathJax?.typesetPromise?.([box]);
    shown = link;
    link.setAttribute("aria-describedby", box.id);
    place(link);
  };

  const later = (act) => {
    clearTimeout(timer);
    timer = setTimeout(act, REST);
  };
  document.addEventListener("pointerover", ({ target, pointerType }) => {
    if (pointerType !== "mouse") return;
    const link = target.closest?.(LINKS);
    if (link && link !== shown) later(() => show(link));
    else if (link || box.contains(target)) clearTimeout(timer);
    else if (shown || timer) later(hide);
  });
  document.addEventListener("focusin", ({ target }) => {
    if (target.matches(LINKS) && target.matches(":focus-visible")) show(target);
    else if (shown) hide();
  });
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
})();
