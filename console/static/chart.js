"use strict";

// The chart of the rates that this page has seen since it was opened: the server keeps no history.
// A look is a point. Lines are broken where a rate wasn't known, or the page had no updates.
const MOST_LOOKS = 900;
const SHORTEST_MS = 60000;
const GAP_MS = 60000;
const WIDTH = 600;
const HEIGHT = 100;
const chart = document.getElementById("chart");
const looks = [];

function ratesOf(part) {
  const rates = {};
  for (const each of part.querySelectorAll("[data-rate]")) rates[each.dataset.rate] = Number(each.dataset.value);
  return rates;
}

function line(name, highest) {
  const first = looks[0].at;
  const shown = Math.max(looks[looks.length - 1].at - first, SHORTEST_MS);
  let path = "";
  let before = null;
  for (const { at, rates } of looks) {
    if (!(name in rates)) {
      before = null;
      continue;
    }
    const joined = before !== null && at - before < GAP_MS;
    const x = (at - first) / shown * WIDTH;
    const y = HEIGHT - 3 - rates[name] / highest * (HEIGHT - 6);
    path += `${joined ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    before = at;
  }
  return path;
}

function perSecond(rate) {
  return `${rate.toLocaleString("en", { maximumFractionDigits: 1 })}/s`;
}

function draw() {
  const lines = [...chart.querySelectorAll("[data-line]")];
  const known = (name) => looks.map((look) => look.rates[name]).filter((rate) => rate !== undefined);
  const highest = Math.max(...lines.flatMap((each) => known(each.dataset.line)), 1);
  for (const each of lines) {
    const name = each.dataset.line;
    const now = looks[looks.length - 1].rates[name];
    each.setAttribute("d", line(name, highest));
    chart.querySelector(`[data-told="${name}"]`).textContent =
      `${name}: ${now === undefined ? "not known" : perSecond(now)} now, ${perSecond(Math.max(...known(name), 0))} at most`;
  }
}

function add(rates) {
  looks.push({ at: Date.now(), rates });
  if (looks.length > MOST_LOOKS) looks.shift();
  draw();
}

document.addEventListener("looked", (event) => {
  if (event.detail === null) {
    add(looks[looks.length - 1].rates);
  } else {
    const part = document.createElement("template");
    part.innerHTML = event.detail;
    add(ratesOf(part.content));
  }
});

chart.hidden = false;
add(ratesOf(document));
