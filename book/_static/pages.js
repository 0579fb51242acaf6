// What the pages need a script for: boxes that scroll say so, the search can be left, dark pages print as light ones.
(() => {
  "use strict";
  const page = document.documentElement;
  const SCROLLS = [
    "mjx-container[display='true']",
    "mjx-container.wide",
    "pre",
    ".cell_output > .output",
    ".pst-scrollable-table-container",
  ].join(", ");

  // A box that holds more than it shows can be reached by keyboard and fades out where it goes on.
  const mark = (box) => {
    const hidden = box.scrollWidth - box.clientWidth;
    const scrolls = box.clientWidth > 0 && hidden > 1;
    if (scrolls) box.tabIndex = 0;
    else if (box.matches("mjx-container")) box.removeAttribute("tabindex");
    else box.tabIndex = -1;
    if (box.matches("mjx-container")) {
      if (scrolls) {
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "Formula, scrolls sideways");
      } else {
        box.removeAttribute("role");
        box.removeAttribute("aria-label");
      }
    }
    box.classList.toggle("more-left", scrolls && box.scrollLeft > 1);
    box.classList.toggle("more-right", scrolls && box.scrollLeft < hidden - 1);
  };

  // A formula in a line that is wider than its column becomes such a box.
  const fold = (formula) => {
    const column = formula.closest("p, li, dd, dt, td, th, figcaption, h1, h2, h3, h4");
    if (!column || formula.closest(".pst-scrollable-table-container")) return;
    const drawn = formula.firstElementChild.getBoundingClientRect().width;
    if (drawn) formula.classList.toggle("wide", drawn > column.clientWidth);
  };

  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => mark(target)));
  const watch = () => {
    document.querySelectorAll("mjx-container:not([display])").forEach(fold);
    document.querySelectorAll(`.bd-article :is(${SCROLLS})`).forEach((box) => {
      mark(box);
      sizes.observe(box);
    });
  };
  document.addEventListener("scroll", ({ target }) => target.matches?.(SCROLLS) && mark(target), {
    capture: true,
    passive: true,
  });

  // The search over the page: nothing behind it is reached, Escape leaves it, and focus goes back where it was.
  const search = () => {
    const box = document.querySelector(".search-button__wrapper");
    const field = box?.querySelector("input");
    if (!field) return;
    box.setAttribute("role", "dialog");
    box.setAttribute("aria-modal", "true");
    box.setAttribute("aria-label", "Search");
    const others = [...document.body.children].filter((other) => other !== box && other.tagName !== "SCRIPT");
    let before = null;
    box.addEventListener("focusin", ({ relatedTarget }) => (before ??= relatedTarget));
    new MutationObserver(() => {
      const open = box.classList.contains("show");
      others.forEach((other) => (other.inert = open));
      if (open) field.focus();
      else {
        before?.focus();
        before = null;
      }
    }).observe(box, { attributeFilter: ["class"] });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") box.classList.remove("show");
      else if (event.key !== "Tab") return;
      event.preventDefault(); // the field is all there is in the box
      event.stopImmediatePropagation();
    });
  };

  // Names for what is drawn only, and files that are saved rather than shown.
  const label = () => {
    document.querySelectorAll("i[class*='fa-'], span[class*='fa-']").forEach((icon) => {
      icon.setAttribute("aria-hidden", "true");
    });
    document.querySelectorAll(".dropdown-download-buttons a").forEach((link) => {
      link.download = "";
      link.removeAttribute("target");
    });
  };

  let theme = null;
  addEventListener("beforeprint", () => {
    theme = page.dataset.theme;
    page.dataset.theme = "light";
  });
  addEventListener("afterprint", () => (page.dataset.theme = theme));

  // Formulas, once drawn, move what was scrolled to, unless the reader has already gone on.
  let moved = false;
  ["wheel", "touchmove", "keydown", "pointerdown"].forEach((kind) =>
    addEventListener(kind, () => (moved = true), { passive: true }),
  );
  const arrive = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && !moved) target.scrollIntoView({ behavior: "instant" });
  };

  // A second way past the header, to the first thing to touch.
  const skip = () => {
    const [bar, explorer] = [document.getElementById("pst-skip-link"), document.querySelector("article .explorer")];
    if (!bar || !explorer) return;
    explorer.id = "explorer";
    const link = bar.appendChild(document.createElement("a"));
    [link.href, link.textContent] = ["#explorer", "Skip to explorer"];
  };

  search();
  label();
  skip();
  addEventListener("load", async () => {
    document.querySelector(".bd-sidebar-primary")?.scrollTo(0, 0); // it begins with the map, which says where one is
    await window.MathJax?.startup?.promise;
    watch();
    arrive();
  });
  let waiting = null;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(watch, 400); // after the theme has set the tabindex of code
  });
})();
