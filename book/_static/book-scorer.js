// Results that score alike come in the order of the book: chapters by number, then what has none.
var Scorer = {
  score: ([, title, , , score]) => score - Math.min(parseFloat(title) || 99, 99) / 1000,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
