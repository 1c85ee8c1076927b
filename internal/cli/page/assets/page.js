// Refreshes the parts of a page that are marked with data-refresh. The page works without this
// script.
const every = 2000;
const state = document.getElementById("refresh-state");
const parts = document.querySelectorAll("[data-refresh][id]");
let paused = false;
let shown = new Date(); // from when the page is

function say(text) {
  if (state && state.firstChild?.nodeValue !== text) {
    state.replaceChildren(document.createTextNode(text));
  }
}

// busy reports whether a person uses the part: a refresh would take the focus or the selection.
function busy(part) {
  const selected = document.getSelection();
  return part.contains(document.activeElement) || (selected && !selected.isCollapsed && part.contains(selected.anchorNode));
}

async function refresh() {
  if (paused || document.hidden) {
    return;
  }
  let answer;
  try {
    answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store", headers: { "Semel-Refresh": "1" } });
  } catch {
    say("The process does not answer. The page shows what it said last.");
    return;
  }
  if (!answer.ok) {
    say("The process answers " + answer.status + ". Load the page again.");
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (page.querySelector(".who")?.textContent !== document.querySelector(".who")?.textContent) {
    say("You are no longer logged in as before. Load the page again.");
    return;
  }
  let old = null;
  for (const part of document.querySelectorAll("[data-refresh][id]")) {
    const next = page.getElementById(part.id);
    if (next && next.innerHTML !== part.innerHTML) {
      if (busy(part)) {
        old ||= shown;
      } else {
        part.replaceWith(document.adoptNode(next));
      }
    }
  }
  shown = old || new Date();
  say(old ? "Not refreshed while you use it: this part is as of " + old.toLocaleTimeString() + "." : "");
}

if (document.body.hasAttribute("data-live") && parts.length > 0) {
  const button = document.createElement("button");
  button.type = "button";
  const name = () => { button.textContent = paused ? "Resume refreshing" : "Pause refreshing"; };
  button.addEventListener("click", () => { paused = !paused; name(); refresh(); });
  name();
  document.querySelector("footer")?.append(button);
  setInterval(refresh, every);
}
