// Results that score alike come in the order of the book: chapters by number, then pages without one, then reference.
// Entries of the glossary come after titles and before text. The list of equations, whose headings repeat those of the
// chapters, comes after text, and so do names of code that only contain the word; the name itself comes after titles.
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const number = parseFloat(title.replace(/<[^>]*>/g, "")); // titles are HTML
    const most = anchor.startsWith("#term-") ? 14.5 : page.endsWith("/reference/equations") ? 4.5 : 100;
    return Math.min(score, most) - (number || (page.includes("/reference/") ? 99 : 98)) / 1000;
  },
  objNameMatch: 9,
  objPartialMatch: -2,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
