// The menu of a narrow window, the search, and a button that copies a block of code. Without this script, the menu is always open.
"use strict";
const [menu, input, found] = ["menu", "search", "found"].map(id => document.getElementById(id));
document.documentElement.classList.add("script");

menu.addEventListener("click", () => {
  const open = document.documentElement.classList.toggle("menu");
  menu.setAttribute("aria-expanded", open);
});

// The index is a script, because a page that is opened from a folder may load no other file. The first search loads it.
const source = document.getElementById("index").href;
let loading;
const load = () => loading ??= new Promise((resolve, reject) => {
  const script = document.createElement("script");
  Object.assign(script, {src: source, onload: () => resolve(window.searchIndex), onerror: reject});
  document.head.append(script);
});

// find returns the entries that contain all words; those with words in the heading or the title of the page are first.
function find(index, words) {
  const score = entry => words.reduce((sum, word) => {
    const [heading, page, text] = [entry.heading, entry.page, entry.text].map(field => field.toLowerCase().includes(word));
    return heading || page || text ? sum + 8 * heading + 4 * page + text : -Infinity;
  }, 0);
  return index.map(entry => ({entry, score: score(entry)})).filter(e => e.score > 0).sort((a, b) => b.score - a.score).map(e => e.entry);
}

function element(tag, properties, ...children) {
  const e = Object.assign(document.createElement(tag), properties);
  e.append(...children);
  return e;
}

// excerpt returns the text around the first of the words that is in it.
function excerpt(text, words) {
  const at = Math.max(0, ...words.map(word => text.toLowerCase().indexOf(word)));
  const from = at < 60 ? 0 : text.indexOf(" ", at - 60) + 1;
  return (from ? "… " : "") + text.slice(from, from + 160);
}

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(word => word);
  found.hidden = words.length === 0;
  if (found.hidden) return;
  const entries = find(await load(), words), shown = entries.slice(0, 20);
  found.replaceChildren(element("p", {textContent: `Sections found: ${entries.length}`}), ...shown.map(e =>
    element("a", {href: new URL(e.url, source)}, element("strong", {textContent: e.heading === e.page ? e.page : `${e.page} › ${e.heading}`}),
      element("span", {textContent: excerpt(e.text, words)}))));
}

input.addEventListener("input", search);
input.addEventListener("focus", load);
document.addEventListener("keydown", event => {
  if (event.key === "Escape") found.hidden = true;
  if (event.key === "Enter" && event.target === input) found.querySelector("a")?.click();
});
document.addEventListener("click", event => {
  if (!event.target.closest("search") || event.target.closest("#found a")) found.hidden = true;
});

// commandsOf returns the commands of a console without their output, or the whole text of another block.
function commandsOf(text) {
  const commands = text.split("\n").filter(line => line.startsWith("$ ")).map(line => line.slice(2));
  return commands.length > 0 ? commands.join("\n") : text.trimEnd();
}

for (const pre of document.querySelectorAll("pre")) {
  const copy = element("button", {type: "button", className: "copy", textContent: "Copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(commandsOf(pre.textContent));
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not permitted"; // by the browser, for a page without HTTPS
    }
    setTimeout(() => copy.textContent = "Copy", 2000);
  }});
  const block = element("div", {className: "block"});
  pre.replaceWith(block);
  block.append(pre, copy);
}
