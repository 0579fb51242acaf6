// The search page: what a result shows is the text of the article, its formulas readable; the count is announced.
(() => {
  "use strict";
  const SIGNS = {
    alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", lambda: "λ", mu: "μ", sigma: "σ", tau: "τ",
    Delta: "Δ", Sigma: "Σ", sum: "Σ", sqrt: "√", cdot: "·", times: "×", top: "ᵀ", in: "∈", to: "→", infty: "∞",
    le: "≤", leq: "≤", ge: "≥", geq: "≥", ne: "≠", neq: "≠", approx: "≈", ldots: "…", dots: "…", cdots: "⋯",
    partial: "∂", nabla: "∇", odot: "⊙", ln: "ln", log: "log", exp: "exp", max: "max", min: "min",
  };
  const readable = (tex) =>
    tex
      .replace(/^\\[([]|\\[)\]]$/g, "")
      .replace(/\\(begin|end)\{[^}]*\}(\{[^}]*\})?|\\(left|right|big|Big|displaystyle|quad|qquad)\b/g, " ")
      .replace(/\\[td]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}/g, "$1/$2")
      .replace(/\\[td]?frac\s*(\d)\s*(\d)/g, "$1/$2")
      .replace(/\\([a-zA-Z]+)/g, (command, name) => SIGNS[name] ?? (/^(text|math|operatorname)/.test(name) ? "" : name))
      .replace(/\^\s*ᵀ/g, "ᵀ")
      .replace(/\\\\/g, "; ")
      .replace(/\\[,;:!]|[{}&]|\\/g, " ")
      .replace(/\s+/g, " ")
      .trim();

  Search.htmlToText = (html, anchor) => {
    const loaded = new DOMParser().parseFromString(html, "text/html");
    const article = loaded.querySelector("article.bd-article");
    const part = (anchor && article?.querySelector(`[id="${CSS.escape(anchor.slice(1))}"]`)) || article;
    if (!part) return "";
    part.querySelectorAll(".headerlink, .eqno, .equation-links, script, style").forEach((extra) => extra.remove());
    part.querySelectorAll(".math").forEach((formula) => (formula.textContent = readable(formula.textContent.trim())));
    return part.textContent.replace(/\s+/g, " ");
  };

  addEventListener("load", () => document.querySelector(".bd-search-container input")?.focus());

  const announce = (query) => {
    Search.status.setAttribute("role", "status");
    Search.output.setAttribute("aria-label", "Results");
    document.title = `${query} – ${document.title}`;
  };
  const performSearch = Search.performSearch;
  Search.performSearch = (query) => (performSearch(query), announce(query));
  if (Search.output) announce(new URLSearchParams(location.search).get("q")); // one has begun, and waits for the index
})();
