"use strict";

// The part of a page that is live comes as server-sent events. A page that isn't shown, or whose
// updates are paused, has no connection. While the keyboard or a selection is in the part, the
// newest one waits.
const FIRST_MS = 1500;
const RETRY_MS = 5000;
const live = document.getElementById("live");
let paused = false;
let stream = null;
let waiting = null;

function tell(text) {
  const place = document.getElementById("stream");
  if (place && place.textContent !== text) place.textContent = text;
}

function isInUse() {
  const selection = document.getSelection();
  return live.contains(document.activeElement) ||
    (!selection.isCollapsed && live.contains(selection.anchorNode));
}

function show(part) {
  waiting = isInUse() ? part : null;
  if (waiting !== null) return;
  const opened = [...live.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
  const places = [...live.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  live.innerHTML = part;
  for (const each of live.querySelectorAll("details > summary")) {
    if (opened.includes(each.textContent)) each.parentElement.open = true;
  }
  live.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = places[at] || 0; });
}

// Tell the chart of a look at the page: the part, or null if it is the same as before.
function looked(part) {
  document.dispatchEvent(new CustomEvent("looked", { detail: part }));
}

function showWaiting() {
  if (waiting !== null) show(waiting);
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

function connect() {
  if (!live || stream || paused || document.hidden) return;
  const opened = new EventSource(location.pathname + location.search);
  stream = opened;
  opened.addEventListener("part", (event) => { tell(""); looked(event.data); show(event.data); });
  opened.addEventListener("same", () => { looked(null); });
  opened.addEventListener("problem", (event) => { tell(`Not updated: ${event.data}`); });
  opened.addEventListener("leave", (event) => { location.assign(event.data); });
  opened.addEventListener("error", () => {
    tell("Not updated: the server doesn't answer, or updates too many pages");
    if (opened.readyState === EventSource.CLOSED && stream === opened) {
      disconnect();
      setTimeout(connect, RETRY_MS);
    }
  });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("#pause");
  if (button) {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume updates" : "Pause updates";
    tell("");
    waiting = null;
    if (paused) disconnect(); else connect();
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    // Browsers have navigator.clipboard only for https and for this machine.
    document.getSelection().selectAllChildren(document.getElementById(copy.dataset.copy));
    copy.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl-C";
  }
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect(); else connect();
});
document.addEventListener("focusout", () => { setTimeout(showWaiting); });
document.addEventListener("selectionchange", showWaiting);

document.addEventListener("change", (event) => {
  if (["theme", "event"].includes(event.target.id)) event.target.form.requestSubmit();
});

// The choice of a theme takes effect at once; its button is for browsers without scripts.
for (const each of document.querySelectorAll("#theme ~ button")) each.hidden = true;

setTimeout(connect, FIRST_MS);
