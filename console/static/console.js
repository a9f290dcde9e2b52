"use strict";

// Updates of the part of a page that is live pause on request, while the page isn't shown, and while
// the keyboard is in that part.
let paused = false;

document.addEventListener("click", (event) => {
  const button = event.target.closest("#pause");
  if (button) {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume updates" : "Pause updates";
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent.trim())
      .then(() => { copy.textContent = "Copied"; });
  }
});

document.addEventListener("htmx:beforeRequest", (event) => {
  const live = event.target;
  if (live.id === "live" && (paused || document.hidden || live.contains(document.activeElement))) {
    event.preventDefault();
  }
});

document.addEventListener("change", (event) => {
  if (["theme", "event"].includes(event.target.id)) event.target.form.requestSubmit();
});
